"""What a server is told: flags, files and limits."""

from modelyard.serving.config._access import AccessOptions, InsecureAdmin
from modelyard.serving.config._batching import PER_MODEL_FILE, BatchParameters, read_batch_parameters
from modelyard.serving.config._cpus import available_cpus
from modelyard.serving.config._flag_table import FLAGS
from modelyard.serving.config._flags import ServerOptions, parse_flags
from modelyard.serving.config._lifecycle import LifecycleOptions
from modelyard.serving.config._limits import TransportLimits
from modelyard.serving.config._load import LoadOptions
from modelyard.serving.config._models import (
    ModelConfig,
    VersionPolicy,
    describe_base_path,
    models_from_message,
    models_of_repository,
)
from modelyard.serving.config._prediction_log import PredictionLogConfig, PredictionLogLimits
from modelyard.serving.config._telemetry import Form, TelemetryOptions
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.serving.config._tls import TlsConfig, read_tls_config
from modelyard.serving.config._traffic import (
    RollbackLimits,
    TrafficOptions,
    TrafficRule,
    TrafficShadow,
    TrafficTarget,
    read_traffic_file,
)
from modelyard.serving.config._watch import WatchOptions

__all__ = [
    "AccessOptions",
    "BatchParameters",
    "FLAGS",
    "Form",
    "InsecureAdmin",
    "LifecycleOptions",
    "LoadOptions",
    "ModelConfig",
    "PER_MODEL_FILE",
    "PredictionLogConfig",
    "PredictionLogLimits",
    "RollbackLimits",
    "ServerOptions",
    "TelemetryOptions",
    "TlsConfig",
    "TrafficOptions",
    "TrafficRule",
    "TrafficShadow",
    "TrafficTarget",
    "TransportLimits",
    "VersionPolicy",
    "WatchOptions",
    "available_cpus",
    "describe_base_path",
    "models_from_message",
    "models_of_repository",
    "parse_flags",
    "read_batch_parameters",
    "read_text_proto",
    "read_tls_config",
    "read_traffic_file",
]
