"""Every flag of tensorflow_model_server and what it does here, and the flags that are ours.

The command line, its help and ``docs/migrating-from-tensorflow-serving.md`` are
all made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["bool", "int", "float", "text", "texts"]
Effect = Literal["same", "better", "ignored", "ours"]


@dataclass(frozen=True, kw_only=True)
class Flag:
    """One flag.

    Attributes:
        name: Without the dashes.
        kind: Type of its value; ``texts`` for a flag that may be given more than once.
        default: Its default.
        effect: ``same`` as upstream, ``better`` (the note says how),
            ``ignored`` (the note says what to use instead) or ``ours``.
        help: What it does.
        note: How it differs from upstream.
        choices: The values allowed; empty for any.
    """

    name: str
    kind: Kind
    default: bool | int | float | str
    effect: Effect
    help: str
    note: str = ""
    choices: tuple[str, ...] = ()


def _same(name: str, kind: Kind, default: bool | int | float | str, text: str) -> Flag:
    return Flag(name=name, kind=kind, default=default, effect="same", help=text)


def _better(name: str, kind: Kind, default: bool | int | float | str, text: str, note: str) -> Flag:
    return Flag(name=name, kind=kind, default=default, effect="better", help=text, note=note)


def _ignored(name: str, kind: Kind, default: bool | int | float | str, note: str) -> Flag:
    return Flag(name=name, kind=kind, default=default, effect="ignored", help="accepted, no effect", note=note)


def _ours(name: str, kind: Kind, default: bool | int | float | str, text: str, choices: tuple[str, ...] = ()) -> Flag:
    return Flag(name=name, kind=kind, default=default, effect="ours", help=text, choices=choices)


_NO_TENSORFLOW = "models run without TensorFlow's C++ server; nothing replaces it because nothing needs it"
_NO_GPU = "the backends here run on the CPU"

FLAGS: tuple[Flag, ...] = (
    _same("port", "int", 8500, "gRPC port, 0 for none"),
    _same("grpc_socket_path", "text", "", "also listen for gRPC on this UNIX socket"),
    _same("rest_api_port", "int", 0, "REST port, 0 for none"),
    _ignored("rest_api_num_threads", "int", 0, "one event loop takes all; see --tensorflow_session_parallelism"),
    _same("rest_api_timeout_in_ms", "int", 30000, "time that a REST request may take"),
    _same("rest_api_enable_cors_support", "bool", False, "answer with CORS headers"),
    _ignored("grpc_max_threads", "int", 0, "one event loop takes all; see --tensorflow_session_parallelism"),
    _same("grpc_channel_arguments", "text", "", "gRPC channel arguments, such as grpc.max_connection_age_ms=2000"),
    _better(
        "enable_grpc_healthcheck_service", "bool", True, "serve grpc.health.v1",
        "on by default, and it tells the truth: the server as a whole, each service, and each model by its name",
    ),
    _ignored("use_alts_credentials", "bool", False, "ALTS exists on Google's cloud only; use --ssl_config_file"),
    _better(
        "ssl_config_file", "text", "", "SSLConfig: serve with TLS, optionally with client certificates",
        "REST is served with TLS as well, unless --rest_api_ssl=false; it may be a folder with tls.key and tls.crt (a "
        "secret of Kubernetes), and is read again when it changes",
    ),
    _same("model_name", "text", "default", "name of the model in requests"),
    _same("model_base_path", "text", "", "absolute path of the directory with the model's versions"),
    _same("model_config_file", "text", "", "ModelServerConfig: several models, version policies, labels"),
    _same("model_config_file_poll_wait_seconds", "int", 0, "seconds between two looks at that file, 0 for once"),
    _same("file_system_poll_wait_seconds", "float", 1.0, "seconds between two looks for versions; 0 once, <0 never"),
    _better(
        "num_load_threads", "int", 0, "versions that may load at the same time (0: one)",
        "each model is watched on a thread of its own, so that none waits for another's trouble",
    ),
    _ignored("num_unload_threads", "int", 0, "each model unloads on a thread of its own"),
    _better(
        "max_num_load_retries", "int", 5, "tries after a load that failed",
        "damaged files are not tried again until they change; they would fail the same way",
    ),
    _same("load_retry_interval_micros", "int", 60_000_000, "time between two tries"),
    _ignored("flush_filesystem_caches", "bool", True, "the operating system's page cache is its own to manage"),
    _same("saved_model_tags", "text", "serve", "tags of the meta graph to serve, comma-separated"),
    _same("allow_version_labels_for_unavailable_models", "bool", False, "new labels may point to versions not loaded"),
    _same("enable_batching", "bool", False, "collect requests into batches"),
    _same("batching_parameters_file", "text", "", "BatchingParameters; needs --enable_batching"),
    _same("enable_per_model_batching_parameters", "bool", False, "read batching_params.pbtxt of each version"),
    _same("enable_model_warmup", "bool", True, "replay assets.extra/tf_serving_warmup_requests before serving"),
    _same("num_request_iterations_for_warmup", "int", 0, "how often each record is replayed (0: once)"),
    _better(
        "monitoring_config_file", "text", "", "MonitoringConfig: serve Prometheus metrics on the REST port",
        "they are at /metrics, too, which needs no file; one that does not enable Prometheus closes both",
    ),
    _ignored("enable_profiler", "bool", True, "TensorFlow's profiler is not in this server; use py-spy"),
    _same("version", "bool", False, "print the version and exit"),
    _same("tensorflow_session_parallelism", "int", 0, "threads that predict (0: cores)"),
    _same("tensorflow_intra_op_parallelism", "int", 0, "threads in one prediction (0: the manifest's choice, or one)"),
    _ignored("tensorflow_inter_op_parallelism", "int", 0, "the runtimes here run one op at a time"),
    _ignored("tensorflow_session_config_file", "text", "", _NO_TENSORFLOW),
    _ignored("platform_config_file", "text", "", _NO_TENSORFLOW),
    _ignored("per_process_gpu_memory_fraction", "float", 0.0, _NO_GPU),
    _ignored("remove_unused_fields_from_bundle_metagraph", "bool", True, "only signatures are ever read"),
    _same("prefer_tflite_model", "bool", False, "use model.tflite even where there are other files"),
    _same("num_tflite_pools", "int", 0, "LiteRT interpreters (0: cores)"),
    _ignored("num_tflite_interpreters_per_pool", "int", 1, "there is one pool; see --num_tflite_pools"),
    _same("enable_signature_method_name_check", "bool", False, "refuse calls by another method than the signature's"),
    _ignored("xla_cpu_compilation_enabled", "bool", False, _NO_TENSORFLOW),
    _ignored("xla_gpu_compilation_enabled", "bool", False, _NO_GPU),
    _ignored("thread_pool_factory_config_file", "text", "", "see --tensorflow_session_parallelism"),
    _ignored("mixed_precision", "text", "", "export a variant of that precision instead; it is verified there"),
    _ignored("skip_initialize_tpu", "bool", False, "there is no TPU backend"),
    _same("enable_serialization_as_tensor_content", "bool", False, "gRPC answers carry tensor_content"),
    _ours("model_repository", "text", "",
          "folder of models, instead of the flags for one: all are served by the names of their folders, and new and "
          "removed ones are seen as new versions are (--file_system_poll_wait_seconds)"),
    _ours("version_traffic_file", "text", "",
          "which versions answer requests that name none: splits by weight, header or sticky key, shadows, and limits "
          "that roll back; looked at again while it runs (docs/rollouts.md)"),
    _ours("version_traffic_state_file", "text", "",
          "file that keeps rollbacks over restarts; empty: a restart begins without them"),
    _ours("runtime", "text", "", "use this runtime and no other (default: the manifest's choice)",
          ("onnxruntime", "litert", "openvino", "tensorflow")),
    _ours("precision", "text", "", "serve files of this precision (default: the manifest's choice for the runtime)",
          ("float32", "float16", "bfloat16", "int8_dynamic", "int8")),
    _ours("model_control_mode", "text", "poll",
          "load at the start only (none), follow the base paths (poll), or load on request (explicit)",
          ("none", "poll", "explicit")),
    _ours("resource_preserving", "bool", False, "unload the old version before the new one is loaded"),
    _ours("rest_api_ssl", "bool", True, "with --ssl_config_file, serve REST with TLS too"),
    _ours("rest_api_max_body_bytes", "int", 100 << 20, "largest REST body"),
    _ours("max_inflight_bytes", "int", 1 << 30,
          "bytes of requests that the server may be reading or answering; more are refused with 503 or "
          "RESOURCE_EXHAUSTED and asked to come back, by what they say of their size, before it is taken (0: any "
          "number; native only)"),
    _ours("max_connections", "int", 10_000,
          "connections; requests on more are refused with 503 or RESOURCE_EXHAUSTED (0: any number; "
          "python: REST's alone)"),
    _ours("max_concurrent_streams", "int", 1024,
          "calls of one HTTP/2 connection at the same time; the client keeps or repeats others (0: any number)"),
    _ours("max_header_bytes", "int", 32 << 10,
          "bytes of a request's line and header fields; more are refused with 431 (python: 400)"),
    _ours("header_timeout_seconds", "float", 20.0,
          "time for a request's line and header fields to come once they have begun; HTTP/1.1 is answered 408 then (0: "
          "any; over HTTP/2 --idle_timeout_seconds stands for it)"),
    _ours("body_timeout_seconds", "float", 20.0,
          "time for a body to come, beyond a second for each 16 kB of it; late ones are answered 408 or "
          "DEADLINE_EXCEEDED (0: any; native only)"),
    _ours("idle_timeout_seconds", "float", 75.0, "connections without a request are closed after so long (0: never)"),
    _ours("prediction_log_max_bytes", "int", 64 << 20,
          "a file of a model's logging_config ends at this size, and is renamed to what it is called"),
    _ours("prediction_log_max_records", "int", 1000,
          "so, too, at so many records; the default is the most that a warm-up file may have (0: any number)"),
    _ours("prediction_log_max_seconds", "float", 600.0, "so, too, so long after its first record"),
    _ours("prediction_log_queue_bytes", "int", 64 << 20,
          "bytes of logged requests and answers that wait for the disk; more are dropped, and counted"),
    _ours("rest_api_max_json_depth", "int", 100, "deepest nesting of a REST body"),
    _ours("sagemaker", "bool", False,
          "answer /ping and /invocations on SageMaker's port; its argument serve switches this on too"),
    _ours("console", "bool", False,
          "serve pages for people at /console: models, versions and why one failed, forms to try signatures, export "
          "reports, live numbers"),
    _ours("rest_api_strict_json", "bool", False, "refuse to answer NaN and Infinity, which strict parsers cannot read"),
    _ours("rest_api_extensions", "bool", False,
          "REST: half, bfloat16 and uint16 in JSON, and inputs that have defaults may be left out"),
    _ours("access_file", "text", "",
          "TOML file of principals: hashes of keys, web tokens, client certificates, and what each may do; read again "
          "when it changes (see docs/securing.md)"),
    _ours("insecure_admin", "text", "",
          "accept reloads, loads and unloads without credentials: from this machine (loopback) or from all (anywhere, "
          "as TensorFlow Serving does)", ("", "loopback", "anywhere")),
    _ours("ssl_client_ca_file", "text", "",
          "PEM file: clients must show a certificate that one of these authorities has signed"),
    _ours("trusted_key", "texts", "",
          "public Ed25519 key (PEM) that versions must be signed by; any other version is refused; may be given more "
          "than once"),
    _ours("remote_cache_dir", "text", "",
          "folder for copies of versions from s3:// and gs://, kept over restarts; empty for a temporary one"),
    _ours("enable_grpc_reflection", "bool", True, "serve grpc.reflection, so that grpcurl needs no proto files"),
    _ours("transport", "text", "",
          "what serves both ports: native (modelyard_core; default where it is installed) or python (uvicorn and "
          "grpc.aio, which are slower)", ("native", "python")),
    _ours("batching_zero_padding", "bool", False,
          "with pad_variable_length_inputs, pad with zeros (or empty strings) and not with a tensor's first element"),
    _ours("greedy_batching", "bool", True,
          "compute requests that are there at the same time together; nothing waits, and only models are batched whose "
          "rows do not depend on each other: as the export has proven, or as an experiment at loading shows"),
    _ours("max_batch_rows", "int", 64, "rows that are computed together at most, with --greedy_batching"),
    _ours("max_queued_requests", "int", 10_000,
          "requests that may wait for one model; more are refused (0: any number)"),
    _ours("max_queue_delay_ms", "float", 0.0,
          "refuse a request that would wait longer than this, by what is queued and what it takes (0: any time)"),
    _ours("flagfile", "text", "",
          "a file of flags, one on a line, read as if they stood here; lines that begin with # are comments"),
    _ours("autotune", "text", "",
          "do not serve: measure the model, and write the flags to this file that serve the most within "
          "--autotune_latency_ms: threads, instances, rows of a batch"),
    _ours("autotune_latency_ms", "float", 50.0, "longest time of a request, without the network, for --autotune"),
    _ours("access_log", "text", "off",
          "a line for each request on the standard output: off, all, or sampled:SHARE, such as sampled:0.01"),
    _ours("access_log_format", "text", "text", "how they look", ("text", "json")),
    _ours("slow_request_ms", "float", 0.0, "log requests that take longer, and what they waited for (0: none)"),
    _ours("log_level", "text", "info", "least severity in the server's log, on the standard error; /v2/logging "
          "changes it while the server runs", ("debug", "info", "warning", "error")),
    _ours("log_format", "text", "text", "how its lines look", ("text", "json")),
    _ours("drain_seconds", "float", 10.0, "time that running requests get at SIGTERM"),
    _ours("shutdown_delay_seconds", "float", 0.0,
          "at SIGTERM go on answering for so long before the ports close, while all health checks say not ready, for "
          "load balancers that find out by asking"),
    _ours("max_batch_seconds", "float", 300.0,
          "a batch that is computed for longer is answered with DEADLINE_EXCEEDED, and its version gets no requests "
          "until the batch ends (0: any time)"),
    _ours("probe_loads", "bool", False,
          "load a version in a process of its own first, and predict there: what ends that process, or takes too much "
          "memory or time, is refused, and the server goes on"),
    _ours("probe_memory_mb", "int", 0, "memory that this process may take (0: what is free)"),
    _ours("probe_timeout_seconds", "float", 300.0, "time that this process may take"),
)  # fmt: skip
