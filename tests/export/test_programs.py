"""Random programs of TensorFlow and Keras: each runtime computes what TensorFlow does, or says why it does not."""

from __future__ import annotations

import random

import numpy as np
import pytest
import tensorflow as tf

from benchmarks.programs.compare import RUNTIMES, Expected, expected, run, traced
from benchmarks.programs.programs import EXAMPLES, draw, examples


@pytest.mark.parametrize("seed", [1, 4, 9, 17])
def test_a_program_is_the_same_in_every_runtime(seed: int) -> None:
    program = draw(seed)
    source, batches = traced(program), expected(program)
    assert len(batches) == len(EXAMPLES)
    refused = {runtime: run(program, source, runtime, batches) for runtime in RUNTIMES}
    # OpenVINO alone lacks something.
    assert {runtime for runtime, reason in refused.items() if not reason} >= {"onnxruntime", "LiteRT"}
    assert str(program).startswith(f"program {seed}: t0 = ")


def test_an_answer_that_is_something_else_is_noticed() -> None:
    program = draw(1)
    batch = Expected(program, "three")
    for name, value in batch.values.items():
        assert batch.compare(name, value) == ""
        assert "where TensorFlow has" in batch.compare(name, value[:1])
        other = ~value if value.dtype.kind == "b" else value + np.asarray(1).astype(value.dtype)
        assert "where TensorFlow has" in batch.compare(name, other)


def test_a_seed_always_draws_the_same() -> None:
    random.seed(3)
    first = draw(4)
    assert str(draw(4)) == str(first)
    given = examples(first.inputs, "large", 4)
    tensors = {name: tf.constant(array) for name, array in given.items()}
    for name, value in draw(4).compute(**tensors).items():
        np.testing.assert_array_equal(value, first.compute(**tensors)[name])
