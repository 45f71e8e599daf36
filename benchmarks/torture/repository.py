"""Repository faults under load: the last good version always serves, and ``repo verify`` names the damage."""

from __future__ import annotations

import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from benchmarks.torture.cases import Fault, Result, Scratch, Target, case, expect
from modelyard.artifact import (
    MANIFEST_NAME,
    ModelVersion,
    collect,
    list_versions,
    read_manifest,
    set_label,
    verify_version,
)
from modelyard.errors import ArtifactError
from modelyard.wire import read_records
from tests.support.admin import ask, available, config_text, states
from tests.support.fashion import publish_fashion
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve
from tests.support.waiting import until

SEED = 25
#: Within this time a good version is served, and a damaged one refused.
SOON_S = 10.0
ONNX = "onnx/serving_default.onnx"


def copied(source: ModelVersion, model: Path, damage: Callable[[Path], None]) -> ModelVersion:
    """Puts a copy of a version in place as the next one, damaged before anybody sees it."""
    number = max(version.number for version in list_versions(model)) + 1
    with tempfile.TemporaryDirectory(prefix=".staging-", dir=model) as name:
        folder = Path(name) / "version"
        shutil.copytree(source.path, folder)
        manifest = read_manifest(source.path)
        (folder / MANIFEST_NAME).write_text(replace(manifest, version=number).to_json())
        damage(folder)
        folder.rename(model / str(number))
    return ModelVersion(number=number, path=model / str(number))


def removed(version: ModelVersion) -> None:
    """Takes a version away in one step."""
    shutil.rmtree(version.path.rename(version.path.with_name(f".removed-{version.number}")))


def refused(server: RunningServer, model: Path, version: ModelVersion, good: int, what: str) -> None:
    """Expects a version to be refused while another serves on, and to be called damaged."""
    until(
        lambda: states(server, model.name).get(version.number) == "END", SOON_S,
        lambda: f"{what}: version {version.number} is {states(server, model.name)}",
    )  # fmt: skip
    expect(good in available(server, model.name), f"{what}: {available(server, model.name)} serves, not {good}")
    try:
        verify_version(version)
    except ArtifactError:
        return
    raise Fault(f"{what}: repo verify calls version {version.number} whole")


def served(server: RunningServer, name: str, number: int, what: str, timeout_s: float = SOON_S) -> None:
    """Expects a version to serve soon."""
    until(lambda: number in available(server, name), timeout_s, f"{what}: version {number} does not serve")


def flip(name: Path, rng: random.Random, folder: Path) -> None:
    """Flips a bit anywhere in a file of a version."""
    path = folder / name
    content = bytearray(path.read_bytes())
    at, bit = rng.randrange(len(content)), rng.randrange(8)
    content[at] ^= 1 << bit
    path.write_bytes(content)


@case("repository", "bits flipped at random places of every file, a version each")
def flipped_bits(target: Target) -> Result:
    """Every file type of a version; the full run has those of a trained and exported model."""
    models = target.folder.parent / "models"
    model = models / "victim"
    if not target.short:
        model = models / "fashion"
        if not model.exists():
            publish_fashion(target.folder, epochs=1).rename(model)
        until(lambda: available(target.server, "fashion"), 60)
    source = list_versions(model)[-1]
    rng = random.Random(SEED)
    files = sorted(path.relative_to(source.path) for path in source.path.rglob("*") if path.is_file())
    done = 0
    for name in files:
        for _ in range(target.count(20, 3)):
            version = copied(source, model, partial(flip, name, rng))
            refused(target.server, model, version, source.number, f"seed {SEED}, flip {done} in {name}")
            removed(version)
            done += 1
    return Result(inputs=done, text=f"seed {SEED}; all refused and named, of {len(files)} files each")


def _no_file(kind: str, file: str, folder: Path) -> None:
    path = folder / file
    if kind == "truncated":
        os.truncate(path, path.stat().st_size // 2)
        return
    if kind == "link out":
        shutil.copy(path, outside := folder.parent.parent.parent / "outside.onnx")
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link out":
        path.symlink_to(outside)
    elif kind == "endless":
        path.symlink_to("/dev/zero")
    elif kind == "brackets":
        path.write_text("[" * 100_000)


KINDS = ("absent", "truncated", "pipe", "folder", "loop", "endless", "brackets", "link out")


@case("repository", "files that are none, and a good version after each")
def no_files(target: Target) -> Result:
    """Absent, truncated, pipes, folders, loops of links, endless devices, brackets, links that lead out."""
    model = target.folder.parent / "models" / "victim"
    slowest, done = 0.0, 0
    for kind in KINDS[:: target.count(1, 3)]:
        for file in (ONNX, MANIFEST_NAME):
            if (kind, file) in (("absent", MANIFEST_NAME), ("link out", MANIFEST_NAME)):
                # Without a manifest it is somebody else's version; a manifest may be a link.
                continue
            good = list_versions(model)[-1]
            version = copied(good, model, partial(_no_file, kind, file))
            refused(target.server, model, version, good.number, f"{kind} {file}")
            started = time.monotonic()
            newer = publish_affine(model, slope=2.0, intercept=1.0)
            served(target.server, "victim", newer.number, f"after {kind} {file}")
            slowest, done = max(slowest, time.monotonic() - started), done + 1
            removed(version)
    return Result(inputs=done, text="all refused and named", figures={"next_good_version_after_s": slowest})


@case("repository", "200 versions published and removed in two minutes", short=False)
def many_versions(target: Target) -> Result:
    """Two remain at any time; every answer is of a version that was there."""
    model = target.folder.parent / "models" / "victim"
    count, seconds = target.count(200, 10), target.count(120, 3)
    begin, answers = time.monotonic(), 0
    for number in range(count):
        publish_affine(model, slope=2.0, intercept=1.0)
        set_label(model, "stable", "latest")
        collect(model, keep=2)
        while time.monotonic() < begin + (number + 1) * seconds / count:
            answer = ask(target.server, "victim", x=float(number))
            expect(answer == 2.0 * number + 1, f"after {number} versions: {answer}")
            answers += 1
    newest = list_versions(model)[-1].number
    until(lambda: available(target.server, "victim") == {newest}, SOON_S)
    return Result(inputs=count, text=f"{answers:,} answers, all right; the newest version serves")


@case("repository", "a version copied file by file")
def half_copied(target: Target) -> Result:
    """As cp -r does it: the manifest first, or last; without one, a whole model is somebody else's version."""
    model = target.folder.parent / "models" / "victim"
    for turn in range(target.count(10, 2)):
        good = list_versions(model)[-1]
        files = [ONNX, MANIFEST_NAME] if turn % 2 else [MANIFEST_NAME, ONNX]
        number = good.number + 1
        folder = model / str(number)
        (folder / "onnx").mkdir(parents=True)
        for name in files:
            content = (good.path / name).read_bytes()
            if name == MANIFEST_NAME:
                content = replace(read_manifest(good.path), version=number).to_json().encode()
            for part in (content[: len(content) // 2], content[len(content) // 2 :]):
                time.sleep(0.15)
                with (folder / name).open("ab") as file:
                    file.write(part)
                answer = ask(target.server, "victim")
                expect(answer == 3.0, f"while {name} is copied: {answer}")
                whole = (folder / ONNX).exists() and (folder / ONNX).stat().st_size == (good.path / ONNX).stat().st_size
                expect(whole or number not in available(target.server, "victim"), "half a model is served")
        served(target.server, "victim", number, "the copy is whole")
    return Result(inputs=target.count(10, 2), text="served when the model is whole, never before")


def _closed(file: str, folder: Path) -> None:
    (folder / file).chmod(0)


@case("repository", "files that may not be read, until they may", own=True, short=False)
def permission_denied(scratch: Scratch) -> Result:
    """The server has lost root's right to read everything."""
    model = scratch.folder / "m"
    good = publish_affine(model, slope=2.0, intercept=1.0)
    with serve(
        model, model="m", log_dir=scratch.folder, flags=[f"--transport={scratch.transport}"],
        python=wrapped(scratch.folder, 'setpriv --bounding-set=-dac_override,-dac_read_search "$PYTHON" "$@"'),
    ) as server:  # fmt: skip
        for file in (ONNX, MANIFEST_NAME, "."):
            version = copied(good, model, partial(_closed, file))
            new = version.number
            until(lambda new=new: states(server, "m").get(new) == "END", SOON_S, f"{file} is refused")  # type: ignore[misc]
            expect(available(server, "m") == {good.number}, f"{file}: {available(server, 'm')}")
            (version.path / file).chmod(0o755)
            served(server, "m", version.number, f"{file} may be read")
            good = version
    return Result(inputs=3, text="served as soon as they may be read")


def wrapped(folder: Path, command: str) -> str:
    """An executable that starts Python by a command line of the shell."""
    path = folder / "python"
    path.write_text(f"#!/bin/sh\nPYTHON={sys.executable}\nexec {command}\n")
    path.chmod(0o755)
    return str(path)


@case("repository", "no room for the logs", own=True)
def full_disk(scratch: Scratch) -> Result:
    """No file may become larger than 16 kB, then any: answers go on, and so do the logs."""
    model, logs = scratch.folder / "m", scratch.folder / "logs"
    logs.mkdir()
    publish_affine(model, slope=2.0, intercept=1.0)
    logging = (
        f'logging_config {{ log_collector_config {{ type: "tfrecord" filename_prefix: "{logs}/p" }} '
        "sampling_config { sampling_rate: 1.0 } }"
    )
    entry = f'config {{ name: "m" base_path: "{model}" model_platform: "tensorflow" {logging} }}'
    (scratch.folder / "config").write_text(config_text(entry))
    count = scratch.count(2000, 300)
    with serve(
        None, model="m", log_dir=scratch.folder, flags=[
            f"--transport={scratch.transport}", f"--model_config_file={scratch.folder / 'config'}", "--access_log=all",
        ], python=wrapped(scratch.folder, 'prlimit --fsize=16384 "$PYTHON" "$@"'),
    ) as server:  # fmt: skip
        for number in range(count):
            answer = ask(server, "m", x=float(number))
            expect(answer == 2.0 * number + 1, f"request {number}: {answer}")
    kept, files = 0, sorted(logs.iterdir())
    for path in files:
        kept += len(list(read_records(path)))
    # One record of each file found no room.
    expect(count - len(files) <= kept <= count, f"{kept} of {count} records are in {len(files)} files")
    return Result(inputs=count, text=f"all answered; {kept:,} whole records in {len(files)} files of 16 kB")
