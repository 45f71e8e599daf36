"""Makes docs/migrating-from-tensorflow-serving.md from the server's tables."""

from __future__ import annotations

from pathlib import Path

from modelyard.serving.config import FLAGS
from modelyard.wire import MODEL_SERVICE, PREDICTION_SERVICE

PAGE = Path(__file__).with_name("migrating-from-tensorflow-serving.md")

_HEAD = """\
# Migrating from TensorFlow Serving

<!-- Written by docs/make_migration_page.py from the server's own tables; do not edit. -->

Change the image (it has the commands `tensorflow_model_server` and `tf_serving_entrypoint.sh`, too) or the command, and
keep the rest: ports, flags, model directories, configuration files, requests, answers and errors are TensorFlow
Serving's, and clients, [in any language](clients.md#other-languages), need no change. What differs on purpose:

- **A raw SavedModel needs a runtime that reads it.** `pip install 'modelyard[tensorflow]'` brings TensorFlow itself.
  Without it, OpenVINO serves what it can compute (no strings, no state), with the same files:
  `pip install 'modelyard[openvino]'`, and `--runtime=openvino` where TensorFlow is installed, too. Or
  `modelyard export` writes ONNX and TFLite files, verified against the SavedModel, that need neither.
- **Models and configuration files in `gs://` and `s3://`** need `pip install 'modelyard[remote]'`; versions are copied
  to this machine (`--remote_cache_dir`) before they are loaded. `S3_ENDPOINT` and its kind name the store as upstream.
- **Operations of TensorFlow Text and TensorFlow Decision Forests**, which upstream's server has built in, come with
  their packages: `pip install tensorflow-text`, or `tensorflow-decision-forests`, for the TensorFlow that is installed.
  They are imported where a model needs them.
- **A folder of several models is served as it is**: `--model_repository=/models` serves every `/models/NAME/VERSION/`,
  takes new models and drops removed ones while the server runs, and needs no configuration file. Versions may be laid
  out as Triton's, too: `NAME/1/model.onnx`, `NAME/1/model.savedmodel/` (`config.pbtxt` is not read).
- **A TFLite file without SignatureDefs for TensorFlow Serving has its own signatures**, where upstream knows only the
  names of its tensors (`serving_default_x`); where it has neither, the names are upstream's. A file with an operation
  that LiteRT lacks (`ParseExample`, `Flex...`) is refused at loading, by the operation's name. Inputs have the
  sizes that the file says, but for the number of rows: upstream resizes to whatever comes, and reads on in memory where
  operators rely on a size. An index out of range is an error.
- **More platforms**: `model_platform` in a configuration file may be `tensorflow`, as upstream, for whatever files a
  version has; or name the runtime: `onnx` (`onnxruntime_onnx`), `tflite`, `openvino`.
- **Ports are open at once.** While a model's first version is loaded, requests for it are answered UNAVAILABLE (gRPC)
  or 503 (REST); where there is none that can be loaded, NOT_FOUND or 404. Health checks say NOT_SERVING meanwhile, and
  `GET /v1/models/NAME` answers 503, with the states of the versions. Upstream keeps its ports closed instead: a probe
  that only opens a connection (`tcpSocket`) learns nothing here; ask `/v2/health/ready`.
- **One model's trouble is its own.** A base path that is missing, or a version that cannot be loaded, stalls no other
  model, and the version that was served before stays served. A server that starts serves the newest version that can be
  loaded; upstream does not start where the newest cannot.
- **The image's user is 10001**, upstream's is root: it must be able to read what is mounted, and a Dockerfile that
  builds on the image says `USER root` before it installs something.
- **TLS is for both ports.** With `--ssl_config_file`, REST is https; upstream's stays http. `--rest_api_ssl=false`
  leaves it so, for probes and scrapers that know no TLS.
- **Stopping is gentle.** At SIGTERM health checks say NOT_SERVING, new connections are refused, and what was accepted
  is answered, for up to `--drain_seconds`; a second signal ends the process at once.
- **SIGHUP reads the configuration again**, and looks for new versions; upstream ends.
- **A batch that does not end is given up** after `--max_batch_seconds`: its model is out of service until it ends, the
  others go on. With `--probe_loads`, versions that would crash the server are refused. See [lifecycle](lifecycle.md).
- **A reload that cannot load a new model says so** (UNKNOWN) and goes on serving; upstream waits for it.
- **A damaged version is refused.** Where a version has modelyard's manifest, every file is checked against it before
  it is loaded; a mismatch is DATA_LOSS in the version's status.
- **Shapes are checked** against the signature where a manifest vouches for it or the runtime insists on it (ONNX); a
  raw SavedModel accepts what its kernels accept, as upstream.
- **JSON is bounded**: nesting deeper than 100 levels is an error 400, a body over 100 MiB an error 413. So are, where
  Python reads it (inputs that hold strings, images to decode, `--transport=python`), more than 2^20 strings, lists and
  booleans, or 2^24 values.
- **Bodies over REST may be deflated**, as `aiohttp` sends them (`compress=True`), not gzipped alone. One that cannot
  be read is refused with the name of a `Content-Encoding` that is neither.
- **Administration needs credentials**: reloads, loads, unloads and `/v2/config` need a key, token or certificate
  with the scope `admin` (`--access_file`, see [Securing a server](securing.md)), from this machine, too. Upstream
  accepts reloads from every caller that reaches the port: `--insecure_admin=anywhere`; for this machine alone,
  `=loopback`.
- **In the place of SageMaker's own TensorFlow container** (argument `serve`), models are found where it finds them
  (`/opt/ml/model/1/`, `.../NAME/1/`, `.../export/Servo/1/`), and `/invocations` takes rows without names as JSON, JSON
  lines and CSV, and answers in one line where `Accept` asks for JSON or JSON lines. `code/inference.py` is not run, and
  of the variables `SAGEMAKER_TFS_...` only `SAGEMAKER_TFS_DEFAULT_MODEL_NAME` counts: the log says so of both.
  Multi-model endpoints (`SAGEMAKER_MULTI_MODEL`, `/models`) are refused at the start.
- **An unknown flag is an error** that names the nearest one; upstream prints its usage and starts all the same.
"""

_URLS = (
    ("POST /v1/models/NAME[/versions/N or /labels/L]:predict", "same"),
    ("POST /v1/models/NAME[/versions/N or /labels/L]:classify", "same"),
    ("POST /v1/models/NAME[/versions/N or /labels/L]:regress", "same"),
    ("GET /v1/models/NAME[/versions/N]", "same; 503 until a model that the server starts with can answer"),
    ("GET /v1/models/NAME[/versions/N or /labels/L]/metadata", "same"),
    ("GET /monitoring/prometheus/metrics", "same, with `--monitoring_config_file`"),
    ("GET /metrics", "ours: the same page, without any file"),
    ("GET /v1/models", "better: lists models, versions, states, labels and signatures; upstream answers 400"),
    ("GET /v2/config", "ours: the configuration in force, secrets masked; needs the scope `admin`"),
    ("GET /openapi.json", "ours: all of these as an OpenAPI document, with each loaded model's own requests"),
    ("GET /console", "ours: pages for people, with `--console`"),
    ("GET /v2/traffic", "ours: splits, shadows and rollbacks, with `--version_traffic_file`"),
    ("GET /v2/health/live, /v2/health/ready", "ours: liveness, and readiness that tells the truth"),
    ("/v2/...", "ours: the Open Inference Protocol, REST; over gRPC `inference.GRPCInferenceService`"),
)
_OTHER_SERVICES = (
    ("/tensorflow.serving.SessionService/SessionRun", "missing, as in the stock binary: UNIMPLEMENTED"),
    ("/grpc.health.v1.Health/*", "better: on by default, truthful for the server and for each model"),
    ("/grpc.reflection.v1alpha.ServerReflection/*", "ours"),
    ("/tensorflow.ProfilerService/*", "missing: UNIMPLEMENTED"),
)


def page() -> str:
    """The page's text."""
    lines = [_HEAD, "## Flags", "", "| flag | default | here | what it does |", "|---|---|---|---|"]
    for flag in FLAGS:
        text = flag.help + (f"; {flag.note}" if flag.note else "")
        lines.append(f"| `--{flag.name}` | `{_default(flag.default)}` | {flag.effect} | {text} |")
    lines += ["", "## RPCs", "", "| method | here |", "|---|---|"]
    for service in (PREDICTION_SERVICE, MODEL_SERVICE):
        lines += [f"| `{method.path}` | same |" for method in service.values()]
    lines += [f"| `{path}` | {text} |" for path, text in _OTHER_SERVICES]
    lines += ["", "## URLs", "", "| URL | here |", "|---|---|"]
    lines += [f"| `{url}` | {text} |" for url, text in _URLS]
    lines += [
        "",
        "## Metrics",
        "",
        "TensorFlow Serving's, by their names and with their labels, and more. TensorFlow's own, such as "
        "`:tensorflow:core:graph_runs`, are not there: [metrics](metrics.md) has what to ask in their place.",
    ]
    return "\n".join(lines) + "\n"


def _default(value: bool | int | float | str) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value) or '""'
