"""Versions that must be signed: what was checked is what is loaded, whatever others do to the folder meanwhile."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.artifact import (
    SIGNATURE_NAME,
    ModelVersion,
    TrustedKey,
    generate_key,
    load_signing_key,
    load_trusted_keys,
    sign_version,
)
from modelyard.artifact import verify_files as _verify
from modelyard.errors import ArtifactError, IntegrityError, ManifestError
from modelyard.serving.config import LoadOptions, ModelConfig, WatchOptions
from modelyard.serving.repository import ModelManager
from modelyard.serving.repository._cache import VersionCache
from modelyard.serving.requests import ModelSpec
from modelyard.serving.servables import Servable, load_servable
from tests.support.models import publish_affine

GRAPH = "onnx/serving_default.onnx"


@pytest.fixture
def keys(tmp_path: Path) -> tuple[TrustedKey, ...]:
    return load_trusted_keys([generate_key(tmp_path / "key.pem")])


@pytest.fixture
def signed(tmp_path: Path, keys: tuple[TrustedKey, ...]) -> ModelVersion:
    version = publish_affine(tmp_path / "m", slope=2.0, intercept=0.0)
    sign_version(tmp_path / "m", "1", load_signing_key(tmp_path / "key.pem"))
    return version


def test_a_folder_that_is_exchanged_after_the_check_is_not_loaded(
    tmp_path: Path, signed: ModelVersion, keys: tuple[TrustedKey, ...]
) -> None:
    evil = publish_affine(tmp_path / "evil", slope=-1.0, intercept=0.0)

    def load(config: ModelConfig, number: int, path: Path) -> Servable:
        aside = signed.path.rename(tmp_path / "aside")
        evil.path.rename(signed.path)
        try:
            return load_servable(config.name, number, path, LoadOptions(trusted_keys=keys))
        finally:
            signed.path.rename(evil.path)
            aside.rename(signed.path)

    watch = WatchOptions(poll_wait_s=0, trusted_keys=keys, cache_dir=tmp_path / "cache")
    manager = ModelManager([ModelConfig(name="m", base_path=tmp_path / "m")], load, watch)
    manager.start()
    assert manager.wait_until_polled(30)
    with manager.acquire(ModelSpec(name="m")) as servable:
        # Nor is it read again later.
        (signed.path / GRAPH).write_bytes(b"")
        outputs = servable.backend.run("serving_default", {"x": np.array([3.0], np.float32)}, ["y"])
        assert outputs["y"].tolist() == [6.0]
        assert servable.path.is_relative_to(tmp_path / "cache") and (servable.path / SIGNATURE_NAME).is_file()
    manager.stop()


def test_files_that_others_exchange_are_refused_by_name(
    tmp_path: Path, signed: ModelVersion, keys: tuple[TrustedKey, ...]
) -> None:
    """Nothing is waited for, and no more is read than there should be."""
    cache, graph = VersionCache("m", tmp_path / "cache", keys), signed.path / GRAPH
    whole = graph.read_bytes()
    graph.unlink()
    for make, message in (
        (lambda: os.mkfifo(graph), "lacks onnx/serving_default.onnx"),
        (lambda: graph.symlink_to("/dev/zero"), "lacks onnx/serving_default.onnx"),
        (lambda: graph.write_bytes(whole + b"x" * 100), f"has {len(whole) + 1} bytes; its manifest says {len(whole)}"),
        (lambda: graph.write_bytes(whole[:-1] + b"x"), "has sha256"),
    ):
        make()
        with pytest.raises(IntegrityError, match=message) as caught:
            cache.fetch(signed)
        assert str(signed.path) in caught.value.message and str(tmp_path / "cache") not in caught.value.message
        graph.unlink()
    graph.write_bytes(whole)
    assert (cache.fetch(signed) / GRAPH).read_bytes() == whole
    # What is kept is looked at each time.
    (cache.fetch(signed) / GRAPH).write_bytes(b"")
    assert (cache.fetch(signed) / GRAPH).read_bytes() == whole


def test_what_is_not_signed_is_not_copied(tmp_path: Path, signed: ModelVersion, keys: tuple[TrustedKey, ...]) -> None:
    cache = VersionCache("m", tmp_path / "cache", keys)
    for content, kind, message in ((b"x" * 64, ArtifactError, "signed it"), (b"x" * 65, ManifestError, "more than 64")):
        (signed.path / SIGNATURE_NAME).write_bytes(content)
        with pytest.raises(kind, match=message):
            cache.fetch(signed)
    (signed.path / SIGNATURE_NAME).unlink()
    with pytest.raises(ArtifactError, match="is not signed"):
        cache.fetch(signed)
    assert not (tmp_path / "cache").exists()
    assert VersionCache("m", tmp_path / "cache").fetch(signed) == signed.path
    shutil.rmtree(signed.path)


def test_of_two_processes_that_copy_at_once_both_have_it(
    tmp_path: Path, signed: ModelVersion, keys: tuple[TrustedKey, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as two servers with one ``--remote_cache_dir``."""
    first, second = (VersionCache("m", tmp_path / "cache", keys) for _ in range(2))
    copied: list[Path] = []

    def verify_files(*arguments: Any) -> None:
        if not copied:
            copied.append(Path())
            copied[0] = second.fetch(signed)
        _verify(*arguments)

    monkeypatch.setattr("modelyard.serving.repository._cache.verify_files", verify_files)
    assert [first.fetch(signed)] == copied
    assert list(copied[0].parent.iterdir()) == copied
