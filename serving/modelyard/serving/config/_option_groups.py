"""Groups of options with the flags that set them; see :mod:`modelyard.serving.config._options`."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, get_args

from modelyard.artifact import PRECISIONS, TrustedKey
from modelyard.errors import ConfigurationError
from modelyard.serving.backends import CPU, RUNTIMES, Runtime, read_device
from modelyard.serving.config._flag import (
    INT32_MAX,
    MOST_THREADS,
    Flag,
    flag,
    milliseconds,
    path_or_none,
    same,
    set_by,
    upstream,
)
from modelyard.serving.machine import memory_limit

InsecureAdmin = Literal["", "loopback", "anywhere"]
Form = Literal["text", "json"]
_FORMS: tuple[Form, ...] = get_args(Form)
_LEVELS = ("debug", "info", "warning", "error")

#: 0, for no limit, as a number that timers can hold.
FOREVER_S = 1e9
#: What hyper's buffer for a head has at least.
_MIN_HEADER_BYTES = 8192
#: Bytes of requests that a large machine's server holds without a flag.
_MOST_INFLIGHT = 1 << 30


def _any_of(choices: Sequence[str]) -> str:
    """Choices as a help text names them."""
    return f"{', '.join(choices[:-1])} or {choices[-1]}"


def _or_by_memory(size: int) -> int:
    # A request takes up to six times its bytes while it is answered, and the models need room, too.
    return min(_MOST_INFLIGHT, (memory_limit() or _MOST_INFLIGHT * 16) // 16) if size < 0 else size


def _or_forever(seconds: float) -> float:
    return seconds or FOREVER_S


@dataclass(frozen=True, kw_only=True)
class TransportLimits:
    """What clients may have a server hold; fields are described by their flags, times are in seconds."""

    max_inflight_bytes: int = flag(
        "max_inflight_bytes", -1,
        "bytes of requests that the server may be reading or answering; more are refused with 503 or "
        "RESOURCE_EXHAUSTED and asked to come back, by what they say of their size, before it is taken (native only), "
        "and so many bytes more that they become by decompressing and decoding (-1: a sixteenth of the memory that the "
        "process may have, 1 GiB at most; 0: any number)",
        read=_or_by_memory, least=-1,
    )  # fmt: skip
    max_connections: int = flag(
        "max_connections", 10_000,
        "connections; requests on more are refused with 503 or RESOURCE_EXHAUSTED (0: any number; "
        "python: REST's alone)",
    )  # fmt: skip
    max_streams: int = flag(
        "max_concurrent_streams", 256,
        "calls of one HTTP/2 connection at the same time; the client keeps or repeats others (0: any number)",
        read=lambda number: min(number or INT32_MAX, INT32_MAX),
    )  # fmt: skip
    max_header_bytes: int = flag(
        "max_header_bytes", 32 << 10,
        "bytes of a request's line and header fields; more are refused with 431 (python: 400), as more than 100 fields "
        "over HTTP/1.1 are (python: any number)",
        least=_MIN_HEADER_BYTES, most=INT32_MAX,
    )  # fmt: skip
    header_timeout_s: float = flag(
        "header_timeout_seconds", 20.0,
        "time for a request's line and header fields to come once they have begun; HTTP/1.1 is answered 408 then "
        "(python: the connection ends; 0: any; over HTTP/2 --idle_timeout_seconds stands for it)",
        read=_or_forever,
    )  # fmt: skip
    body_timeout_s: float = flag(
        "body_timeout_seconds", 20.0,
        "time for a body to come, beyond a second for each 16 kB of it; late ones are answered 408 or "
        "DEADLINE_EXCEEDED (0: any; native only)",
        read=_or_forever, native_only=True,
    )  # fmt: skip
    idle_timeout_s: float = flag(
        "idle_timeout_seconds", 75.0, "connections without a request are closed after so long (0: never)",
        read=_or_forever,
    )  # fmt: skip

    def largest(self, size: int) -> int:
        """Bytes of the largest request that can be accepted where another limit allows ``size``."""
        return min(size, self.max_inflight_bytes or size)

    def channel_arguments(self) -> tuple[tuple[str, int], ...]:
        """Those that gRPC's own server has, as its channel arguments."""
        return (
            ("grpc.max_concurrent_streams", self.max_streams),
            ("grpc.max_metadata_size", self.max_header_bytes),
            ("grpc.max_connection_idle_ms", min(round(self.idle_timeout_s * 1000), INT32_MAX)),
        )


def _or_none(value: int | str) -> int | str | None:
    return value or None


@dataclass(frozen=True, kw_only=True)
class WatchOptions:
    """How base paths are watched and versions are replaced.

    Attributes:
        poll_wait_s: Seconds between two polls; 0 polls once, a negative number never.
        max_load_retries: How often a load that failed for an unexpected reason or found no memory, or a copy from an
            object store that is damaged, is tried again. Damaged or unsuitable files are not: they are tried again
            when they change.
        retry_interval_s: Seconds between two tries.
        load_slots: How many versions may load at the same time, over all models.
        explicit: Models are loaded and unloaded on request only.
        resource_preserving: Unload the old version before the new one is loaded: half the memory, and a gap in between.
        cache_dir: Where copies of versions are kept, of those from object stores and of signed ones; None for a
            temporary folder.
        trusted_keys: Where there are some, what one of them signed is copied and loaded, and nothing else.
    """

    poll_wait_s: float = upstream(
        "file_system_poll_wait_seconds", 1.0, "seconds between two looks for versions; 0 once, <0 never",
        least=-math.inf,
    )  # fmt: skip
    load_slots: threading.Semaphore = upstream(
        "num_load_threads", 0, "versions that may load at the same time (0: one)",
        "each model is watched on a thread of its own, so that none waits for another's trouble",
        read=lambda number: threading.Semaphore(number or 1),
    )  # fmt: skip
    max_load_retries: int = upstream(
        "max_num_load_retries", 5, "tries after a load that failed",
        "damaged files are not tried again until they change; they would fail the same way",
    )  # fmt: skip
    retry_interval_s: float = upstream(
        "load_retry_interval_micros", 60_000_000, "time between two tries (0 or less: none)",
        read=lambda micros: max(0.0, micros / 1e6), least=-math.inf,
    )  # fmt: skip
    explicit: bool = set_by(
        False,
        Flag(
            name="model_control_mode", default="poll", choices=("none", "poll", "explicit"),
            help="load at the start only (none), follow the base paths (poll), or load on request (explicit)",
        ),
    )  # fmt: skip
    resource_preserving: bool = flag(
        "resource_preserving", False, "unload the old version before the new one is loaded"
    )
    cache_dir: Path | None = flag(
        "remote_cache_dir", "",
        "folder for copies of versions from s3:// and gs://, and with --trusted_key of all, kept over restarts; empty "
        "for a temporary one",
        read=path_or_none,
    )  # fmt: skip
    trusted_keys: tuple[TrustedKey, ...] = ()


@dataclass(frozen=True, kw_only=True)
class LoadOptions:
    """How versions are loaded.

    Attributes:
        runtime: Use this runtime and no other; None for the manifest's choice, or else the first that is installed and
            has a file to run: openvino only where no other is.
        device: Where models are computed; any but the CPU decides on the runtime.
        precision: Use files of this precision; None for the manifest's choice for the runtime, or else float32.
        threads: Intra-op threads of a runtime; None for the manifest's choice for
            it, as far as this machine has them, or else one.
        cpus: CPUs that this process may use, and no more threads than these; None for all.
        interpreters: LiteRT interpreters, or OpenVINO requests, per version.
        prefer_tflite: ``model.tflite`` wins over every other file.
        tags: Tags of a SavedModel's meta graph.
        trusted_keys: Where there are some, versions must be signed by one of them.
    """

    tags: tuple[str, ...] = upstream(
        "saved_model_tags", "serve",
        "tags of the meta graph of a SavedModel to serve, comma-separated; no other format has any",
        read=lambda text: tuple(text.split(",")),
    )  # fmt: skip
    threads: int | None = upstream(
        "tensorflow_intra_op_parallelism", 0, "threads in one prediction (0: the manifest's choice, or one)",
        read=_or_none, most=MOST_THREADS,
    )  # fmt: skip
    prefer_tflite: bool = upstream("prefer_tflite_model", False, "use model.tflite even where there are other files")
    interpreters: int = set_by(1, same("num_tflite_pools", 0, "LiteRT interpreters (0: cores)", most=MOST_THREADS))
    runtime: Runtime | None = flag(
        "runtime", "", f"use this runtime and no other: {_any_of(RUNTIMES)} (default: the manifest's choice)",
        choices=RUNTIMES, read=_or_none,
    )  # fmt: skip
    device: str = flag(
        "device", CPU,
        "compute there: cpu, cuda or cuda:NUMBER (by onnxruntime-gpu), or openvino:NAME with OpenVINO's name of a "
        "device, such as openvino:GPU; what is missing is an error, and nothing goes back to the CPU",
        read=read_device,
    )  # fmt: skip
    precision: str | None = flag(
        "precision", "",
        f"serve files of this precision: {_any_of(PRECISIONS)} (default: the manifest's choice for the runtime)",
        choices=PRECISIONS, read=_or_none,
    )  # fmt: skip
    trusted_keys: tuple[TrustedKey, ...] = set_by(
        (),
        Flag(
            name="trusted_key", default="", repeated=True,
            help="public Ed25519 key (PEM) that versions must be signed by; any other version is refused; may be given "
            "more than once",
        ),
    )  # fmt: skip
    cpus: int | None = None


@dataclass(frozen=True, kw_only=True)
class AccessOptions:
    """Files of credentials, which are read again while the server runs; fields are described by their flags."""

    ssl_config_file: Path | None = upstream(
        "ssl_config_file", "", "SSLConfig: serve with TLS, optionally with client certificates",
        "REST is served with TLS as well, unless --rest_api_ssl=false; it may be a folder with tls.key and tls.crt (a "
        "secret of Kubernetes), and is read again when it changes",
        read=path_or_none,
    )  # fmt: skip
    file: Path | None = flag(
        "access_file", "",
        "TOML file of principals: hashes of keys, web tokens, client certificates, and what each may do; read again "
        "when it changes (see docs/securing.md)",
        read=path_or_none,
    )  # fmt: skip
    insecure_admin: InsecureAdmin = flag(
        "insecure_admin", "",
        "accept reloads, loads and unloads without credentials: from this machine (loopback) or from all (anywhere, "
        "as TensorFlow Serving does)",
        choices=("", "loopback", "anywhere"),
    )  # fmt: skip
    ssl_client_ca_file: Path | None = flag(
        "ssl_client_ca_file", "", "PEM file: clients must show a certificate that one of these authorities has signed",
        read=path_or_none,
    )  # fmt: skip


def _share(text: str) -> float:
    if text in ("off", "all"):
        return float(text == "all")
    try:
        share = float(text.removeprefix("sampled:"))
    except ValueError:
        share = math.nan
    if not text.startswith("sampled:") or not 0 < share <= 1:
        raise ConfigurationError(
            f"--access_log={text}; expected off, all, or sampled:SHARE with a share above 0 and up to 1, such as "
            "sampled:0.01."
        )
    return share


@dataclass(frozen=True, kw_only=True)
class TelemetryOptions:
    """What is logged; fields are described by their flags."""

    #: Share of requests in the access log, from 0 to 1.
    access_share: float = flag(
        "access_log", "off",
        "a line for each request on the standard output: off, all, or sampled:SHARE, such as sampled:0.01",
        read=_share,
    )  # fmt: skip
    access_form: Form = flag("access_log_format", "text", f"the access log's lines: {_any_of(_FORMS)}", choices=_FORMS)
    #: In seconds.
    slow_s: float = flag(
        "slow_request_ms", 0.0, "log requests that take longer, and what they waited for (0: none)",
        read=milliseconds,
    )  # fmt: skip
    log_level: str = flag(
        "log_level", "info",
        f"least severity in the server's log, on the standard error: {_any_of(_LEVELS)}; /v2/logging changes it while "
        "the server runs",
        choices=_LEVELS,
    )  # fmt: skip
    log_form: Form = flag("log_format", "text", f"the server's log's lines: {_any_of(_FORMS)}", choices=_FORMS)


@dataclass(frozen=True, kw_only=True)
class LifecycleOptions:
    """How a server stops, and handles models that hang or crash; times are in seconds."""

    drain_s: float = flag("drain_seconds", 10.0, "time that running requests get at SIGTERM")
    shutdown_delay_s: float = flag(
        "shutdown_delay_seconds", 0.0,
        "at SIGTERM go on answering for so long before the ports close, while all health checks say not ready, for "
        "load balancers that find out by asking",
    )  # fmt: skip
    max_batch_s: float = flag(
        "max_batch_seconds", 300.0,
        "a batch that is computed for longer is answered with DEADLINE_EXCEEDED, and its version gets no requests "
        "until the batch ends (0: any time)",
    )  # fmt: skip
    probe_loads: bool = flag(
        "probe_loads", False,
        "load a version in a process of its own first, and predict there: what ends that process, or takes too much "
        "memory or time, is refused, and the server goes on",
    )  # fmt: skip
    probe_memory_bytes: int = flag(
        "probe_memory_mb",
        0,
        "memory that this process may take (0: what is free)",
        read=lambda megabytes: megabytes << 20,
        most=1 << 40,
    )
    probe_timeout_s: float = flag("probe_timeout_seconds", 300.0, "time that this process may take")
