"""The log of predictions: upstream's ``logging_config`` of a model, and the flags for its files."""

from __future__ import annotations

import argparse
import os
from dataclasses import dataclass
from pathlib import Path

from modelyard.errors import ConfigurationError
from modelyard.wire import serving_pb2

#: The collector that is there; upstream's own server has none.
_COLLECTOR = "tfrecord"


@dataclass(frozen=True, kw_only=True)
class PredictionLogConfig:
    """What of one model's requests is logged, and where.

    Attributes:
        prefix: Files are called so, followed by a time; its folder exists.
        rate: Share of the requests, more than 0 and at most 1.
    """

    prefix: Path
    rate: float


@dataclass(frozen=True, kw_only=True)
class PredictionLogLimits:
    """When a file ends, and what waits for the disk.

    Attributes:
        max_bytes: Size of a file at which the next one begins.
        max_records: So, too; 0 for any number.
        max_age_s: So, too, in seconds since its first record.
        queue_bytes: Bytes of requests and answers that wait to be written; more are dropped.
    """

    max_bytes: int = 64 << 20
    max_records: int = 1000
    max_age_s: float = 600.0
    queue_bytes: int = 64 << 20


def prediction_log(item: serving_pb2.ModelConfig) -> PredictionLogConfig | None:
    """The log that a model's ``logging_config`` asks for; None where nothing is to be logged.

    Args:
        item: The model.

    Raises:
        ConfigurationError: It makes no sense, or its folder cannot be written to.
    """
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
    if not (prefix.parent.is_dir() and os.access(prefix.parent, os.W_OK | os.X_OK)):
        raise ConfigurationError(f"{place}: {prefix.parent} is no folder that the server may write to; make it first.")
    return PredictionLogConfig(prefix=prefix, rate=rate) if rate else None


def prediction_log_limits(args: argparse.Namespace) -> PredictionLogLimits:
    """The limits that flags set.

    Args:
        args: The flags.

    Raises:
        ConfigurationError: One makes no sense.
    """
    for name in ("bytes", "seconds"):
        value = getattr(args, f"prediction_log_max_{name}")
        if value <= 0:
            raise ConfigurationError(f"--prediction_log_max_{name}={value:g}; expected more than 0.")
    return PredictionLogLimits(
        max_bytes=args.prediction_log_max_bytes,
        max_records=args.prediction_log_max_records,
        max_age_s=args.prediction_log_max_seconds,
        queue_bytes=args.prediction_log_queue_bytes,
    )
