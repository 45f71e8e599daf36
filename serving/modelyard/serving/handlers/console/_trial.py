"""A call of a signature from its form, and its answer as a page shows it."""

from __future__ import annotations

import base64
import json
import math
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    ImageDecode,
    Manifest,
    Signature,
    holds_class_scores,
    read_manifest,
)
from modelyard.errors import InvalidRequestError, ManifestError
from modelyard.serving.handlers.console._forms import Form, Part
from modelyard.serving.handlers.openapi import request_url
from modelyard.serving.handlers.rest import read_loaded
from modelyard.serving.repository import ModelManager
from modelyard.serving.requests import ModelSpec
from modelyard.serving.transports.http import Answer

_WHERE = re.compile(r"(?:versions/\d{1,19}|labels/[^/:]+)?")
_MAX_ROWS, _MAX_BARS, _MAX_TEXT, _MAX_RAW = 16, 10, 400, 20_000
_MAX_IMAGE_BYTES = 2 << 20
_IMAGES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg"}


@dataclass(frozen=True, kw_only=True)
class Call:
    """The request of a form."""

    signature: str
    #: Version or label, as in a URL; empty for the default.
    where: str
    path: str
    body: bytes
    text: str
    images: Sequence[Part] = ()
    scores: Mapping[str, Sequence[str]] = field(default_factory=dict)
    outputs: Sequence[str] = ()


@dataclass(frozen=True, kw_only=True)
class Bar:
    """One class."""

    name: str
    text: str
    #: Length of the bar, 0 to 100.
    share: float


@dataclass(frozen=True, kw_only=True)
class Row:
    """The answer for one example."""

    #: The image as a data URL; empty for none.
    image: str
    image_name: str
    values: Sequence[tuple[str, str]]
    bars: Mapping[str, Sequence[Bar]]


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A call and its answer."""

    call: Call
    status: int
    milliseconds: float
    #: What the server said; empty where it answered.
    error: str
    #: One for each example; empty where the answer has another form.
    rows: Sequence[Row]
    more: int
    raw: str
    #: The same call from a command line; empty where it would be too long.
    curl: str


def call_of(manager: ModelManager, model: str, form: Form) -> Call:
    name = form.texts.get("signature") or DEFAULT_SIGNATURE
    where, text = form.texts.get("where", ""), form.texts.get("body", "")
    if not _WHERE.fullmatch(where):
        raise InvalidRequestError(f"The form has {where!r}; expected versions/N or labels/L.")
    signature, names = _known(manager, model, name, where)
    path = f"/v1/models/{quote(model, safe='')}:predict" if signature is None else request_url(model, signature)
    if where:
        head, colon, verb = path.rpartition(":")
        path = f"{head}/{quote(where, safe='/')}{colon}{verb}"
    body = text.encode()
    if form.files:
        if signature is None or not isinstance(signature.decode, ImageDecode):
            raise InvalidRequestError(f"Signature {name!r} takes no images; leave the files out.")
        instances = [{"b64": base64.b64encode(file.data).decode("ascii")} for file in form.files]
        body = json.dumps({"signature_name": name, "instances": instances}).encode()
    outputs = () if signature is None else signature.outputs
    return Call(
        signature=name,
        where=where,
        path=path,
        body=body,
        text=text,
        images=form.files,
        scores={spec.name: names for spec in outputs if holds_class_scores(spec.dtype, spec.shape)},
        outputs=[spec.name for spec in outputs],
    )


def _known(manager: ModelManager, model: str, name: str, where: str) -> tuple[Signature | None, Sequence[str]]:
    """The signature and the names of its classes; nothing where the API is to say what is wrong."""
    kind, _, value = where.partition("/")
    spec = ModelSpec(
        name=model,
        version=int(value) if kind == "versions" else None,
        label=value if kind == "labels" else None,
    )
    unknown: tuple[Signature | None, Sequence[str]] = (None, ())
    return read_loaded(
        manager, spec, lambda servable: (servable.signatures.get(name), _class_names(servable.path)), unknown
    )


def _class_names(folder: Path) -> Sequence[str]:
    try:
        manifest: Manifest = read_manifest(folder)
    except ManifestError:
        # A foreign version: classes have their numbers.
        return ()
    return max(
        ([each.name for each in entry.verify.by_class] for entry in manifest.formats.values()), key=len, default=[]
    )


def trial_of(call: Call, answer: Answer, seconds: float) -> Trial:
    text = answer.body.decode("utf-8", "replace")
    try:
        document = json.loads(text)
    except ValueError:
        # Bytes that are no JSON are shown as they are.
        document = None
    fields = document if isinstance(document, dict) else {}
    rows = _rows(fields, call)
    return Trial(
        call=call,
        status=answer.status,
        milliseconds=seconds * 1e3,
        error=str(fields.get("error", "")) if answer.status != 200 else "",
        rows=[_row(row, index, call) for index, row in enumerate(rows[:_MAX_ROWS])],
        more=max(0, len(rows) - _MAX_ROWS),
        raw=_cut(text, _MAX_RAW),
        curl=_curl(call),
    )


def _rows(document: Mapping[str, object], call: Call) -> list[dict[str, object]]:
    """The answer's examples, each by output."""
    results, predictions = document.get("results"), document.get("predictions")
    if isinstance(results, list):
        return [{"result": item} for item in results]
    single = call.outputs[0] if len(call.outputs) == 1 else "output"
    if isinstance(predictions, list):
        return [item if isinstance(item, dict) else {single: item} for item in predictions]
    if "outputs" not in document:
        return []
    outputs = document["outputs"] if isinstance(document["outputs"], dict) else {single: document["outputs"]}
    lengths = {len(value) if isinstance(value, list) else -1 for value in outputs.values()}
    if len(lengths) == 1 and -1 not in lengths:
        return [dict(zip(outputs, row, strict=True)) for row in zip(*outputs.values(), strict=True)]
    return [outputs]


def _row(values: Mapping[str, object], index: int, call: Call) -> Row:
    bars = {}
    for name, value in values.items():
        found = _bars(value, call.scores.get(name))
        if found:
            bars[name] = found
    image = call.images[index] if index < len(call.images) else None
    return Row(
        image="" if image is None else _data_url(image.data),
        image_name="" if image is None else image.filename,
        values=[
            (name, value if isinstance(value, str) else _cut(json.dumps(value, ensure_ascii=False), _MAX_TEXT))
            for name, value in values.items()
            if name not in bars
        ],
        bars=bars,
    )


def _bars(value: object, names: Sequence[str] | None) -> list[Bar]:
    """The largest classes: of a vector of scores, or of classify's pairs of label and score."""
    if not isinstance(value, list) or not value:
        return []
    if names is not None and all(map(_is_score, value)):
        known = names if len(names) == len(value) else [f"class {index}" for index in range(len(value))]
        pairs = list(zip(known, value, strict=True))
    elif all(map(_is_pair, value)):
        pairs = [(label or f"class {index}", score) for index, (label, score) in enumerate(value)]
    else:
        return []
    scores = [score for _, score in pairs]
    shares = min(scores) >= 0 and abs(sum(scores) - 1) < 0.01
    low, high = (0.0, 1.0) if shares else (min(0.0, *scores), max(0.0, *scores))
    pairs.sort(key=lambda pair: -pair[1])
    return [
        Bar(
            name=name,
            text=f"{score:.1%}" if shares else f"{score:.4g}",
            share=100 * (score - low) / (high - low) if high > low else 0.0,
        )
        for name, score in pairs[:_MAX_BARS]
    ]


def _is_score(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _is_pair(value: object) -> bool:
    return isinstance(value, list) and len(value) == 2 and isinstance(value[0], str) and _is_score(value[1])


def _data_url(data: bytes) -> str:
    kind = next((kind for magic, kind in _IMAGES.items() if data.startswith(magic)), None)
    if kind is None or len(data) > _MAX_IMAGE_BYTES:
        return ""
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"


def _curl(call: Call) -> str:
    if call.images:
        head = shlex.quote(f'{{"signature_name": {json.dumps(call.signature)}, "instances": [{{"b64": "')
        file, tail = shlex.quote(call.images[0].filename), shlex.quote('"}]}')
        return f"{{ printf %s {head}; base64 -w0 {file}; printf %s {tail}; }} |\n  curl -d @- URL{call.path}"
    if len(call.body) > _MAX_TEXT * 4:
        return ""
    return f"curl -d {shlex.quote(call.text)} \\\n  URL{call.path}"


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"
