"""What a server is told: flags, files and limits."""

from modelyard.serving.config._batching import PER_MODEL_FILE, BatchParameters, read_batch_parameters
from modelyard.serving.config._complaints import Complaints
from modelyard.serving.config._flags import parse_flags
from modelyard.serving.config._models import (
    ModelConfig,
    VersionPolicy,
    describe_base_path,
    models_from_message,
    models_of_repository,
)
from modelyard.serving.config._option_groups import (
    AccessOptions,
    Form,
    InsecureAdmin,
    LifecycleOptions,
    LoadOptions,
    TelemetryOptions,
    TransportLimits,
    WatchOptions,
)
from modelyard.serving.config._options import FLAGS, ServerOptions
from modelyard.serving.config._prediction_log import PredictionLogConfig, PredictionLogLimits
from modelyard.serving.config._scratch import scratch_file
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

__all__ = [
    "AccessOptions",
    "BatchParameters",
    "Complaints",
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
    "describe_base_path",
    "models_from_message",
    "models_of_repository",
    "parse_flags",
    "read_batch_parameters",
    "read_text_proto",
    "read_tls_config",
    "read_traffic_file",
    "scratch_file",
]
