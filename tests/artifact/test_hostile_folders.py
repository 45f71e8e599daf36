"""What anybody may put into a repository: it is told as what it is, in little time and memory, and stops nothing."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard import cli
from modelyard.artifact import (
    LABELS_NAME,
    MANIFEST_NAME,
    SIGNATURE_NAME,
    STAGING_PREFIX,
    Manifest,
    Source,
    _checksums,
    collect,
    describe_model,
    generate_key,
    load_trusted_keys,
    locate,
    read_labels,
    read_manifest,
    set_label,
    verify_files,
    verify_version,
)
from modelyard.artifact._catalog import find_version
from modelyard.errors import ArtifactError, ManifestError, PublishError
from tests.support.hostile import make_large, nested_folders
from tests.support.models import publish_affine
from tests.support.waiting import until


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A repository whose model b is to be damaged, between two others."""
    for name in ("a", "b", "c"):
        for slope in (1.0, 2.0):
            publish_affine(tmp_path / "models" / name, slope=slope, intercept=0.0)
    return tmp_path / "models"


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = cli.main(["repo", *arguments])
    return code, *capsys.readouterr()


def nested(depth: int) -> dict[str, object]:
    value: dict[str, object] = {}
    for _ in range(depth):
        value = {"a": value}
    return value


def nest_config(path: Path) -> None:
    document = json.loads(path.read_text())
    del document["sha256"]
    document["source"]["config"] = nested(900)
    path.write_text(json.dumps(document))


@pytest.mark.parametrize(
    ("damage", "what"),
    [(nest_config, "nested deeper than 100 levels"), (make_large, "has more than 8,388,608 bytes")],
)
def test_manifests_beyond_any_model_s(
    models: Path, damage: Callable[[Path], None], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    damage(models / "b" / "2" / MANIFEST_NAME)
    code, out, error = run(capsys, "show", str(models / "b"))
    assert (code, out) == (1, "") and what in error and MANIFEST_NAME in error
    code, out, error = run(capsys, "verify", str(models))
    assert (code, error, out.count("ok  "), out.count("DAMAGED  b 2: ")) == (1, "", 5, 1) and what in out
    code, out, error = run(capsys, "ls", str(models))
    assert (code, error, out.count("(no valid manifest)"), len(out.splitlines())) == (0, "", 1, 7)
    assert run(capsys, "promote", str(models / "b"), "2")[0] == 1
    assert run(capsys, "promote", str(models / "b"), "1")[0] == 0


def test_numbers_beyond_64_bits(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = models / "b" / "2" / MANIFEST_NAME
    document = json.loads(path.read_text())
    del document["sha256"]
    # Python reads numbers of so many digits, and says none that has one more.
    document["files"] = [{"path": name, "bytes": int("9" * 4300), "sha256": ""} for name in "ab"]
    path.write_text(json.dumps(document))
    code, out, error = run(capsys, "diff", str(models / "b"), "1", "2")
    assert (code, out) == (1, "") and "manifest.json.files[0].bytes: int too big" in error


def test_a_manifest_that_nobody_would_read_is_not_written(manifest: Manifest) -> None:
    assert Manifest.from_json(replace(manifest, source=Source(config=nested(90))).to_json()).source.config == nested(90)
    for depth in (110, 10_000):
        with pytest.raises(ManifestError, match="cannot be written as JSON.*look at source.config"):
            replace(manifest, source=Source(config=nested(depth))).to_json()
    with pytest.raises(ManifestError, match="expected up to 8,388,608. Look at source.config"):
        replace(manifest, source=Source(config={"x": "x" * (8 << 20)})).to_json()


def test_an_error_does_not_quote_a_whole_manifest(manifest: Manifest, tmp_path: Path) -> None:
    document = json.loads(manifest.to_json())
    del document["sha256"]
    document["formats"]["onnx"]["verify"]["rows"]["serving_default"]["verdict"] = "x" * 1_000_000
    (tmp_path / MANIFEST_NAME).write_text(json.dumps(document))
    with pytest.raises(ManifestError, match="expected 'independent'") as caught:
        read_manifest(tmp_path)
    assert len(caught.value.message) < 3000


def test_a_file_is_listed_once(manifest: Manifest, staged_files: Path) -> None:
    (first, *_) = manifest.files
    for path in (first.path, f"./{first.path}"):
        with pytest.raises(ManifestError, match="twice"):
            verify_files(staged_files, replace(manifest, files=(first, replace(first, path=path))))


def test_labels_and_signatures_beyond_any_size(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_large(models / "b" / LABELS_NAME)
    with pytest.raises(ManifestError, match=r"labels.json has more than 1,048,576 bytes"):
        read_labels(models / "b")
    for command in (["ls"], ["gc", "--keep", "1"]):
        code, out, error = run(capsys, command[0], str(models), *command[1:])
        # The others are not kept waiting.
        assert (code, len(error.splitlines())) == (1, 1) and f"b/{LABELS_NAME} has more than" in error
        assert out.count("a  ") + out.count("a: ") and out.count("c  ") + out.count("c: ") and "b  " not in out
    make_large(models / "a" / "2" / SIGNATURE_NAME)
    keys = load_trusted_keys([generate_key(tmp_path / "key.pem")])
    with pytest.raises(ManifestError, match="has more than 64 bytes"):
        verify_version(find_version(models / "a", "2"), trusted_keys=keys)


def test_objects_beyond_any_size(manifest: Manifest) -> None:
    pytest.importorskip("fsspec")
    folder = locate("memory://hostile/b")
    (folder / "1" / MANIFEST_NAME).write_bytes(manifest.to_json().encode() + b" " * (8 << 20))
    (folder / LABELS_NAME).write_bytes(b" " * (1 << 20) + b"{}")
    with pytest.raises(ManifestError, match="has more than 8,388,608 bytes"):
        read_manifest(folder / "1")
    with pytest.raises(ManifestError, match="has more than 1,048,576 bytes"):
        read_labels(folder)


def test_folders_in_each_other(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    version = models / "b" / "1"
    with nested_folders(version):
        code, out, error = run(capsys, "ls", str(models))
        assert (code, error, len(out.splitlines())) == (0, "", 7)
        assert "more than 100 folders in each other" in describe_model(models / "b")[0].problem
        code, out, error = run(capsys, "verify", str(models))
        assert (code, error, out.count("ok  ")) == (1, "", 5)
        assert f"DAMAGED  b 1: {version} has more than 100 folders in each other" in out
        assert run(capsys, "promote", str(models / "b"), "1")[0] == 1
        code, out, error = run(capsys, "gc", str(models), "--keep", "1")
        # It is out of sight, whether Python can remove it or not, and no other model waits for that.
        assert [each.name for each in models.glob("?/[0-9]")] == ["2", "2", "2"]
        assert out.count("versions removed: 1") >= 2
        left = list((models / "b").glob(f"{STAGING_PREFIX}*"))
        assert (code, bool(error)) == ((1, True) if left else (0, False))
        if left:
            assert f"Cannot remove {left[0]}, which no server looks at any more: " in error
            assert error.endswith(f". Remove it yourself: rm -r {left[0]}\n")


def test_a_crashed_export_s_folders_in_each_other(models: Path) -> None:
    # A name is no command either, where somebody does what is said.
    staging = models / "b" / f"{STAGING_PREFIX}$(touch mine)"
    staging.mkdir()
    command = re.escape(f"rm -r '{staging}'")
    with nested_folders(staging), pytest.raises(PublishError, match=f"Cannot remove .*Remove it yourself: {command}$"):
        collect(models / "b", keep=2, stale_s=0)


def test_nothing_outside_of_a_repository_is_removed(
    models: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Who may write to it puts a link there, to a folder whose folders are numbers."""
    for year in ("2024", "2025"):
        (tmp_path / "accounts" / year).mkdir(parents=True)
    shutil.rmtree(models / "b")
    (models / "b").symlink_to(tmp_path / "accounts")
    (models / "d").symlink_to("c")
    code, out, error = run(capsys, "gc", str(models), "--keep", "1")
    assert (code, out.count("versions removed: 1")) == (1, 2)
    assert f"{models / 'b'} is a link out of {models}: nothing is removed there" in error
    assert sorted(path.name for path in (tmp_path / "accounts").iterdir()) == ["2024", "2025"]
    # Whoever names the link means it.
    assert run(capsys, "gc", str(models / "b"), "--keep", "1")[0] == 0
    assert [path.name for path in (tmp_path / "accounts").iterdir()] == ["2025"]


def test_more_files_than_a_model_has(
    models: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in range(20):
        (models / "b" / "1" / f"{number}\x1b[2J\n").touch()
    code, out, _ = run(capsys, "verify", str(models / "b"))
    assert code == 1 and "\x1b" not in out and "9\\x1b[2J\\n" not in out
    assert "does not list: 0\\x1b[2J\\n, 1\\x1b[2J\\n" in out and out.splitlines()[0].endswith(", and 10 more.")
    monkeypatch.setattr(_checksums, "MAX_ENTRIES", 15)
    with pytest.raises(ArtifactError, match="/b/1 has more than 15 files and folders"):
        verify_version(find_version(models / "b", "1"))


@pytest.mark.skipif(sys.platform != "linux", reason="other systems have no such names")
def test_names_that_a_terminal_would_obey(models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (models / "b" / "2" / "\x1b[2J").touch()
    (models / "b" / "2" / os.fsdecode(b"\xff")).touch()
    code, _, error = run(capsys, "promote", str(models / "b"), "2")
    assert code == 1 and "does not list: \\x1b[2J, \\udcff" in error and "\x1b" not in error
    (models / "b").rename(models / "\x1b[2J")
    (models / "\x1b[2J" / LABELS_NAME).write_text("[")
    code, _, error = run(capsys, "ls", str(models))
    assert code == 1 and "\\x1b[2J" in error and "\x1b" not in error


def test_a_folder_that_is_a_loop(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "m").symlink_to("m")
    for command in (["ls"], ["verify"], ["gc", "--keep", "1"], ["show"]):
        code, out, error = run(capsys, command[0], str(tmp_path / "m"), *command[1:])
        assert (code, out) == (1, "") and "cannot be read: Too many levels of symbolic links" in error


def test_what_is_written_opens_no_other_file_to_all(models: Path, tmp_path: Path) -> None:
    """Who may write to a model's folder puts a link in the place of what is being written there."""
    secret, labels = tmp_path / "secret", models / "a" / LABELS_NAME
    secret.touch(0o600)
    ended = threading.Event()

    def swap() -> None:
        while not ended.is_set():
            for path in (models / "a").glob(f".{LABELS_NAME}-*"):
                (tmp_path / "link").symlink_to(secret)
                (tmp_path / "link").replace(path)

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        until(lambda: set_label(models / "a", "stable", "1").number == 1 and labels.is_symlink(), 60)
    finally:
        ended.set()
        swapping.join()
    assert stat.S_IMODE(secret.stat().st_mode) == 0o600


@pytest.mark.parametrize("place", ["d", "b/3"])
def test_a_link_that_nobody_can_follow(models: Path, place: str, capsys: pytest.CaptureFixture[str]) -> None:
    (models / place).symlink_to("n" * 300)
    for command in (["ls"], ["verify"], ["gc", "--keep", "1"]):
        code, out, error = run(capsys, command[0], str(models), *command[1:])
        assert (code, error) == (0, "") and len(out.splitlines()) == {"ls": 7, "verify": 6, "gc": 3}[command[0]]
