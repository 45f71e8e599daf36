"""How versions are loaded."""

from __future__ import annotations

from dataclasses import dataclass

from modelyard.artifact import TrustedKey
from modelyard.serving.backends import Runtime


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How versions are loaded.

    Attributes:
        runtime: Use this runtime and no other; None for the manifest's choice,
            or else the first that is installed and has a file to run: openvino
            only where no other is.
        precision: Use files of this precision; None for the manifest's choice
            for the runtime, or else float32.
        threads: Intra-op threads of a runtime; None for the manifest's choice for
            it, as far as this machine has them, or else one.
        cpus: CPUs that this process may use, and no more threads than these; None for all.
        interpreters: LiteRT interpreters, or OpenVINO requests, per version.
        prefer_tflite: ``model.tflite`` wins over every other file.
        tags: Tags of a SavedModel's meta graph.
        trusted_keys: Where there are some, versions must be signed by one of them.
    """

    runtime: Runtime | None = None
    precision: str | None = None
    threads: int | None = None
    cpus: int | None = None
    interpreters: int = 1
    prefer_tflite: bool = False
    tags: tuple[str, ...] = ("serve",)
    trusted_keys: tuple[TrustedKey, ...] = ()
