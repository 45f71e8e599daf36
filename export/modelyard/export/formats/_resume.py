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
from typing import Any

import numpy as np

from modelyard.errors import PublishError
from modelyard.export.publish import ExportOptions
from modelyard.export.sources import Reference

_PACKAGES = ("tensorflow", "tf2onnx", "onnx", "onnxslim", "onnxruntime", "modelyard")
_DONE = "done.json"


class Conversions:
    """The conversions of one model, in a folder."""

    def __init__(self, folder: Path, reference: Reference, options: ExportOptions) -> None:
        self._folder = folder / _fingerprint(reference, options)

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


def _fingerprint(reference: Reference, options: ExportOptions) -> str:
    digest = hashlib.sha256()

    def add(*parts: Any) -> None:
        for part in parts:
            content = part if isinstance(part, bytes) else repr(part).encode()
            digest.update(len(content).to_bytes(8, "big") + content)

    add({name: version(name) for name in _PACKAGES}, options.opset, options.simplify, options.calibration_examples)
    add(sorted(reference.source.signatures.items()))
    for name, function in sorted(reference.source.graphs.items()):
        add(name)
        for variable in () if function is None else function.get_concrete_function().variables:
            add(tuple(variable.shape), variable.numpy().tobytes())
    for signature, batches in sorted(reference.outputs.items()):
        for size, outputs in sorted(batches.items()):
            # Random ones are others in every try.
            kept = {key: values for key, values in outputs.items() if key not in reference.draws.get(signature, {})}
            for output, values in sorted(kept.items()):
                array = np.asarray(values)
                add(signature, size, output, array.tolist() if array.dtype == object else array.tobytes())
    return digest.hexdigest()[:24]
