"""A model's digest: the same in every process, and another one where anything that it computes with is."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.export.formats._fingerprint import Digest


def digest_of(function: Any, dtype: Any = tf.float32) -> str:
    digest = Digest()
    signature = [tf.TensorSpec((None, 3), dtype, name="x")]
    digest.add_function(tf.function(function, input_signature=signature).get_concrete_function())
    return digest.hex()


def limited(limit: float, *, weight: float = 2.0, branch: float = 1.0) -> str:
    variable = tf.Variable([[weight] * 3] * 3)

    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        return tf.minimum(x @ variable, limit)

    def rare(x: tf.Tensor) -> tf.Tensor:
        return tf.cond(tf.reduce_max(x) > 50.0, lambda: x * branch, lambda: x)

    return digest_of(lambda x: {"y": rare(inner(x))})


def labelled(name: str, key: int = 2) -> str:
    """By a table, and by a constant that is captured."""
    table = tf.lookup.StaticHashTable(
        tf.lookup.KeyValueTensorInitializer(tf.constant([1, key], tf.int64), tf.constant(["one", name])), "?"
    )
    return digest_of(lambda x: {"y": table.lookup(x)}, tf.int64)


def captured(value: float) -> str:
    constant = tf.constant([value])
    return digest_of(lambda x: {"y": x + constant})


def test_the_same_model_made_again_is_the_same() -> None:
    """Though TensorFlow counts up the names of its functions, and Keras those of its layers."""
    assert limited(100.0) == limited(100.0)
    assert labelled("two") == labelled("two")
    assert captured(1.0) == captured(1.0)

    def network() -> str:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((3,)), keras.layers.Reshape((3, 1)), keras.layers.Conv1D(2, 2)])
        return digest_of(lambda x: {"y": model(x, training=False)})

    assert network() == network()


@pytest.mark.parametrize(
    "others",
    [
        [limited(100.0), limited(1000.0), limited(100.0, weight=3.0), limited(100.0, branch=2.0)],
        [labelled("two"), labelled("zwei"), labelled("two", key=3)],
        [captured(1.0), captured(2.0)],
        [digest_of(lambda x: {"y": x, "z": x + 1}), digest_of(lambda x: {"z": x, "y": x + 1})],
        [digest_of(lambda x: {"y": x - 2 * x}), digest_of(lambda x: {"y": 2 * x - x})],
    ],
    ids=["numbers", "tables", "captured", "names of outputs", "order of inputs"],
)
def test_what_no_example_may_show_counts(others: list[str]) -> None:
    assert len(set(others)) == len(others)


def test_tables_that_cannot_be_told_apart_are_new_in_every_try() -> None:
    key = tf.constant([1], tf.int64)

    def made() -> str:
        tables = [
            tf.lookup.StaticHashTable(tf.lookup.KeyValueTensorInitializer(key, tf.constant([2], kind)), kind(0))
            for kind in (np.int64, np.float32)
        ]
        return digest_of(lambda x: {f"y{index}": table.lookup(x) for index, table in enumerate(tables)}, tf.int64)

    assert made() != made()


def test_another_process_finds_the_same(tmp_path: Path) -> None:
    script = tmp_path / "digest.py"
    script.write_text(
        textwrap.dedent("""
        import tensorflow as tf
        from tests.export.test_fingerprint import labelled, limited
        tf.function(lambda x: x + 1)(tf.constant(1))
        print(limited(100.0), labelled("two"))
        """)
    )
    found = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        check=True,
        cwd=Path.cwd(),
        env={"PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ["PYTHONPATH"]]), "PATH": "/usr/bin"},
    )
    assert found.stdout.split() == [limited(100.0), labelled("two")]
