"""The log of predictions: upstream's ``logging_config`` of a model, and the flags for its files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.serving.config._flag import flag
from modelyard.wire import serving_pb2

#: The only collector; upstream's own server has none.
_COLLECTOR = "tfrecord"


@dataclass(frozen=True, kw_only=True)
class PredictionLogConfig:
    """The share of a model's requests that are logged, and the prefix of the files' names."""

    prefix: Path
    rate: float


@dataclass(frozen=True, kw_only=True)
class PredictionLogLimits:
    """When a file of logged predictions ends, and what waits for the disk; fields are described by their flags."""

    max_bytes: int = flag(
        "prediction_log_max_bytes", 64 << 20,
        "a file of a model's logging_config ends at this size, and is renamed to what it is called",
        positive=True,
    )  # fmt: skip
    max_records: int = flag(
        "prediction_log_max_records", 1000,
        "so, too, at so many records; the default is the most that a warm-up file may have (0: any number)",
    )  # fmt: skip
    max_age_s: float = flag(
        "prediction_log_max_seconds", 600.0, "so, too, so long after its first record", positive=True
    )
    queue_bytes: int = flag(
        "prediction_log_queue_bytes", 64 << 20,
        "bytes of logged requests and answers that wait for the disk; more are dropped, and counted",
    )  # fmt: skip


def prediction_log(item: serving_pb2.ModelConfig) -> PredictionLogConfig | None:
    """The log that a model's ``logging_config`` requests; None for none."""
    if not item.HasField("logging_config"):
        return None
    collector, rate = item.logging_config.log_collector_config, item.logging_config.sampling_config.sampling_rate
    place = f"Model {item.name}: logging_config"
    if collector.type not in ("", _COLLECTOR):
        raise ConfigurationError(
            f"{place} has log_collector_config.type {collector.type!r}; expected {_COLLECTOR!r}, which is the one "
            "collector here."
        )
    if not 0 <= rate <= 1:
        raise ConfigurationError(f"{place} has sampling_config.sampling_rate {rate:g}; expected 0 to 1.")
    prefix = Path(collector.filename_prefix)
    if not prefix.is_absolute() or collector.filename_prefix.endswith("/"):
        raise ConfigurationError(
            f"{place} has log_collector_config.filename_prefix {collector.filename_prefix!r}; expected an absolute "
            "path and the beginning of a file's name, such as /var/log/modelyard/requests."
        )
    if not (os.path.isdir(prefix.parent) and os.access(prefix.parent, os.W_OK | os.X_OK)):
        raise ConfigurationError(f"{place}: {prefix.parent} is no folder that the server may write to; make it first.")
    return PredictionLogConfig(prefix=prefix, rate=rate) if rate else None
