"""docs/export.md: its Python runs, and its commands are commands."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from modelyard.artifact import CLASSIFY_METHOD, generate_key, list_versions, read_manifest
from modelyard.artifact._cli import make_parser as repo_parser
from modelyard.export.cli import make_parser as export_parser
from modelyard.serving import parse_flags
from tests.support.pages import blocks

PAGE = "docs/export.md"


def test_the_python_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Flatten(), keras.layers.Dense(3, activation="softmax")]
    texts = [f"{first} {second}" for first in "abcdefghijklmnop" for second in "qrstuvwxyz123456"]
    names: dict[str, Any] = {
        "keras": keras,
        "texts": texts,
        "rows": np.array(texts)[:, np.newaxis],
        "model": keras.Sequential([keras.Input((4, 4, 1), name="image"), *layers]),
        "images": np.random.default_rng(0).random((256, 4, 4, 1), np.float32),
    }
    for block in blocks(PAGE, "python"):
        exec(compile(block, PAGE, "exec"), names)
    assert len(list_versions(tmp_path / "models" / "fashion")) == 2
    looks = read_manifest(tmp_path / "models" / "looks" / "1").signatures
    assert looks["classify"].method == CLASSIFY_METHOD and looks["image_bytes"].decode is not None
    assert len(list_versions(tmp_path / "models" / "sentiment")) == 1
    assert len(list_versions(tmp_path / "models" / "line")) >= 1


def test_the_commands_of_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert repo_parser().parse_args(["keygen", "key.pem"]).key == Path("key.pem")
    generate_key(Path("key.pem"))
    commands = [part for block in blocks(PAGE, "") for line in block.splitlines() for part in re.split(r"\s{2,}", line)]
    parsed = 0
    for command in commands:
        program, name, *arguments = shlex.split(command)
        if "SOURCE" in arguments:
            continue
        assert program == "modelyard"
        if name == "repo":
            repo_parser().parse_args(arguments)
        elif name == "export":
            export_parser().parse_args(arguments)
        else:
            assert name == "serve"
            parse_flags(arguments)
        parsed += 1
    assert parsed >= 15
