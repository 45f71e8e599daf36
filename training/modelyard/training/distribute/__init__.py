"""Several devices, processes and machines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach
from modelyard.training.distribute._cluster import STRATEGIES, TF_CONFIG, Cluster, parse_cluster
from modelyard.training.distribute._local_cluster import LocalClusterOptions, run_local_cluster

if TYPE_CHECKING:
    from modelyard.training.distribute._devices import check_devices
    from modelyard.training.distribute._offload import offload_slots
    from modelyard.training.distribute._peers import Peers
    from modelyard.training.distribute._pipelined import Pipeline, PipelineOptions, PipelineResult
    from modelyard.training.distribute._strategy import make_strategy, serve_chief

__all__ = [
    "Cluster",
    "LocalClusterOptions",
    "Peers",
    "Pipeline",
    "PipelineOptions",
    "PipelineResult",
    "STRATEGIES",
    "TF_CONFIG",
    "check_devices",
    "make_strategy",
    "offload_slots",
    "parse_cluster",
    "run_local_cluster",
    "serve_chief",
]

__getattr__, __dir__ = attach(__name__, extra="training")
