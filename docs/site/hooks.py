"""What the site has beside the pages in docs/: files from elsewhere in the repository, and reference pages.

Pages are written for readers of the repository: a link to a file that is no page becomes its path.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.metadata
import inspect
import json
import os
import posixpath
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import griffe
from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[2]
#: Pages by file of the repository.
ELSEWHERE = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "SECURITY.md": "security.md",
    "serving/core/README.md": "native-core.md",
}
#: Packages whose names are for users.
PACKAGES = ("artifact", "clients", "export", "loadtests", "pipeline", "serving", "training")
#: What to do about each error that is raised.
REMEDIES = {
    "InvalidRequestError": "Correct the request: the message names the field and what was expected.",
    "InvalidModelSpecError": "Send a model's name, and a label that `/v1/models` or `modelyard repo ls` shows.",
    "InvalidInputError": "Compare with the signature, which `/v1/models/NAME/metadata` shows.",
    "ImageDecodeError": "Send the whole file of a JPEG, PNG, BMP, GIF or WebP image.",
    "RequestTooLargeError": "Split the request, or raise the limit that the message names.",
    "ModelNotFoundError": "Check the name, the version and the server's log: the version may have failed to load.",
    "ModelNotReadyError": "Wait until the version is AVAILABLE, or point the label at one that is.",
    "FixedConfigurationError": "Change the repository or the file that decides, or start with other flags.",
    "SignatureNotFoundError": "Use one of the signatures that the message lists.",
    "UnsupportedError": "Use what the message names instead.",
    "UnauthenticatedError": "Send a key, token or certificate of `--access_file`.",
    "PermissionDeniedError": "Ask the server's administrator for the scope that the message names.",
    "UnavailableError": "Try again, as clients do where that is safe; then check address, readiness and log.",
    "OverloadedError": "Try again after `retry_after_s`; where it lasts, add servers or raise the queue's limits.",
    "DeadlineExceededError": "Give more time (`timeout_s`), or find what is slow in the log and metrics.",
    "RequestCancelledError": "Nothing: the caller itself gave up.",
    "PredictionError": "Look for the request's id in the server's log; the model fails on these inputs.",
    "InternalError": "Report it, with the request's id and the server's log.",
    "ProtocolError": "Check that the URL's scheme and port are those of the protocol; a proxy may answer instead.",
    "ManifestError": "Export or publish the version again; the message names the field.",
    "IntegrityError": "Copy or publish the version again: its files were changed or cut.",
    "PublishError": "Check the folder's permissions and free space.",
    "LoadError": "Install the extra that the message names, or export the model to ONNX.",
    "ExportError": "Follow the message, which names the format, the signature and the option.",
    "ConversionError": "Change the operation that is named, or leave the format out: `--optional FORMAT`.",
    "VerificationError": "Look at the worst output in the message; where its error is acceptable, `--tolerance`.",
    "TrainingError": "Follow the message, which names the option or the method of the task.",
    "DatasetNotFoundError": "Name a folder with the data by `MODELYARD_DATA`; the message lists where it looked.",
    "CheckpointError": "Use the run's own task and options, or another `model_dir`.",
    "NonFiniteLossError": "Look at the batch that the message names; lower the learning rate or clip gradients.",
    "ConfigurationError": "Correct the flag, field or variable that is named.",
    "MissingDependencyError": "Run the `pip install` line of the message.",
    "LoadTestError": "Look at the limit that is named, and at the report.",
    "DeploymentError": "Check credentials and region; the message has the cloud's own words.",
}
_ROLE = re.compile(r":\w+:`~?([^`]+)`")
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages that are no files in docs/."""
    for source, page in ELSEWHERE.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text("utf-8")))
    for name in PACKAGES:
        text = f"# modelyard.{name}\n\n::: modelyard.{name}\n    options:\n      show_root_members_full_path: false\n"
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for make in (commands, flags, api, errors, manifest):
        files.append(File.generated(config, f"reference/{make.__name__}.md", content=make()))
    files.append(File.generated(config, "reference/openapi.json", content=json.dumps(_openapi(), indent=1)))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Has links lead to pages, wherever the text comes from."""
    name = page.file.src_uri
    source = next((each for each, made in ELSEWHERE.items() if made == name), f"docs/{name}")
    here = posixpath.dirname(source)

    def replaced(match: re.Match[str]) -> str:
        image, text, target, anchor = match.groups()
        if "://" in target or target.startswith("mailto:"):
            return match[0]
        path = posixpath.normpath(posixpath.join(here, target))
        made = ELSEWHERE.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else "")
        if made and files.get_file_from_path(made) is not None:
            return f"{image}[{text}]({posixpath.relpath(made, posixpath.dirname(name) or '.')}{anchor or ''})"
        if not (ROOT / path).exists():
            return match[0]
        return text if text.strip("`") == path else f"{text} (`{path}`)"

    # What stands in a block of code is no link.
    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    return "".join(part if part.startswith("```") else _LINK.sub(replaced, part) for part in parts)


def on_page_content(html: str, page: Any, config: Any, files: Any) -> str:
    """Marks short code, which no line ends in: browsers break after the hyphens of ``--flag``."""
    return re.sub(r"<code>([^<\n]{1,40})</code>", r'<code class="short">\1</code>', html)


def commands() -> str:
    """What every command says of itself."""
    lines = ["# Command line", "", "```text", _help(), "```", ""]
    for name in _commands(_help()):
        text = _help(name)
        if name == "serve":
            # Its flags have a page of their own.
            paragraphs = [each for each in text.split("\n\n") if not re.search(r"^usage:|^  -", each, re.MULTILINE)]
            text = "\n\n".join([*paragraphs, "flags: see the page Server flags"])
        lines += [f"## modelyard {name}", "", "```text", text, "```", ""]
        for part in _commands(text):
            lines += [f"### modelyard {name} {part}", "", "```text", _help(name, part), "```", ""]
    return "\n".join(lines)


def _commands(text: str) -> list[str]:
    """The commands that a help text lists, by argparse or below a heading."""
    listed = re.search(r"^commands\b.*:\n((?:  .*\n)+)", text, re.MULTILINE)
    found = re.findall(r"^  ([a-z]\w+)  ", listed[1], re.MULTILINE) if listed else []
    return [name for name in found or re.findall(r"^    ([a-z]\w+)  ", text, re.MULTILINE) if name != "version"]


@functools.cache
def _help(*arguments: str) -> str:
    command = [str(Path(sys.executable).with_name("modelyard")), *arguments, "--help"]
    environment = {**os.environ, "COLUMNS": "98", "NO_COLOR": "1"}
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout.strip()


def flags() -> str:
    """Every flag of the server that has an effect, by name."""
    from modelyard.serving.config import FLAGS

    lines = [
        "# Server flags",
        "",
        "Flags of `modelyard serve` by name: `--name=value` or `--name value`; `--flagfile` reads them from a file.",
        "[From TensorFlow Serving](../migrating-from-tensorflow-serving.md#flags) says what becomes of its flags here.",
        "",
        "| flag | default | what it does |",
        "|---|---|---|",
    ]
    for flag in sorted(FLAGS, key=lambda each: each.name):
        if flag.effect != "ignored":
            default = str(flag.default).lower() if isinstance(flag.default, bool) else flag.default
            text = flag.help + (f" ({', '.join(f'`{each}`' for each in flag.choices)})" if flag.choices else "")
            lines.append(f"| `--{flag.name}` | {f'`{default}`' if default != '' else ''} | {text} |")
    return "\n".join(lines) + "\n"


def _openapi() -> dict[str, Any]:
    """The document of a server without a model."""
    from modelyard.serving.handlers.openapi import openapi_document

    pages = ("/v1/models", "/v2/config", "/v2/traffic", "/openapi.json")
    version = importlib.metadata.version("modelyard")
    return openapi_document({}, version=version, metrics_paths=("/metrics",), pages=pages, sagemaker=True)


def api() -> str:
    """Every URL and every gRPC method, by API."""
    from modelyard import wire

    document = _openapi()
    lines = [
        "# HTTP and gRPC API",
        "",
        "A server describes its REST API itself, with the signatures of its models and examples that work, at",
        "`http://HOST:8501/openapi.json` ([how to use it](../console.md#openapi)). Without models that is",
        "[openapi.json](openapi.json) (OpenAPI 3.1). What each status means is in [Errors](errors.md), which scope a",
        "call needs in [Securing a server](../securing.md#what-a-call-may-do-every-api).",
        "",
        "## HTTP",
        "",
    ]
    for tag in (each["name"] for each in document["tags"]):
        lines += [f"### {tag}", "", "| method | URL | what it does |", "|---|---|---|"]
        lines += [
            f"| {method.upper()} | `{path}` | {operation['summary']} |"
            for path, operations in document["paths"].items()
            for method, operation in operations.items()
            if tag in operation["tags"]
        ] + [""]
    lines += [
        "## gRPC",
        "",
        "The messages are TensorFlow Serving's and Triton's own, field by field (`clients/modelyard/wire/protos`), so",
        "that stubs made for those servers work. `grpc.reflection.v1alpha` describes them, `grpc.health.v1` is served.",
        "",
    ]
    for service in (wire.PREDICTION_SERVICE, wire.MODEL_SERVICE, wire.INFERENCE_SERVICE):
        methods = list(service.values())
        lines += [f"### {methods[0].service}", "", "| method | request | answer |", "|---|---|---|"]
        lines += [
            f"| `{each.name}` | `{each.request.DESCRIPTOR.name}` | `{each.response.DESCRIPTOR.name}` |"
            for each in methods
        ]
        lines.append("")
    lines[-1:] = ["| `ModelStreamInfer` | stream of `ModelInferRequest` | stream of `ModelStreamInferResponse` |", ""]
    return "\n".join(lines)


def errors() -> str:
    """Every error: what it means, and what each transport makes of it."""
    from modelyard import errors as tree
    from modelyard.wire import grpc_status_of, http_status_of

    lines = [
        "# Errors",
        "",
        "One tree for all packages, in `modelyard.errors`. Each error's message says what was received, what was",
        "expected and what to do; clients raise the class that the server meant.",
        "",
        "| error, and what it is a kind of | gRPC, HTTP | cause | remedy |",
        "|---|---|---|---|",
    ]
    for kind in (each for _, each in inspect.getmembers(tree, inspect.isclass)):
        if issubclass(kind, tree.ModelyardError):
            text = " ".join((kind.__doc__ or "").split("\n\n")[0].split())
            # Some take other arguments; only the class counts here.
            error = kind.__new__(kind)
            name, parent = kind.__name__, kind.__bases__[0].__name__
            # A class that others are made of is not raised itself, but for those above.
            remedy = REMEDIES.get(name, "") if kind.__subclasses__() else REMEDIES[name]
            status = f"{grpc_status_of(error)}<br>{http_status_of(error)}"
            lines.append(f"| `{name}`<br>`{parent}` | {status} | {text} | {remedy} |")
    return "\n".join(lines) + "\n"


def manifest() -> str:
    """The fields of manifest.json, by its schema and the docstrings of what reads it."""
    from modelyard import artifact

    kinds = [each for each in map(vars(artifact).get, artifact.__all__) if inspect.isclass(each)]
    kinds = [each for each in kinds if dataclasses.is_dataclass(each)]
    text = (ROOT / "export/modelyard/artifact/manifest.schema.json").read_text("utf-8")
    schema = json.loads(text)
    lines = [
        "# Manifest",
        "",
        "`manifest.json` says what a version holds, where it came from and what was checked. A server checks it,",
        "and every file against it, before it loads the version. [`read_manifest`](artifact.md) reads it in Python.",
        "",
    ]
    for title, part in ({"manifest": schema} | schema["$defs"]).items():
        if "properties" in part:
            fields = part["properties"]
            meant = _attributes(max(kinds, key=lambda kind: len(fields.keys() & _names(kind)) / len(_names(kind))))
            lines += [f"## {title}", "", "| field | type | what it is |", "|---|---|---|"]
            for name, kind in fields.items():
                optional = "" if name in part.get("required", ()) else "optional; "
                lines.append(f"| `{name}` | {optional}{_type_of(kind)} | {meant.get(name, '')} |")
            lines.append("")
    return "\n".join([*lines, "## The schema", "", "```json", text.strip(), "```", ""])


def _names(kind: type) -> set[str]:
    return {each.name for each in dataclasses.fields(kind)}


def _attributes(kind: type) -> dict[str, str]:
    """What a docstring says of each attribute."""
    sections = griffe.Docstring(inspect.getdoc(kind) or "").parse("google", warnings=False)
    found = [section.value for section in sections if section.kind.value == "attributes"]
    text = {each.name: " ".join(each.description.split()) for values in found for each in values}
    return {name: _ROLE.sub(r"`\1`", each).replace("``", "`").replace("|", "\\|") for name, each in text.items()}


def _type_of(schema: dict[str, Any]) -> str:
    """A type of JSON Schema in a few words."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        return f"[{name}](#{name})"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return " or ".join(f"`{json.dumps(value)}`" for value in schema["enum"])
    for choice in ("oneOf", "anyOf"):
        if choice in schema:
            return " or ".join(_type_of(each) for each in schema[choice])
    kinds = schema.get("type", "object")
    text = " or ".join([kinds] if isinstance(kinds, str) else kinds)
    if "items" in schema:
        text += f" of {_type_of(schema['items'])}"
    if isinstance(schema.get("additionalProperties"), dict):
        text += f" of names to {_type_of(schema['additionalProperties'])}"
    return text
