"""Repository operations, as functions and as ``modelyard repo``."""

from __future__ import annotations

import itertools
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from modelyard import cli
from modelyard.artifact import (
    LABELS_NAME,
    MANIFEST_NAME,
    STAGING_PREFIX,
    FileEntry,
    Manifest,
    ModelVersion,
    Source,
    _maintain,
    collect,
    describe_model,
    diff_versions,
    find_version,
    hash_files,
    list_models,
    list_versions,
    promote,
    publish,
    read_labels,
    read_manifest,
    remove_label,
    remove_version,
    set_label,
    staging,
    verify_version,
    write_labels,
)
from modelyard.errors import ConfigurationError, IntegrityError, ManifestError, ModelNotFoundError, PublishError
from tests.support.models import publish_affine
from tests.support.waiting import until


def main(arguments: list[str]) -> int:
    return cli.main(["repo", *arguments])


@pytest.fixture
def model_dir(tmp_path: Path, manifest: Manifest) -> Path:
    """Three versions of one model; their accuracy grows."""
    folder = tmp_path / "models" / "fashion"
    for number in range(3):
        with staging(folder) as staged:
            (staged / "model.tflite").write_bytes(bytes([number]) * 1000)
            files = hash_files(staged)
            metrics = {"accuracy": 0.7 + number / 10, "test_accuracy": 0.6 + number / 10, "loss": 0.5}
            source = replace(manifest.source, metrics=metrics)

            def make(version: int, files: tuple[FileEntry, ...] = files, source: Source = source) -> Manifest:
                return replace(manifest, version=version, files=files, source=source)

            publish(staged, folder, make)
    return folder


def test_listing(model_dir: Path) -> None:
    assert list_models(model_dir.parent) == ("fashion",)
    (model_dir / "2" / "manifest.json").write_text("{")
    set_label(model_dir, "stable", "1")
    infos = describe_model(model_dir)
    assert [info.version.number for info in infos] == [1, 2, 3]
    assert [info.labels for info in infos] == [("stable",), (), ()]
    assert infos[1].manifest is None and "is not JSON" in infos[1].problem
    assert infos[0].manifest is not None and infos[0].bytes > 1000


def test_a_terminal_gets_no_escapes_from_a_repository(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (model_dir / "labels.json").write_text(json.dumps({"\x1b]0;mine\x07\nok m 9": 1}))
    assert main(["ls", str(model_dir)]) == 0
    shown = capsys.readouterr().out
    assert "\\x1b]0;mine\\x07\\nok m 9" in shown and "\x1b" not in shown
    (model_dir / "1" / "more\x1b[2K").write_text("")
    assert main(["verify", str(model_dir)]) == 1
    shown = capsys.readouterr().out
    assert "more\\x1b[2K" in shown and "\x1b" not in shown


def test_versions_by_number_label_and_latest(model_dir: Path) -> None:
    write_labels(model_dir, {"stable": 2, "gone": 9})
    assert [find_version(model_dir, name).number for name in ("1", "stable", "latest")] == [1, 2, 3]
    for name in ("9", "gone", "other", "9" * 5000):
        with pytest.raises(ModelNotFoundError, match=rf"no version '{name}'; it has the versions \[1, 2, 3\]"):
            find_version(model_dir, name)


def test_differences(model_dir: Path) -> None:
    first, second = (read_manifest(model_dir / name) for name in ("1", "2"))
    changed = replace(
        second,
        signatures={"serving_default": second.signatures["serving_default"]},
        latency=(replace(second.latency[0], p50_us=50.0),),
    )
    found = {each.what: (each.before, each.after) for each in diff_versions(first, changed)}
    assert found["metric accuracy"] == ("0.7", "0.8")
    assert found["signature image_bytes input image_bytes"] == ("string [-1]", "")
    assert found["latency onnx onnxruntime serving_default batch 1 threads 1"] == ("34.5 us", "50.0 us")
    assert {key for key in found if key.startswith("file ")} == {"file model.tflite"}
    assert "metric loss" not in found and "runtime" not in found
    assert diff_versions(first, first) == ()


def test_verify(model_dir: Path) -> None:
    for version in list_versions(model_dir):
        assert verify_version(version).version == version.number
    shutil.copytree(model_dir / "1", model_dir / "7")
    with pytest.raises(ManifestError, match="has the manifest of version 1; it was renamed or copied"):
        verify_version(find_version(model_dir, "7"))
    (model_dir / "1" / "extra.bin").write_bytes(b"?")
    with pytest.raises(ManifestError, match="files that its manifest does not list: extra.bin"):
        verify_version(find_version(model_dir, "1"))
    (model_dir / "2" / "model.tflite").write_bytes(b"x" * 1000)
    with pytest.raises(IntegrityError, match="sha256"):
        promote(model_dir, "2")
    assert read_labels(model_dir) == {}


def to_a_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def to_a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def to_a_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def to_brackets(path: Path) -> None:
    path.write_text("[" * 100_000)


@pytest.mark.parametrize("file", [MANIFEST_NAME, "onnx/serving_default.onnx"])
@pytest.mark.parametrize("damage", [to_a_loop, to_a_pipe, to_a_folder, to_brackets])
def test_what_is_no_file_is_damage_and_stops_nothing(
    tmp_path: Path, file: str, damage: Callable[[Path], None], capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "m"
    for slope in (1.0, 2.0):
        version = publish_affine(model, slope=slope, intercept=0.0)
    damage(version.path / file)
    code, out, error = run(capsys, "verify", str(model))
    assert (code, error) == (1, "") and out.startswith("ok       m 1") and "DAMAGED  m 2: " in out and file in out


def test_labels(model_dir: Path) -> None:
    assert read_labels(model_dir) == {}
    assert promote(model_dir, "2").number == 2
    set_label(model_dir, "canary", "latest")
    assert json.loads((model_dir / LABELS_NAME).read_text()) == read_labels(model_dir) == {"canary": 3, "stable": 2}
    remove_label(model_dir, "canary")
    assert read_labels(model_dir) == {"stable": 2}
    with pytest.raises(ModelNotFoundError, match="has no label 'canary'"):
        remove_label(model_dir, "canary")
    for label in ("latest", "7", "", "a b", "../x"):
        with pytest.raises(ConfigurationError, match="is not possible"):
            set_label(model_dir, label, "1")
    assert sorted(path.name for path in model_dir.iterdir()) == ["1", "2", "3", LABELS_NAME]


def test_labels_of_another_s_tool_stay_and_can_be_removed(model_dir: Path) -> None:
    (model_dir / LABELS_NAME).write_text('{"1st": 1}')
    set_label(model_dir, "stable", "2")
    assert read_labels(model_dir) == {"1st": 1, "stable": 2}
    with pytest.raises(ConfigurationError, match="labelled 1st"):
        remove_version(model_dir, "1")
    remove_label(model_dir, "1st")
    assert remove_version(model_dir, "1").number == 1


def test_the_folder_of_a_version_is_no_repository(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in (["ls"], ["verify"], ["gc", "--keep", "1"]):
        assert main([command[0], str(model_dir / "2"), *command[1:]]) == 1
        message = f"2 is the folder of a version; expected a model repository or one model of it, such as {model_dir}."
        assert message in capsys.readouterr().err
    assert main(["show", str(model_dir), "9" * 5000]) == 1
    assert "has no version '999" in capsys.readouterr().err


def test_what_is_promoted_is_what_was_verified(model_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    verify = verify_version

    def slowly(version: ModelVersion) -> Manifest:
        # An export ends meanwhile, and its files are damaged.
        shutil.copytree(model_dir / "3", model_dir / "4")
        (model_dir / "4" / "model.tflite").write_bytes(b"x")
        return verify(version)

    monkeypatch.setattr(_maintain, "verify_version", slowly)
    assert promote(model_dir, "latest").number == 3
    assert read_labels(model_dir) == {"stable": 3}


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "[]",
        '{"a": "1"}',
        '{"a": true}',
        pytest.param("[" * 100_000, id="brackets"),
        '{"\\ud800": 1}',
        '{"a": 1%s}' % ("0" * 30),
    ],
)
def test_damaged_labels(model_dir: Path, text: str) -> None:
    (model_dir / LABELS_NAME).write_text(text)
    with pytest.raises(ManifestError, match=LABELS_NAME):
        read_labels(model_dir)


def set_labels(model_dir: Path, name: str) -> None:
    for index in range(20):
        set_label(model_dir, f"{name}{index}", "1")


def test_processes_that_label_at_once_lose_no_label(model_dir: Path) -> None:
    context = multiprocessing.get_context("fork")
    workers = [context.Process(target=set_labels, args=(model_dir, name)) for name in "abcd"]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert len(read_labels(model_dir)) == 80


def test_labels_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(PublishError, match="Cannot write"):
        write_labels(tmp_path / "absent", {"a": 1})


def test_removal(model_dir: Path) -> None:
    promote(model_dir, "1")
    with pytest.raises(ConfigurationError, match="is labelled stable; move or remove the label first"):
        remove_version(model_dir, "1")
    assert remove_version(model_dir, "2").number == 2
    assert sorted(path.name for path in model_dir.iterdir()) == ["1", "3", LABELS_NAME]
    with pytest.raises(ModelNotFoundError):
        remove_version(model_dir, "2")


def test_a_version_may_be_its_number(model_dir: Path) -> None:
    assert find_version(model_dir, 2) == find_version(model_dir, "2")
    assert promote(model_dir, 1).number == set_label(model_dir, "canary", 1).number == 1
    remove_version(model_dir, 2)
    for absent in (2, -1):
        with pytest.raises(ModelNotFoundError, match=rf"has no version '{absent}'; it has the versions \[1, 3\]"):
            find_version(model_dir, absent)


def test_collection(model_dir: Path) -> None:
    (model_dir / f"{STAGING_PREFIX}old").mkdir()
    (model_dir / f"{STAGING_PREFIX}old" / "file").write_text("x")
    for path in (model_dir / f"{STAGING_PREFIX}old" / "file", model_dir / f"{STAGING_PREFIX}old"):
        os.utime(path, (1, 1))
    (model_dir / f"{STAGING_PREFIX}new").mkdir()
    # Of one that is at work, whose folder is a day old, a file is new.
    (model_dir / f"{STAGING_PREFIX}work" / "onnx").mkdir(parents=True)
    (model_dir / f"{STAGING_PREFIX}work" / "onnx" / "file").write_text("x")
    for path in (model_dir / f"{STAGING_PREFIX}work" / "onnx", model_dir / f"{STAGING_PREFIX}work"):
        os.utime(path, (1, 1))
    promote(model_dir, "1")
    collected = collect(model_dir, keep=1)
    assert (collected.versions, collected.staging) == ((2,), (f"{STAGING_PREFIX}old",))
    assert sorted(path.name for path in model_dir.iterdir()) == [
        f"{STAGING_PREFIX}new", f"{STAGING_PREFIX}work", "1", "3", LABELS_NAME,
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="keep is 0; expected at least 1"):
        collect(model_dir, keep=0)


def test_what_is_no_staging_directory_is_left_alone(model_dir: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    links = {f"{STAGING_PREFIX}{name}": tmp_path / name for name in ("elsewhere", "nowhere")}
    for name, target in links.items():
        (model_dir / name).symlink_to(target)
        os.utime(model_dir / name, (0, 0), follow_symlinks=False)
    os.utime(tmp_path / "elsewhere", (0, 0))
    (model_dir / f"{STAGING_PREFIX}file").touch()
    os.utime(model_dir / f"{STAGING_PREFIX}file", (0, 0))
    assert collect(model_dir, keep=1).staging == ()
    assert len(list(model_dir.glob(f"{STAGING_PREFIX}*"))) == 3


@pytest.mark.parametrize(
    "call", [describe_model, lambda path: find_version(path, "1"), lambda path: collect(path, keep=1)]
)
def test_no_such_model(tmp_path: Path, call: Callable[[Path], object]) -> None:
    with pytest.raises(ModelNotFoundError, match="has no model 'absent'"):
        call(tmp_path / "absent")
    with pytest.raises(ModelNotFoundError, match="is no folder"):
        list_models(tmp_path / "absent")


#: Root may read everything, until it has lost the right to.
AS_OTHERS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"] if os.geteuid() == 0 else []


@pytest.mark.skipif(bool(AS_OTHERS) and shutil.which("setpriv") is None, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_no_model(model_dir: Path) -> None:
    """Such as lost+found, which a mounted disk brings along."""
    closed = model_dir.parent / "lost+found"
    shutil.copytree(model_dir, closed)
    code = "import sys; from modelyard.artifact import list_models, locate; print(*list_models(locate(sys.argv[1])))"
    command = [*AS_OTHERS, sys.executable, "-c", code, str(model_dir.parent)]
    found = []
    try:
        for mode in (0o755, 0):
            closed.chmod(mode)
            found.append(subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout)
    finally:
        closed.chmod(0o755)
    assert found == ["fashion lost+found\n", "fashion\n"]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(list(arguments))
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(model_dir)
    assert run(capsys, "promote", model, "2") == (0, "fashion version 2: verified and labelled stable\n", "")
    assert run(capsys, "label", model, "canary", "3")[0] == 0
    code, out, _ = run(capsys, "ls", f"file://{model_dir.parent}")
    rows = [line.split() for line in out.splitlines()]
    assert code == 0 and rows[0][:3] == ["MODEL", "VERSION", "SIZE"]
    assert [row[:2] for row in rows[1:]] == [["fashion", "1"], ["fashion", "2"], ["fashion", "3"]]
    assert "test_accuracy 0.7" in out and "stable" in out and "onnx" in out
    assert json.loads(run(capsys, "show", model)[1])["version"] == 3
    assert "metric accuracy" in run(capsys, "diff", model, "1", "canary")[1]
    assert run(capsys, "diff", model, "1", "1")[1] == "No difference.\n"
    assert run(capsys, "label", model, "canary")[1] == "fashion: label canary removed\n"
    assert run(capsys, "rm", model, "1")[1] == "fashion version 1: removed\n"
    assert run(capsys, "gc", model, "--keep", "1")[1] == "fashion: versions removed: none; staging directories: 0\n"
    publish_affine(model_dir.parent / "affine", slope=2.0, intercept=1.0)
    publish_affine(model_dir.parent / "affine", slope=2.0, intercept=1.0)
    removed = (
        "affine: versions removed: 1; staging directories: 0\nfashion: versions removed: none; staging directories: 0\n"
    )
    assert run(capsys, "gc", str(model_dir.parent), "--keep", "1")[:2] == (0, removed)
    shutil.rmtree(model_dir.parent / "affine")
    assert run(capsys, "verify", model)[:2] == (0, "ok       fashion 2 (1 file)\nok       fashion 3 (1 file)\n")
    (model_dir / "3" / "model.tflite").write_bytes(b"x")
    code, out, _ = run(capsys, "verify", str(model_dir.parent))
    assert code == 1 and "DAMAGED  fashion 3: " in out and "ok       fashion 2" in out


def test_errors_of_the_command(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, error = run(capsys, "show", str(model_dir), "9")
    assert (code, out) == (1, "") and error.startswith("modelyard repo show: Model 'fashion' has no version '9'")
    assert run(capsys, "gc", str(model_dir), "--keep", "0")[0] == 2
    folder = model_dir.parent / "nothing"
    folder.mkdir()
    code, out, error = run(capsys, "verify", str(folder))
    assert (code, out) == (1, "") and f"{folder} has no version; expected a model repository" in error
    assert "expected a file, such as key.pem" in run(capsys, "keygen", "")[2]
    with pytest.raises(SystemExit):
        main(["ls", "nothing://bucket/models"])
    assert "is not on a file system that is known here" in capsys.readouterr().err
    assert run(capsys, "ls", f"file://{model_dir}")[0] == 0


#: For each line of its input a process, forked when all is imported: one that publishes for ever, or one that is to
#: publish once and kills itself before the file operation of a number.
PUBLISH = """
import os, signal, sys
from dataclasses import replace
from pathlib import Path
from modelyard.artifact import *
template, folder = Manifest.from_json(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
left = 0
def count(event, arguments):
    global left
    if event.partition(".")[0] in ("open", "os", "shutil", "tempfile"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
for line in sys.stdin:
    child = os.fork()
    if child:
        print(child, flush=True)
        print("ended by", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        continue
    if line.strip():
        left = int(line)
        # What is killed loses nothing that it had written: only a machine that stops does.
        os.fsync = lambda descriptor: None
        sys.addaudithook(count)
    for turn in range(1 if line.strip() else 100000):
        with staging(folder) as staged:
            (staged / "onnx").mkdir()
            for index in range(4):
                (staged / "onnx" / f"{index}.onnx").write_bytes(bytes([turn % 256]) * 50_000)
            files = hash_files(staged)
            version = publish(staged, folder, lambda number: replace(template, version=number, files=files))
        set_label(folder, "stable", "latest")
        collect(folder, keep=3, stale_s=3600)
    os._exit(0)
"""


class Publisher:
    """Starts processes that publish, and looks at what they leave."""

    def __init__(self, process: subprocess.Popen[str], folder: Path) -> None:
        self._process, self.folder, self.last = process, folder, 0

    def start(self, at: int | None = None) -> int:
        """The number of the process, which is to end before an operation, or never."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n" if at is None else f"{at}\n")
        self._process.stdin.flush()
        return int(self._line())

    def ended_by(self) -> int:
        return int(self._line().removeprefix("ended by "))

    def check(self) -> None:
        """What a reader sees is whole."""
        versions = list_versions(self.folder) if self.folder.exists() else ()
        for version in versions:
            verify_version(version)
        # No version is lost: the newest before is there, or was followed by newer ones.
        newest = max((version.number for version in versions), default=0)
        assert newest >= self.last
        self.last = newest
        labels = read_labels(self.folder)
        assert set(labels.values()) <= {version.number for version in versions}

    def _line(self) -> str:
        assert self._process.stdout is not None
        return self._process.stdout.readline()


@pytest.fixture
def publisher(tmp_path: Path, manifest: Manifest) -> Iterator[Publisher]:
    (tmp_path / "manifest.json").write_text(manifest.to_json())
    folder = tmp_path / "models" / "m"
    command = [sys.executable, "-c", PUBLISH, str(tmp_path / "manifest.json"), str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Publisher(process, folder)


def test_killed_before_every_file_operation(publisher: Publisher) -> None:
    """One publishes, labels and collects, and is killed before its first operation; the next before its second."""
    for _ in range(4):
        publisher.start(-1)
        assert publisher.ended_by() == 0
        publisher.check()
    assert publisher.last == 4
    numbers = []
    for at in itertools.count(1):
        publisher.start(at)
        code = publisher.ended_by()
        publisher.check()
        numbers.append(publisher.last)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        # What they left is in nobody's way, but each that collects would look at all of it.
        collect(publisher.folder, keep=3, stale_s=0)
    # Before the rename there is no new version, and after it there is one: no number is left out or taken twice.
    unpublished = numbers.count(4)
    assert 20 < unpublished < len(numbers) - 20
    assert numbers[unpublished:] == list(range(5, 5 + len(numbers) - unpublished))
    kept = [version.number for version in list_versions(publisher.folder)]
    assert kept == list(range(publisher.last - 2, publisher.last + 1))


def test_killed_at_twenty_random_moments(publisher: Publisher) -> None:
    """Publishing, labelling and collecting in a loop, until SIGKILL: what a reader sees is whole each time."""
    rng, pace = random.Random(7), 0.0
    for _ in range(20):
        child, began = publisher.start(), time.monotonic()
        if not pace:
            # How long one of them takes here and now.
            until(lambda: publisher.folder.exists() and list_versions(publisher.folder))
            pace = time.monotonic() - began
        else:
            time.sleep(rng.uniform(0.0, 3 * pace))
        os.kill(child, signal.SIGKILL)
        assert publisher.ended_by() == -signal.SIGKILL
        publisher.check()
    assert publisher.last > 3
    assert main(["verify", str(publisher.folder)]) == 0
    collect(publisher.folder, keep=1, stale_s=0)
    assert not list(publisher.folder.glob(f"{STAGING_PREFIX}*"))


def test_what_cannot_be_removed_stays_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tmp_path / "m"
    for number in range(3):
        publish_affine(model, slope=float(number), intercept=0.0)

    def refuse(*arguments: object, **options: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    with monkeypatch.context() as busy:
        busy.setattr(Path, "rename", refuse)
        with pytest.raises(PublishError, match=r"Cannot remove .*/m/1: .*Operation not permitted"):
            remove_version(model, "1")
        with pytest.raises(PublishError, match=r"Cannot remove .*/m/1: .*Operation not permitted"):
            collect(model, keep=1)
    assert [verify_version(version).version for version in list_versions(model)] == [1, 2, 3]
    with monkeypatch.context() as busy:
        busy.setattr(shutil, "rmtree", refuse)
        # Out of sight already, though its files are still there.
        with pytest.raises(PublishError, match=r"Cannot remove .*/\.staging-"):
            remove_version(model, "1")
    assert [version.number for version in list_versions(model)] == [2, 3]
