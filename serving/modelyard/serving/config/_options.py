"""All options of a server, each beside the flag that sets it: the command line, its help and the docs are made of them.

A field takes the flag's value as it is, or as ``read`` makes it; one made by
``set_by`` depends on several flags, and :func:`parse_flags` finds its value.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from dataclasses import dataclass

from modelyard.artifact import Location, locate
from modelyard.errors import ConfigurationError
from modelyard.serving.config._batching import BatchParameters
from modelyard.serving.config._flag import (
    INT32_MAX,
    MOST_THREADS,
    Flag,
    flag,
    flags_of,
    group,
    ignored,
    location_or_none,
    milliseconds,
    same,
    set_by,
    upstream,
)
from modelyard.serving.config._models import ModelConfig
from modelyard.serving.config._option_groups import (
    FOREVER_S,
    AccessOptions,
    LifecycleOptions,
    LoadOptions,
    TelemetryOptions,
    TransportLimits,
    WatchOptions,
)
from modelyard.serving.config._prediction_log import PredictionLogLimits
from modelyard.serving.config._text_proto import read_text_proto
from modelyard.serving.config._tls import TlsConfig
from modelyard.serving.config._traffic import TrafficOptions
from modelyard.wire import config_pb2

_LOG = logging.getLogger("modelyard.serving")

#: While a card computes one batch, the next is copied to it. Four serve a fifth more of 8 in flight, and less of 128.
_CARD_BATCHES = 2
#: Where scrapers look by default, and where upstream has the page once a file enables it.
_METRICS_PATH = "/metrics"
_UPSTREAM_METRICS_PATH = "/monitoring/prometheus/metrics"


def transport_of(wanted: str) -> str:
    """The transport of both ports, ``native`` or ``python``; where ``wanted`` is empty, the one that is installed."""
    if wanted == "python" or importlib.util.find_spec("modelyard_core") is not None:
        return wanted or "native"
    if wanted:
        raise ConfigurationError(
            "--transport=native needs modelyard_core, which is not installed: build it with make install, which needs "
            "Rust, or use --transport=python."
        )
    _LOG.warning("modelyard_core is not installed: uvicorn and grpc.aio serve (--transport=python), which is slower")
    return "python"


def _channel_arguments(text: str) -> tuple[tuple[str, int | str], ...]:
    arguments: list[tuple[str, int | str]] = []
    for item in filter(None, text.split(",")):
        name, equals, value = item.partition("=")
        if not equals:
            raise ConfigurationError(f"--grpc_channel_arguments has {item!r}; expected name=value.")
        number = int(value) if value.removeprefix("-").isdecimal() else None
        # gRPC takes arguments as 32-bit numbers or as text.
        is_number = number is not None and -INT32_MAX - 1 <= number <= INT32_MAX
        arguments.append((name, number if number is not None and is_number else value))
    return tuple(arguments)


def _metrics_paths(path: str) -> tuple[str, ...]:
    if not path:
        return (_METRICS_PATH,)
    config = read_text_proto(locate(path), config_pb2.MonitoringConfig(), flag="--monitoring_config_file")
    if not config.prometheus_config.enable:
        return ()
    page = config.prometheus_config.path
    if page and not page.startswith("/"):
        raise ConfigurationError(
            f"--monitoring_config_file={path}: prometheus_config.path is {page!r}; expected a path from the root, such "
            f"as {'/' + page!r}."
        )
    return (page or _UPSTREAM_METRICS_PATH, _METRICS_PATH)


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """What a server is started with; fields that are not listed are described by their flags.

    Attributes:
        models: The models to serve.
        model_config_file: The file that ``models`` came from, to poll; None for none.
        model_config_poll_s: Seconds between two polls of it; 0 for never.
        model_repository: The folder that ``models`` were found in, to poll as base paths are; None for none.
        batching: How requests are batched; None for not at all.
        warmup_iterations: How often warm-up records are replayed; 0 for never.
        metrics_paths: Where the Prometheus page is.
        threads: Threads of each model that compute predictions, and that decode requests.
        tls: Key and certificate; None for plain text.
        traffic: Which versions answer requests that name none; None for the newest.
        rest_timeout_s: In seconds, as ``max_queue_delay_s`` and ``autotune_latency_s`` are.
    """

    port: int = upstream("port", 8500, "gRPC port, 0 for none")
    grpc_socket_path: str = upstream("grpc_socket_path", "", "also listen for gRPC on this UNIX socket")
    rest_api_port: int = upstream("rest_api_port", 0, "REST port, 0 for none")
    rest_timeout_s: float = upstream(
        "rest_api_timeout_in_ms", 30000, "time that a REST request may take (0 or less: any)",
        read=lambda milliseconds: milliseconds / 1e3 if milliseconds > 0 else FOREVER_S, least=-math.inf,
    )  # fmt: skip
    cors: bool = upstream("rest_api_enable_cors_support", False, "answer with CORS headers")
    grpc_channel_arguments: tuple[tuple[str, int | str], ...] = upstream(
        "grpc_channel_arguments", "", "gRPC channel arguments, such as grpc.max_connection_age_ms=2000",
        read=_channel_arguments,
    )  # fmt: skip
    health: bool = upstream(
        "enable_grpc_healthcheck_service", True, "serve grpc.health.v1",
        "on by default, and it tells the truth: the server as a whole, each service, and each model by its name",
    )  # fmt: skip
    access: AccessOptions = group(AccessOptions)
    tls: TlsConfig | None = None
    models: tuple[ModelConfig, ...] = set_by(
        (),
        same("model_name", "default", "name of the model in requests"),
        same("model_base_path", "", "absolute path of the directory with the model's versions"),
    )
    model_config_file: Location | None = upstream(
        "model_config_file", "", "ModelServerConfig: several models, version policies, labels", read=location_or_none
    )
    model_config_poll_s: float = upstream(
        "model_config_file_poll_wait_seconds", 0, "seconds between two looks at that file, 0 for once",
        least=-math.inf,
    )  # fmt: skip
    watch: WatchOptions = group(WatchOptions)
    load: LoadOptions = group(LoadOptions)
    allow_new_labels: bool = upstream(
        "allow_version_labels_for_unavailable_models", False, "new labels may point to versions not loaded"
    )
    batching: BatchParameters | None = set_by(
        None,
        same("enable_batching", False, "collect requests into batches"),
        same("batching_parameters_file", "", "BatchingParameters; needs --enable_batching"),
        Flag(
            name="batching_zero_padding", default=False,
            help="with pad_variable_length_inputs, pad with zeros (or empty strings) and not with a tensor's first "
            "element",
        ),
    )  # fmt: skip
    per_model_batching: bool = upstream(
        "enable_per_model_batching_parameters", False, "read batching_params.pbtxt of each version"
    )
    warmup_iterations: int = set_by(
        1,
        same("enable_model_warmup", True, "replay assets.extra/tf_serving_warmup_requests before serving"),
        same(
            "num_request_iterations_for_warmup",
            0,
            "how often each record is replayed (0 or less: once)",
            least=-math.inf,
        ),
    )
    metrics_paths: tuple[str, ...] = upstream(
        "monitoring_config_file", "", "MonitoringConfig: serve Prometheus metrics on the REST port",
        "they are at /metrics, too, which needs no file; one that does not enable Prometheus closes both",
        read=_metrics_paths,
    )  # fmt: skip
    threads: int = set_by(
        2, same("tensorflow_session_parallelism", 0, "threads that predict (0: cores)", most=MOST_THREADS)
    )
    check_methods: bool = upstream(
        "enable_signature_method_name_check", False, "refuse calls by another method than the signature's"
    )
    tensor_content: bool = upstream(
        "enable_serialization_as_tensor_content", False, "gRPC answers carry tensor_content"
    )
    model_repository: Location | None = set_by(
        None,
        Flag(
            name="model_repository", default="",
            help="folder of models, instead of the flags for one: all are served by the names of their folders, and "
            "new and removed ones are seen as new versions are (--file_system_poll_wait_seconds)",
        ),
    )  # fmt: skip
    traffic: TrafficOptions | None = set_by(
        None,
        Flag(
            name="version_traffic_file", default="",
            help="which versions answer requests that name none: splits by weight, header or sticky key, shadows, and "
            "limits that roll back; looked at again while it runs (docs/rollouts.md)",
        ),
        Flag(
            name="version_traffic_state_file", default="",
            help="file that keeps rollbacks over restarts; empty: a restart begins without them",
        ),
    )  # fmt: skip
    transport: str = flag(
        "transport", "",
        "what serves both ports: native (modelyard_core; default where it is installed) or python (uvicorn and "
        "grpc.aio, which are slower)",
        choices=("native", "python"), read=transport_of,
    )  # fmt: skip
    reflection: bool = flag(
        "enable_grpc_reflection", True, "serve grpc.reflection, so that grpcurl needs no proto files"
    )
    rest_tls: bool = flag("rest_api_ssl", True, "with --ssl_config_file, serve REST with TLS too")
    max_body_bytes: int = flag("rest_api_max_body_bytes", 100 << 20, "largest REST body")
    # Python's reader of JSON ends at some 900 levels.
    max_json_depth: int = flag("rest_api_max_json_depth", 100, "deepest nesting of a REST body, up to 500", most=500)
    limits: TransportLimits = group(TransportLimits)
    strict_json: bool = flag(
        "rest_api_strict_json", False, "refuse to answer NaN and Infinity, which strict parsers cannot read"
    )
    rest_extensions: bool = flag(
        "rest_api_extensions", False,
        "REST: half, bfloat16 and uint16 in JSON, and inputs that have defaults may be left out",
    )  # fmt: skip
    sagemaker: bool = flag(
        "sagemaker", False,
        "answer /ping and /invocations on SageMaker's port; its argument serve switches this on too",
    )  # fmt: skip
    console: bool = flag(
        "console", False,
        "serve pages for people at /console: models, versions and why one failed, forms to try signatures, export "
        "reports, live numbers",
    )  # fmt: skip
    greedy_batching: bool = flag(
        "greedy_batching", True,
        "compute requests that are there at the same time together; nothing waits, and only models are batched whose "
        "rows do not depend on each other: as the export has proven or, for ONNX files, an experiment at loading shows",
    )  # fmt: skip
    max_batch_rows: int = flag(
        "max_batch_rows", 64, "rows that are computed together at most, with --greedy_batching",
        read=lambda rows: rows or 1,
    )  # fmt: skip
    max_queued_requests: int = flag(
        "max_queued_requests", 10_000, "requests that may wait for one model; more are refused (0: any number)"
    )
    max_queue_delay_s: float = flag(
        "max_queue_delay_ms", 0.0,
        "refuse a request that would wait longer than this, by what is queued and what it takes (0: any time)",
        read=milliseconds,
    )  # fmt: skip
    prediction_log: PredictionLogLimits = group(PredictionLogLimits)
    telemetry: TelemetryOptions = group(TelemetryOptions)
    lifecycle: LifecycleOptions = group(LifecycleOptions)
    autotune_file: str = flag(
        "autotune", "",
        "do not serve: measure the model, and write the flags to this file that serve the most within "
        "--autotune_latency_ms: threads, instances, rows of a batch",
    )  # fmt: skip
    autotune_latency_s: float = flag(
        "autotune_latency_ms", 50.0, "longest time of a request, without the network, for --autotune",
        read=milliseconds,
    )  # fmt: skip

    @property
    def parallel_batches(self) -> int:
        """Batches of a model that are computed at the same time."""
        given = None if self.batching is None else self.batching.threads
        return given or (min(self.threads, _CARD_BATCHES) if self.load.device.startswith("cuda") else self.threads)


_NO_TENSORFLOW = "models run without TensorFlow's C++ server; nothing replaces it because nothing needs it"
_NO_GPU = "a graphics card is used with --device alone, and its runtime takes the memory that it needs"

FLAGS: tuple[Flag, ...] = (
    *flags_of(ServerOptions),
    Flag(
        name="flagfile", default="",
        help="a file of flags, one on a line, read as if they stood here; lines that begin with # are comments",
    ),
    same("version", False, "print the version and exit"),
    ignored("rest_api_num_threads", 0, "one event loop takes all; see --tensorflow_session_parallelism"),
    ignored("grpc_max_threads", 0, "one event loop takes all; see --tensorflow_session_parallelism"),
    ignored("use_alts_credentials", False, "ALTS exists on Google's cloud only; use --ssl_config_file"),
    ignored("num_unload_threads", 0, "each model unloads on a thread of its own"),
    ignored("flush_filesystem_caches", True, "the operating system's page cache is its own to manage"),
    ignored("enable_profiler", True, "TensorFlow's profiler is not in this server; use py-spy"),
    ignored("tensorflow_inter_op_parallelism", 0, "the runtimes here run one op at a time"),
    ignored("tensorflow_session_config_file", "", _NO_TENSORFLOW),
    ignored("platform_config_file", "", _NO_TENSORFLOW),
    ignored("per_process_gpu_memory_fraction", 0.0, _NO_GPU),
    ignored("remove_unused_fields_from_bundle_metagraph", True, "only signatures are ever read"),
    ignored("num_tflite_interpreters_per_pool", 1, "there is one pool; see --num_tflite_pools"),
    ignored("xla_cpu_compilation_enabled", False, _NO_TENSORFLOW),
    ignored("xla_gpu_compilation_enabled", False, _NO_TENSORFLOW),
    ignored("thread_pool_factory_config_file", "", "see --tensorflow_session_parallelism"),
    ignored("mixed_precision", "", "export a variant of that precision instead; it is verified there"),
    ignored("skip_initialize_tpu", False, "there is no TPU backend"),
)  # fmt: skip
