"""Export to an object store, signed: the command as a user types it."""

from __future__ import annotations

from pathlib import Path

import keras
import numpy as np
import pytest
import s3fs

from modelyard import cli
from modelyard.artifact import (
    RemotePath,
    collect,
    find_version,
    generate_key,
    load_trusted_keys,
    read_labels,
    verify_version,
)
from modelyard.errors import ArtifactError, ConfigurationError
from modelyard.export import ExportOptions
from modelyard.export.cli import export_here as main
from tests.support.object_store import s3


def repo(arguments: list[str]) -> int:
    return cli.main(["repo", *arguments])


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model, examples for it, and a key pair."""
    folder = tmp_path_factory.mktemp("source")
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((3,), name="x"), keras.layers.Dense(2)])
    model.export(folder / "tiny", verbose=False)
    np.savez(folder / "examples.npz", x=np.random.default_rng(0).random((256, 3), np.float32))
    generate_key(folder / "key.pem")
    return folder


def test_export_and_every_operation_in_a_store(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(source / "tiny"), "--data", str(source / "examples.npz"), "--format", "tflite"]
    with s3("shop"):
        target = ["--repository", "s3://shop/models", "--signing-key", str(source / "key.pem")]
        assert main([*command, *target]) == 0 == main([*command, *target])
        model = RemotePath("s3://shop/models/tiny")
        assert {name.partition("/")[0] for name in model.tree()} == {"1", "2"}
        keys = load_trusted_keys([source / "key.pub.pem"])
        manifest = verify_version(find_version(model, "latest"), trusted_keys=keys)
        assert manifest.version == 2 and set(manifest.formats) == {"tflite"}

        # What a crash leaves: a claim, and files of a version that does not exist.
        (model / ".staging-3").write_bytes(b"")
        (model / "3" / "model.tflite").write_bytes(b"half")
        (model / "4" / "saved_model.pb").write_bytes(b"somebody else's")
        capsys.readouterr()
        for arguments in (["ls", "s3://shop/models"], ["show", str(model)], ["diff", str(model), "1", "2"]):
            assert repo(arguments) == 0
        assert repo(["verify", "s3://shop/models", "--trusted-key", str(source / "key.pub.pem")]) == 0
        assert "signed)" in capsys.readouterr().out
        assert repo(["promote", str(model), "1"]) == 0 and read_labels(model) == {"stable": 1}
        assert repo(["rm", str(model), "1"]) == 2
        assert repo(["label", str(model), "stable", "2"]) == 0
        assert main([*command, *target]) == 0
        assert find_version(model, "latest").number == 5
        assert repo(["gc", str(model), "--keep", "1"]) == 0
        assert {name.partition("/")[0] for name in model.tree()} == {".staging-3", "3", "2", "4", "5", "labels.json"}
        assert collect(model, keep=1, stale_s=-60).staging == (".staging-3",)
        assert {name.partition("/")[0] for name in model.tree()} == {"2", "4", "5", "labels.json"}
        assert repo(["label", str(model), "stable"]) == 0 and repo(["rm", str(model), "2"]) == 0
        assert repo(["show", str(model), "2"]) == 1
        assert repo(["ls", "s3://nowhere/models"]) == 1
        capsys.readouterr()


def test_a_store_that_is_away(monkeypatch: pytest.MonkeyPatch) -> None:
    with s3("away"):
        monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
        s3fs.S3FileSystem.clear_instance_cache()
        with pytest.raises(ArtifactError, match="s3://away/m cannot be listed: EndpointConnectionError"):
            RemotePath("s3://away/m").tree()


def test_a_key_that_does_not_fit_is_told_before_the_work(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [str(source / "tiny"), "--data", str(source / "examples.npz"), "--repository", str(source / "m")]
    assert main([*command, "--signing-key", str(source / "key.pub.pem")]) == 2
    assert "is no key that fits" in capsys.readouterr().err
    assert not (source / "m").exists()
    assert ExportOptions(signing_key=source / "key.pem").signing_key == source / "key.pem"
    with pytest.raises(ConfigurationError, match="not on a file system that is known"):
        RemotePath("nothing://bucket")
