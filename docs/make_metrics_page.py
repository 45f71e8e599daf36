"""Makes docs/metrics.md from the server's table of metrics."""

from __future__ import annotations

from pathlib import Path

from modelyard.serving.metrics import FAMILIES, Family

PAGE = Path(__file__).with_name("metrics.md")

_HEAD = """\
# Metrics

<!-- Written by docs/make_metrics_page.py from the server's own table; do not edit. -->

Prometheus' page is at `http://HOST:8501/metrics`, with no configuration, and at TensorFlow Serving's path where
`--monitoring_config_file` enables it. `deploy/monitoring` has a configuration of Prometheus, alert rules
(`rules.yml`, with `promtool`'s tests in `rules_test.yml`) and a dashboard for Grafana; the tests run all of them
against a real Prometheus and a real server.

- **Upstream's names, labels and buckets are as they are**, so that dashboards for TensorFlow Serving go on working:
  of the metrics in the first table. In `runtime_latency`, `runtime` is the runtime's name, where upstream has `TF1`.
  `request_latency` and `request_count` have the requests of the Open Inference Protocol, too (`API` is `ModelInfer`
  over gRPC, `ModelStreamInfer` for each message of a stream, `infer` over REST), and requests that the native core
  refuses, or whose callers left.
- **Metrics of TensorFlow itself** (`:tensorflow:core:...`) are not here, since no graph of its runs. What to ask in
  their place:

  | instead of | ask |
  |---|---|
  | `rate(:tensorflow:core:graph_runs[5m])` | `sum(rate(:modelyard:serving:compute_latency_count[5m]))` |
  | `rate(:tensorflow:core:graph_run_time_usecs[5m])` | `sum(rate(:modelyard:serving:compute_latency_sum[5m]))` |
  | `:tensorflow:core:graph_run_time_usecs_histogram_bucket` | `:modelyard:serving:compute_latency_bucket` |
  | `:tensorflow:cc:saved_model:load_latency` | `:modelyard:serving:load_latency_sum` |
  | `:tensorflow:core:graph_build_calls`, `graph_build_time_usecs` | nothing: graphs are built at loading |

- **Unknown names make no series.** Requests for models that were never found share the empty name; signatures
  are those that a model has; of callers the first 100 have names, and the others are `other`. When a version is
  unloaded its gauges end at once, and its counters when four newer ones are gone, too.
- **Three forms, by the `Accept` of a scrape.** Text is for people and older tools. OpenMetrics has exemplars: a request
  that comes with a `traceparent` whose trace is recorded leaves its `trace_id` at the bucket of its latency (start
  Prometheus with `--enable-feature=exemplar-storage`). There, counters without `_total` in their names have no type,
  since OpenMetrics does not allow it.
- **Native histograms** are in the protobuf form, which Prometheus requests with `--enable-feature=native-histograms`:
  eight buckets for each factor of two (schema 3), for every histogram here. Such a Prometheus drops the classic
  buckets unless its scrape configuration says `scrape_classic_histograms: true` (`always_scrape_classic_histograms` in
  Prometheus 3); the dashboard and the rules here are written for classic ones.
"""
_GROUPS = (
    ("TensorFlow Serving's", ":tensorflow:"),
    ("modelyard's own", ":modelyard:"),
    ("Of the process", "process_"),
)


def page() -> str:
    """The page's text."""
    lines = [_HEAD.rstrip()]
    for title, prefix in _GROUPS:
        lines += ["", f"## {title}", "", "| metric | kind | labels | what it counts |", "|---|---|---|---|"]
        lines += [_row(family) for family in FAMILIES if family.name.startswith(prefix)]
    return "\n".join(lines) + "\n"


def _row(family: Family) -> str:
    labels = ", ".join(f"`{label}`" for label in family.labels)
    buckets = f" Buckets: {_buckets(family.buckets)}." if family.buckets else ""
    return f"| `{family.name}` | {family.kind} | {labels} | {family.help}{buckets} |"


def _buckets(bounds: tuple[float, ...]) -> str:
    return f"{len(bounds)}, from {bounds[0]:g} to {bounds[-1]:g}, each {bounds[1] / bounds[0]:g} times the one before"
