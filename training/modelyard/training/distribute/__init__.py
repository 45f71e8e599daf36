"""Several devices, processes and machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.lazy import load_attribute

if TYPE_CHECKING:
    from modelyard.training.distribute._cluster import TF_CONFIG, Cluster, parse_cluster
    from modelyard.training.distribute._devices import check_devices
    from modelyard.training.distribute._local_cluster import LocalClusterOptions, run_local_cluster
    from modelyard.training.distribute._offload import offload_slots
    from modelyard.training.distribute._peers import Peers
    from modelyard.training.distribute._pipelined import Pipeline, PipelineOptions, PipelineResult
    from modelyard.training.distribute._strategy import make_strategy, serve_chief

_MODULES = {
    "Cluster": "modelyard.training.distribute._cluster",
    "LocalClusterOptions": "modelyard.training.distribute._local_cluster",
    "Peers": "modelyard.training.distribute._peers",
    "Pipeline": "modelyard.training.distribute._pipelined",
    "PipelineOptions": "modelyard.training.distribute._pipelined",
    "PipelineResult": "modelyard.training.distribute._pipelined",
    "TF_CONFIG": "modelyard.training.distribute._cluster",
    "check_devices": "modelyard.training.distribute._devices",
    "make_strategy": "modelyard.training.distribute._strategy",
    "offload_slots": "modelyard.training.distribute._offload",
    "parse_cluster": "modelyard.training.distribute._cluster",
    "run_local_cluster": "modelyard.training.distribute._local_cluster",
    "serve_chief": "modelyard.training.distribute._strategy",
}

__all__ = [
    "Cluster",
    "LocalClusterOptions",
    "Peers",
    "Pipeline",
    "PipelineOptions",
    "PipelineResult",
    "TF_CONFIG",
    "check_devices",
    "make_strategy",
    "offload_slots",
    "parse_cluster",
    "run_local_cluster",
    "serve_chief",
]


def __dir__() -> list[str]:
    return __all__


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _MODULES, name, extra="training")
