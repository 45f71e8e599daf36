"""What a server is told: flags, files and limits."""

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
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.serving.config._tls import TlsConfig
from modelyard.serving.config._watch import WatchOptions

__all__ = [
    "BatchParameters",
    "FLAGS",
    "LifecycleOptions",
    "LoadOptions",
    "ModelConfig",
    "PER_MODEL_FILE",
    "ServerOptions",
    "TlsConfig",
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
]
