"""``modelyard repo``: looks into a model repository and keeps it in order."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from modelyard.artifact._catalog import (
    VersionInfo,
    describe_model,
    diff_versions,
    find_version,
    list_models,
    verify_version,
)
from modelyard.artifact._maintain import (
    DEFAULT_LABEL,
    collect,
    promote,
    remove_label,
    remove_version,
    set_label,
    sign_version,
)
from modelyard.artifact._manifest import read_manifest
from modelyard.artifact._manifest_parts import PRECISIONS
from modelyard.artifact._remote import Location, locate
from modelyard.artifact._repository import AnyVersion, list_versions
from modelyard.artifact._signature import DEFAULT_SIGNATURE
from modelyard.artifact._signing import generate_key, load_signing_key, load_trusted_keys
from modelyard.console import make_command, printable, write_error
from modelyard.errors import ArtifactError, ConfigurationError, ModelNotFoundError, ModelyardError

_EXAMPLES = """\
examples:
  modelyard repo ls models                       every model and version
  modelyard repo show models/fashion latest      the manifest of one version
  modelyard repo verify models                   recompute every checksum
  modelyard repo diff models/fashion 3 4         what version 4 changed
  modelyard repo promote models/fashion 4        verify it, then label it stable
  modelyard repo label models/fashion canary latest
  modelyard repo gc models/fashion --keep 3      keep the newest three, and what has a label
  modelyard repo gc models --keep 3              the same for every model
  modelyard repo ls s3://bucket/models           the same in an object store; gs:// and file://, too
  modelyard repo bundle models/fashion --output fashion.tflite     one file for phones, with labels
  modelyard repo keygen key.pem                  a key pair: key.pem signs, key.pub.pem is trusted
  modelyard repo sign models/fashion 4 --signing-key key.pem
  modelyard repo verify models --trusted-key key.pub.pem
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard repo``."""
    description = "Look into a model repository and keep it in order. A version is its number, a label, or latest."
    parser = make_command("modelyard repo", description, _EXAMPLES)
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)

    def add(name: str, summary: str, *, model: bool = True) -> argparse.ArgumentParser:
        command = commands.add_parser(name, help=summary, description=summary)
        command.add_argument(
            "path", metavar="REPO/MODEL" if model else "PATH", type=_path, help=("folder of the model" if model else
            "folder of a repository, or of one model in it") + "; or its URL in an object store",
        )  # fmt: skip
        return command

    add("ls", "list models and versions with size, metric, formats and labels", model=False)
    add("show", "print the manifest of a version").add_argument(
        "version", metavar="VERSION", nargs="?", default="latest"
    )
    add("verify", "recompute every checksum, and check signatures", model=False).add_argument(
        "--trusted-key", type=Path, action="append", default=[], metavar="PUB.PEM",
        help="every version must be signed by this public key; may be given more than once",
    )  # fmt: skip
    diff = add("diff", "compare two versions: signatures, metrics, latency, files")
    diff.add_argument("before", metavar="BEFORE")
    diff.add_argument("after", metavar="AFTER")
    promotion = add("promote", "verify a version, then give it a label")
    promotion.add_argument("version", metavar="VERSION")
    promotion.add_argument("--label", default=DEFAULT_LABEL, help="the label (default: %(default)s)")
    label = add("label", "give a version a label, or remove one")
    label.add_argument("label", metavar="LABEL")
    label.add_argument("version", metavar="VERSION", nargs="?", help="absent: remove the label")
    garbage = add("gc", "remove all but the newest versions of each model, and what crashed exports left", model=False)
    garbage.add_argument("--keep", type=int, required=True, metavar="N", help="how many of the newest of a model stay")
    add("rm", "remove one version").add_argument("version", metavar="VERSION")
    bundle = add("bundle", "write one TFLite file for phones, with the labels and Google's metadata in it")
    bundle.add_argument("version", metavar="VERSION", nargs="?", default="latest")
    bundle.add_argument("--output", type=Path, required=True, metavar="FILE.tflite", help="the file to write")
    bundle.add_argument("--signature", default=DEFAULT_SIGNATURE, help="whose graph (default: %(default)s)")
    bundle.add_argument(
        "--precision", choices=PRECISIONS, default="float32", help="which of its files (default: %(default)s)"
    )
    bundle.add_argument("--outputs", nargs="+", metavar="OUTPUT", help="which outputs (default: those of floats)")
    bundle.add_argument(
        "--labels", type=Path, metavar="FILE", help="a name of a class in each line (default: those in the graph)"
    )
    for name in ("--mean", "--std"):
        bundle.add_argument(
            name, nargs="+", type=float, metavar="X", help="the input is an image, and takes (pixel - mean) / std; one "
            "number, or one for each channel (default: what the version's image signature does)",
        )  # fmt: skip
    sign = add("sign", "verify a version, then sign its manifest")
    sign.add_argument("version", metavar="VERSION")
    sign.add_argument("--signing-key", type=Path, required=True, metavar="KEY.PEM", help="private Ed25519 key")
    keygen = commands.add_parser(
        "keygen", help="make a key pair for signatures", description="Make an Ed25519 key pair."
    )
    keygen.add_argument("key", type=Path, metavar="KEY.PEM", help="where the private key goes; a new file")
    return parser


def main(argv: list[str]) -> int:
    """Runs one command and returns the exit code: 1 on an error or a damaged version, 2 on wrong arguments."""
    arguments = make_parser().parse_args(argv)
    commands: Mapping[str, Callable[[argparse.Namespace], int]] = {
        "ls": _ls, "show": _show, "verify": _verify, "diff": _diff, "promote": _promote, "label": _label, "gc": _gc,
        "rm": _rm, "sign": _sign, "keygen": _keygen, "bundle": _bundle,
    }  # fmt: skip
    try:
        return commands[arguments.command](arguments)
    except ModelyardError as exc:
        write_error(f"repo {arguments.command}", exc.message)
        return 2 if isinstance(exc, ConfigurationError) else 1


def _path(text: str) -> Location:
    try:
        return locate(text)
    except ConfigurationError as exc:
        raise argparse.ArgumentTypeError(exc.message) from exc


def _models(path: Location) -> list[Location]:
    try:
        models = [path] if _versions(path) else [path / name for name in list_models(path)]
    except (FileNotFoundError, NotADirectoryError) as exc:
        raise ModelNotFoundError(f"{path} is no folder; expected a model repository or one model of it.") from exc
    except OSError as exc:
        raise ArtifactError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    if not models and path.name.isdecimal():
        raise ModelNotFoundError(
            f"{path} is the folder of a version; expected a model repository or one model of it, such as {path.parent}."
        )
    return models


def _ls(arguments: argparse.Namespace) -> int:
    rows: list[tuple[str, ...]] = [("MODEL", "VERSION", "SIZE", "METRIC", "FORMATS", "LABELS", "CREATED")]
    code = _for_each_model(arguments, lambda model: rows.extend(map(_row, describe_model(model))))
    _write(_table(rows))
    return code


def _for_each_model(arguments: argparse.Namespace, work: Callable[[Location], object]) -> int:
    """Works on every model; one that is damaged is named, and takes nothing from the others. Returns the exit code."""
    code = 0
    # A folder without versions may be a model that has the rests of a crashed export alone.
    for model in _models(arguments.path) or [arguments.path]:
        try:
            work(model)
        except ArtifactError as exc:
            write_error(f"repo {arguments.command}", exc.message)
            code = 1
    return code


def _row(info: VersionInfo) -> tuple[str, ...]:
    size = f"{info.bytes / 1e6:.1f} MB"
    if info.manifest is None:
        return (info.model, str(info.version.number), size, "", "(no valid manifest)", ",".join(info.labels), "")
    metrics = info.manifest.source.metrics
    metric = next((f"{name} {metrics[name]:.4g}" for name in sorted(metrics, key=_by_importance)), "")
    formats = ",".join(sorted(info.manifest.formats))
    return (info.model, str(info.version.number), size, metric, formats, ",".join(info.labels), info.manifest.created)


def _by_importance(metric: str) -> tuple[bool, bool, str]:
    return not metric.startswith("test_"), "accuracy" not in metric, metric


def _show(arguments: argparse.Namespace) -> int:
    version = find_version(arguments.path, arguments.version)
    _write(json.dumps(json.loads(read_manifest(version.path).to_json()), indent=2).splitlines())
    return 0


def _verify(arguments: argparse.Namespace) -> int:
    seen = damaged = 0
    keys = load_trusted_keys(arguments.trusted_key)
    models = _models(arguments.path)
    if models == [arguments.path]:
        # A version beside models hides none of them: servers of the repository take these.
        models += [arguments.path / name for name in list_models(arguments.path)]
    for model in models:
        for version in _versions(model):
            try:
                seen += 1
                manifest = verify_version(version, trusted_keys=keys)
                signed = ", signed" if keys else ""
                files = f"{len(manifest.files)} file{'s' * (len(manifest.files) != 1)}"
                _write([f"ok       {model.name} {version.number} ({files}{signed})"])
            except ArtifactError as exc:
                if isinstance(version.path, Path) and not os.path.lexists(version.path):
                    # It was removed meanwhile.
                    continue
                damaged += 1
                _write([f"DAMAGED  {model.name} {version.number}: {exc.message}"])
    if not seen:
        raise ModelNotFoundError(f"{arguments.path} has no version; expected a model repository or one model of it.")
    return 1 if damaged else 0


def _diff(arguments: argparse.Namespace) -> int:
    before, after = (
        read_manifest(find_version(arguments.path, name).path) for name in (arguments.before, arguments.after)
    )
    rows = [(each.what, each.before or "-", each.after or "-") for each in diff_versions(before, after)]
    _write(
        _table([("", f"VERSION {before.version}", f"VERSION {after.version}"), *rows]) if rows else ["No difference."]
    )
    return 0


def _promote(arguments: argparse.Namespace) -> int:
    version = promote(arguments.path, arguments.version, label=arguments.label)
    return _say(arguments, version, f"verified and labelled {arguments.label}")


def _label(arguments: argparse.Namespace) -> int:
    if arguments.version is None:
        remove_label(arguments.path, arguments.label)
        _write([f"{arguments.path.name}: label {arguments.label} removed"])
        return 0
    return _say(arguments, set_label(arguments.path, arguments.label, arguments.version), f"labelled {arguments.label}")


def _gc(arguments: argparse.Namespace) -> int:
    def work(model: Location) -> None:
        if isinstance(model, Path) and not model.resolve().is_relative_to(arguments.path.resolve()):
            raise ArtifactError(
                f"{model} is a link out of {arguments.path}: nothing is removed there. Name it itself if it is meant."
            )
        collected = collect(model, keep=arguments.keep)
        numbers = ", ".join(map(str, collected.versions)) or "none"
        _write([f"{model.name}: versions removed: {numbers}; staging directories: {len(collected.staging)}"])

    return _for_each_model(arguments, work)


def _rm(arguments: argparse.Namespace) -> int:
    return _say(arguments, remove_version(arguments.path, arguments.version), "removed")


def _bundle(arguments: argparse.Namespace) -> int:
    from modelyard.artifact.bundle import BundleOptions, write_bundle

    try:
        labels = arguments.labels and arguments.labels.read_text("utf-8").splitlines()
    except (OSError, ValueError) as exc:
        raise ConfigurationError(f"--labels {arguments.labels} cannot be read: {exc}") from exc
    options = BundleOptions(
        signature=arguments.signature, precision=arguments.precision, outputs=arguments.outputs, labels=labels,
        mean=arguments.mean, std=arguments.std,
    )  # fmt: skip
    version = find_version(arguments.path, arguments.version)
    bundle = write_bundle(version, arguments.output, options)
    _write([f"{arguments.path.name} version {version.number}: {bundle}"])
    return 0


def _sign(arguments: argparse.Namespace) -> int:
    signer = load_signing_key(arguments.signing_key)
    return _say(arguments, sign_version(arguments.path, arguments.version, signer), "verified and signed")


def _keygen(arguments: argparse.Namespace) -> int:
    public = generate_key(arguments.key)
    (key,) = load_trusted_keys([public])
    _write([f"{arguments.key}: private key, to sign with", f"{public}: public key, to trust ({key.fingerprint})"])
    return 0


def _versions(model: Location) -> Sequence[AnyVersion]:
    return list_versions(model)


def _say(arguments: argparse.Namespace, version: AnyVersion, what: str) -> int:
    _write([f"{arguments.path.name} version {version.number}: {what}"])
    return 0


def _table(rows: Sequence[Sequence[str]]) -> list[str]:
    rows = [[printable(cell) for cell in row] for row in rows]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]


def _write(lines: Iterable[str]) -> None:
    sys.stdout.write("\n".join(map(printable, lines)) + "\n")
