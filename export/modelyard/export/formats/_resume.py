"""Conversions that outlive their export: what was converted once is taken up by the next try.

Only conversions are kept, which are most of the work. Whatever is taken up is verified, measured and published anew, so
it is held to the same as a file that was converted a moment ago.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable
from importlib.metadata import version
from pathlib import Path

import numpy as np

from modelyard.artifact import VerificationData
from modelyard.errors import PublishError
from modelyard.export.formats._fingerprint import Digest
from modelyard.export.publish import ExportOptions
from modelyard.export.sources import Reference

_PACKAGES = ("tensorflow", "tf2onnx", "onnx", "onnxslim", "onnxruntime", "modelyard")
_DONE = "done.json"


class Conversions:
    """The conversions of one model, in a folder.

    Args:
        folder: Of all models.
        reference: The model.
        options: How it is converted.
        calibration: Examples that int8 is made with.
    """

    def __init__(
        self, folder: Path, reference: Reference, options: ExportOptions, *, calibration: VerificationData
    ) -> None:
        self._folder = folder / _fingerprint(reference, options, calibration if "int8" in options.precision else None)

    def run(self, key: str, staged: Path, convert: Callable[[], None]) -> None:
        """Converts, or takes up what an earlier try has converted."""
        kept = self._folder / key.replace("/", "_")
        try:
            if self._is_whole(kept):
                shutil.copytree(kept / "files", staged, dirs_exist_ok=True)
                return
            before = _digests(staged)
            convert()
            self._keep(kept, staged, {name for name, digest in _digests(staged).items() if before.get(name) != digest})
        except OSError as exc:
            raise PublishError(f"Conversions cannot be kept in {self._folder}: {exc}") from exc

    def _is_whole(self, kept: Path) -> bool:
        try:
            done = json.loads((kept / _DONE).read_text("utf-8"))
        except FileNotFoundError:
            return False
        except ValueError:
            done = None
        if done == _digests(kept / "files"):
            return True
        # Damaged: it is made again.
        shutil.rmtree(kept)
        return False

    def _keep(self, kept: Path, staged: Path, names: Iterable[str]) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".keeping-", dir=self._folder) as name:
            copy = Path(name) / "kept"
            for each in names:
                target = copy / "files" / each
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(staged / each, target)
            (copy / _DONE).write_text(json.dumps(_digests(copy / "files")), "utf-8")
            try:
                # In one step: a try that is killed leaves all of a conversion or nothing.
                os.rename(copy, kept)
            except OSError:
                # Another export of the same model was faster.
                if not (kept / _DONE).is_file():
                    raise


def _digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def _fingerprint(reference: Reference, options: ExportOptions, calibration: VerificationData | None) -> str:
    source, digest = reference.source, Digest()
    packages = {name: version(name) for name in _PACKAGES}
    digest.add(packages, options.opset, options.simplify, options.calibration_examples)
    digest.add(sorted(source.signatures.items()))
    for name, function in sorted(source.graphs.items()):
        digest.add(name)
        if function is not None:
            digest.add_function(function.get_concrete_function())
    for format, path in sorted(source.files.items()):
        digest.add(format, _digests(path) if path.is_dir() else path.read_bytes())
    for signature, inputs in sorted({} if calibration is None else calibration.inputs.items()):
        for name, array in sorted(inputs.items()):
            digest.add(signature, name, np.asarray(array))
    return digest.hex()
