"""Every metric that the server exposes; ``docs/metrics.md`` is made from this table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, NamedTuple

#: Upstream's buckets for microseconds: 10 * 1.8^i, 33 of them.
LATENCY_BUCKETS_US: tuple[float, ...] = tuple(10 * 1.8**index for index in range(33))
#: Upstream's for the time in a batch's queue: 100 * 1.2^i, 52 of them.
QUEUE_BUCKETS_US: tuple[float, ...] = tuple(100 * 1.2**index for index in range(52))
#: Upstream's buckets for numbers of examples: powers of two.
EXAMPLE_BUCKETS: tuple[float, ...] = tuple(float(1 << index) for index in range(15))
#: Buckets for the parts of a request, in microseconds: few, since there is a histogram for each signature of each
#: version. Powers of two, which native buckets end at: what the core counts in those alone is known in these, too.
PART_BUCKETS_US: tuple[float, ...] = tuple(float(1 << index) for index in range(4, 25, 2))
#: For loads: 1 ms to 17 minutes.
LOAD_BUCKETS_US: tuple[float, ...] = tuple(float(1 << index) for index in range(10, 31, 2))

Kind = Literal["counter", "gauge", "histogram"]


class Family(NamedTuple):
    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()
    buckets: tuple[float, ...] = ()


_TFS = ":tensorflow:serving:"
_BATCHING = f"{_TFS}batching_session:"
_OURS = ":modelyard:serving:"
#: Of what is measured for each signature of each version.
_SIGNATURE = ("model", "version", "signature", "runtime")

#: Every metric that the server exposes.
FAMILIES: Sequence[Family] = (
    # Upstream's, by its names and with its labels.
    Family(f"{_TFS}request_count", "counter", "Requests by model and status.", ("model_name", "status")),
    Family(f"{_TFS}request_latency", "histogram", "Time of a successful request, in microseconds.",
           ("model_name", "API", "entrypoint"), LATENCY_BUCKETS_US),
    Family(f"{_TFS}runtime_latency", "histogram", "Time inside the runtime, in microseconds.",
           ("model_name", "API", "runtime"), LATENCY_BUCKETS_US),
    Family(f"{_TFS}request_example_counts", "histogram", "Examples in a request.", ("model",), EXAMPLE_BUCKETS),
    Family(f"{_TFS}request_example_count_total", "counter", "Examples in all requests.", ("model",)),
    Family(f"{_TFS}model_warmup_latency", "histogram", "Time of a model's warm-up, in microseconds.",
           ("model_path", "status"), LATENCY_BUCKETS_US),
    Family(f"{_TFS}model_warmup_records_read", "counter", "Warm-up records replayed.", ("model_path", "status")),
    Family(f"{_TFS}request_log_count", "counter",
           "Requests that logging_config chose for the log of predictions: OK was written, RESOURCE_EXHAUSTED dropped "
           "because the disk was slower, UNAVAILABLE lost because a file could not be written.",
           ("model_name", "status_code")),
    Family(":tensorflow:cc:saved_model:load_attempt_count", "counter", "Attempts to load a version.",
           ("model_path", "status")),
    Family(f"{_BATCHING}queuing_latency", "histogram", "Time that a request waited for its batch, in microseconds.",
           ("thread_pool_name",), QUEUE_BUCKETS_US),
    Family(f"{_BATCHING}input_batch_size", "histogram", "Rows in a request.", (), EXAMPLE_BUCKETS),
    Family(f"{_BATCHING}processed_batch_size", "histogram", "Rows in a batch.", (), EXAMPLE_BUCKETS),
    Family(f"{_BATCHING}padding_size", "histogram", "Rows added to fill a batch.", ("execution_batch_size",),
           EXAMPLE_BUCKETS),
    Family(f"{_BATCHING}wrapped_run_count", "counter", "Batches computed."),
    # Requests, by the version that answered.
    Family(f"{_OURS}predictions", "counter", "Predictions by model, version and status.",
           ("model", "version", "status")),
    Family(f"{_OURS}client_requests", "counter",
           "Requests by the caller's name, where callers have names; those beyond the first 100 are \"other\".",
           ("client", "model_name", "status")),
    Family(f"{_OURS}refused", "counter",
           "Requests that were not let in. queue_full: --max_queued_requests. too_late: the answer would take longer "
           "than the caller's time, or than --max_queue_delay_ms. batch_queue_full: max_enqueued_batches. quota: one "
           "of --access_file. bytes: --max_inflight_bytes. connections: --max_connections. too_large: a message or "
           "body beyond its limit. slow_body: --body_timeout_seconds. The last four are told before a model is known.",
           ("model", "reason")),
    Family(f"{_OURS}queue_latency", "histogram", "Time that a request waited for its batch, in microseconds.",
           _SIGNATURE, PART_BUCKETS_US),
    Family(f"{_OURS}decode_latency", "histogram", "Time to read and check a request, in microseconds.",
           _SIGNATURE, PART_BUCKETS_US),
    Family(f"{_OURS}compute_latency", "histogram", "Time of a batch inside the runtime, in microseconds.",
           _SIGNATURE, PART_BUCKETS_US),
    Family(f"{_OURS}encode_latency", "histogram",
           "Time from the end of the computation to the encoded answer, in microseconds.", _SIGNATURE,
           PART_BUCKETS_US),
    Family(f"{_OURS}batch_rows", "histogram", "Rows in a batch, those that pad it included.", _SIGNATURE,
           EXAMPLE_BUCKETS),
    Family(f"{_OURS}batch_padding", "histogram", "Rows that pad a batch to an allowed size.", _SIGNATURE,
           EXAMPLE_BUCKETS),
    Family(f"{_OURS}batch_requests", "histogram", "Requests that share a batch.", _SIGNATURE, EXAMPLE_BUCKETS),
    # Models.
    Family(f"{_OURS}model_versions", "gauge", "Versions of a model by their state.", ("model", "state")),
    Family(f"{_OURS}load_latency", "histogram",
           "Time to load a version, warm-up included, in microseconds; its count is the loads.", ("model", "status"),
           LOAD_BUCKETS_US),
    Family(f"{_OURS}version_memory_bytes", "gauge",
           "By how much the process grew while the version was loaded: an estimate, which other loads at the same time "
           "disturb. Weights that are mapped from files count as they are used.", ("model", "version")),
    # The process.
    Family(f"{_OURS}requests_in_flight", "gauge", "Requests for predictions that are waiting or being computed."),
    Family(f"{_OURS}request_bytes_in_flight", "gauge",
           "Bytes of requests that the native core is reading or answering, and that they became by decompressing and "
           "decoding."),
    Family(f"{_OURS}connections", "gauge", "Connections that are open (native core)."),
    Family(f"{_OURS}request_records_dropped", "counter",
           "Answered requests that are missing in the access log, the slow-request log or the traces."),
    Family(f"{_OURS}hanging_batches", "gauge",
           "Batches that have been computed longer than --max_batch_seconds allows.", ("model", "version")),
    # Traffic rules.
    Family(f"{_OURS}traffic_requests", "counter",
           "Requests that a traffic rule gave to a target of its split, by status.", ("model", "target", "status")),
    Family(f"{_OURS}traffic_share", "gauge", "Share that a target of a traffic rule's split has now.",
           ("model", "target")),
    Family(f"{_OURS}traffic_rollbacks", "counter", "Rollbacks of a target of a traffic rule, by limit.",
           ("model", "target", "limit")),
    Family(f"{_OURS}shadow_requests", "counter",
           "Requests for a shadow: compared, failed, or dropped as too many waited.", ("model", "target", "result")),
    Family(f"{_OURS}shadow_rows", "counter", "Rows that a shadow computed, agreed or disagreed.",
           ("model", "target", "result")),
    Family(f"{_OURS}shadow_max_error", "gauge",
           "Largest difference of a number from a shadow's, within the rule's window.", ("model", "target")),
    Family(f"{_OURS}memory_limit_bytes", "gauge", "Memory that the process may have: its control group's, or all."),
    Family("process_resident_memory_bytes", "gauge", "Resident memory."),
    Family("process_cpu_seconds_total", "counter", "Processor time, user and system."),
    Family("process_start_time_seconds", "gauge", "Start of the process, in seconds since 1970."),
)  # fmt: skip
