"""What is changed, and the tests that must notice it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_SERVING = "serving/modelyard/serving"
_CORE = "serving/core/src"


@dataclass(frozen=True, kw_only=True)
class Area:
    """Modules of one language, and the tests that must notice what changes in them."""

    modules: Sequence[str]
    tests: Sequence[str]
    native: bool = False


def _contract(*names: str) -> list[str]:
    return [f"tests/contract/test_{name}.py" for name in names]


#: Of the native core, Rust's own tests come after these.
AREAS = {
    "codecs": Area(modules=["clients/modelyard/wire/_*.py"], tests=["tests/wire"]),
    "manifest": Area(
        modules=["export/modelyard/artifact/_manifest*.py"], tests=["tests/artifact/test_manifest.py", "tests/artifact"]
    ),
    "repository": Area(
        modules=[f"{_SERVING}/repository/_{name}.py" for name in ("manager", "table", "versions", "watcher")],
        tests=["tests/serving/repository", *_contract("lifecycle", "labels", "repository", "hanging")],
    ),
    "batching": Area(
        modules=[f"{_SERVING}/batching/_{name}.py" for name in ("batcher", "counts", "queue", "sharing")],
        tests=["tests/serving/batching", *_contract("batching", "hanging")],
    ),
    "admission": Area(
        modules=[f"{_SERVING}/batching/_admission.py"],
        tests=["tests/serving/batching", *_contract("overload")],
    ),
    "native codecs": Area(
        native=True,
        modules=[f"{_CORE}/forms/*.rs"],
        tests=["tests/serving/core", *_contract("grpc", "oip_rest", "oip_grpc", "rest")],
    ),
    "native batching": Area(
        native=True,
        modules=[f"{_CORE}/batch/*.rs", f"{_CORE}/predict/*.rs", f"{_CORE}/cost.rs"],
        tests=["tests/serving/core", *_contract("batching", "labels", "in_flight", "overload")],
    ),
    "native transports": Area(
        native=True,
        modules=[f"{_CORE}/transport/*.rs", f"{_CORE}/frame_budget.rs"],
        tests=["tests/serving/core", *_contract("wrong_port", "in_flight", "grpc", "noise", "tls", "headers")],
    ),
}  # fmt: skip
