"""Reads the parts of a manifest strictly: a field that is missing or has the wrong type is an error that names it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from modelyard.artifact._manifest_parts import (
    ClassAccuracy,
    FileEntry,
    FloatLayer,
    FormatEntry,
    Latency,
    Refusal,
    RowsCheck,
    RuntimeChoice,
    Source,
    StochasticOutput,
    VerifyReport,
)
from modelyard.artifact._signature import ExampleDecode, FeatureSpec, ImageDecode, Signature, TensorSpec
from modelyard.errors import ManifestError

_T = TypeVar("_T")


class Reader:
    """Reads one JSON object; every error names the place in the document."""

    def __init__(self, document: Any, place: str) -> None:
        if not isinstance(document, dict):
            raise ManifestError(f"{place}: expected an object; received {type(document).__name__}.")
        self.document = document
        self.place = place

    def get(self, key: str, kind: type[Any] | tuple[type[Any], ...], *, optional: bool = False) -> Any:
        if key not in self.document:
            if optional:
                return None
            raise ManifestError(f"{self.place}: missing {key!r}.")
        value = self.document[key]
        if optional and value is None:
            return None
        # bool is a subclass of int, and no field that is read here is a bool.
        if not isinstance(value, kind) or isinstance(value, bool):
            names = [item.__name__ for item in (kind if isinstance(kind, tuple) else (kind,))]
            raise ManifestError(f"{self.place}.{key}: expected {' or '.join(names)}; received {type(value).__name__}.")
        return value

    def flag(self, key: str) -> bool:
        """A field that manifests of earlier exporters do not have."""
        value = self.document.get(key, False)
        if not isinstance(value, bool):
            raise ManifestError(f"{self.place}.{key}: expected a bool; received {type(value).__name__}.")
        return value

    def child(self, key: str) -> Reader:
        return Reader(self.get(key, dict), f"{self.place}.{key}")

    def mapping(self, key: str, parse: Callable[[Reader], _T]) -> dict[str, _T]:
        child = self.child(key)
        return {name: parse(child.child(name)) for name in child.document}

    def sequence(self, key: str, parse: Callable[[Reader], _T], *, optional: bool = False) -> tuple[_T, ...]:
        items = self.get(key, list, optional=optional) or []
        return tuple(parse(Reader(item, f"{self.place}.{key}[{index}]")) for index, item in enumerate(items))


def read_texts(reader: Reader, key: str) -> dict[str, str]:
    """A mapping from text to text that may be missing."""
    if reader.get(key, dict, optional=True) is None:
        return {}
    child = reader.child(key)
    return {name: child.get(name, str) for name in child.document}


def read_source(reader: Reader) -> Source:
    """The field ``source``."""
    return Source(
        task=reader.get("task", str),
        git_commit=reader.get("git_commit", str),
        data=reader.get("data", str),
        config=reader.get("config", dict),
        metrics=reader.get("metrics", dict),
    )


def _spec(reader: Reader) -> TensorSpec:
    shape = reader.get("shape", list, optional=True)
    return TensorSpec(
        name=reader.get("name", str),
        dtype=reader.get("dtype", str),
        shape=None if shape is None else _integers(reader, "shape"),
    )


def _integers(reader: Reader, key: str) -> tuple[int, ...]:
    items = reader.get(key, list)
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in items):
        raise ManifestError(f"{reader.place}.{key}: expected integers; received {items}.")
    return tuple(items)


def read_signature(reader: Reader) -> Signature:
    """One entry of ``signatures``."""
    decode = None if reader.get("decode", dict, optional=True) is None else _decode(reader.child("decode"))
    return Signature(
        inputs=reader.sequence("inputs", _spec),
        outputs=reader.sequence("outputs", _spec),
        compute=reader.get("compute", str),
        method=reader.get("method", str),
        decode=decode,
        preprocess=reader.get("preprocess", str, optional=True),
        stateful=reader.flag("stateful"),
        unbatched=reader.flag("unbatched"),
    )


def _decode(reader: Reader) -> ImageDecode | ExampleDecode:
    kind = reader.get("kind", str)
    if kind == "example":
        return ExampleDecode(input=reader.get("input", str), features=reader.sequence("features", _feature))
    channels = reader.get("channels", int) if kind == "image" else None
    if channels not in (1, 3):
        raise ManifestError(
            f"{reader.place}: decode kind {kind!r} with {channels} channels is unknown; expected 'image' with 1 or 3, "
            "or 'example'."
        )
    return ImageDecode(input=reader.get("input", str), channels=channels)


def _feature(reader: Reader) -> FeatureSpec:
    default = reader.get("default", list, optional=True)
    return FeatureSpec(
        name=reader.get("name", str),
        dtype=reader.get("dtype", str),
        shape=_integers(reader, "shape"),
        default=None if default is None else tuple(default),
        input=reader.get("input", str, optional=True),
    )


def read_file(reader: Reader) -> FileEntry:
    """One entry of ``files``."""
    return FileEntry(path=reader.get("path", str), bytes=reader.get("bytes", int), sha256=reader.get("sha256", str))


def read_format(reader: Reader) -> FormatEntry:
    """One entry of ``formats``."""
    renamed = Reader(reader.get("renamed", dict, optional=True) or {}, f"{reader.place}.renamed")
    has_others = reader.get("other_runtimes", dict, optional=True) is not None
    return FormatEntry(
        path=reader.get("path", str),
        precision=reader.get("precision", str),
        converter=reader.get("converter", dict),
        runtime=reader.get("runtime", dict),
        verify=_verify(reader.child("verify")),
        other_runtimes=reader.mapping("other_runtimes", _verify) if has_others else {},
        renamed={name: read_texts(renamed, name) for name in renamed.document},
        computed=read_texts(reader, "computed"),
        domains=_domains(reader),
        kept_float32=reader.sequence("kept_float32", _float_layer, optional=True),
    )


def _float_layer(reader: Reader) -> FloatLayer:
    return FloatLayer(
        graph=reader.get("graph", str),
        layer=reader.get("layer", str),
        operator=reader.get("operator", str),
        error=reader.get("error", (float, int), optional=True),
    )


def _domains(reader: Reader) -> tuple[str, ...]:
    items = reader.get("domains", list, optional=True) or []
    if not all(isinstance(item, str) for item in items):
        raise ManifestError(f"{reader.place}.domains: expected strings; received {items}.")
    return tuple(items)


def _verify(verify: Reader) -> VerifyReport:
    return VerifyReport(
        examples=verify.get("examples", int),
        batch_sizes=_integers(verify, "batch_sizes"),
        max_abs_error=verify.get("max_abs_error", (float, int)),
        max_rel_error=verify.get("max_rel_error", (float, int)),
        top1_agreement=verify.get("top1_agreement", (float, int), optional=True),
        metric_before=verify.get("metric_before", (float, int), optional=True),
        metric_after=verify.get("metric_after", (float, int), optional=True),
        by_signature=verify.get("by_signature", dict),
        accuracy_drop=verify.get("accuracy_drop", (float, int), optional=True),
        tolerance=verify.get("tolerance", (float, int), optional=True),
        by_class=verify.sequence("by_class", _class_accuracy, optional=True),
        stochastic=verify.sequence("stochastic", _stochastic, optional=True),
        rows={} if verify.get("rows", dict, optional=True) is None else verify.mapping("rows", _rows_check),
    )


def _rows_check(reader: Reader) -> RowsCheck:
    verdict = reader.get("verdict", str)
    if verdict not in ("independent", "dependent", "unknown"):
        raise ManifestError(
            f"{reader.place}.verdict: expected 'independent', 'dependent' or 'unknown'; received {verdict!r}."
        )
    return RowsCheck(verdict=verdict, reason=reader.get("reason", str))


def _class_accuracy(reader: Reader) -> ClassAccuracy:
    return ClassAccuracy(
        name=reader.get("name", str),
        examples=reader.get("examples", int),
        before=reader.get("before", (float, int)),
        after=reader.get("after", (float, int)),
    )


def _stochastic(reader: Reader) -> StochasticOutput:
    return StochasticOutput(
        signature=reader.get("signature", str),
        output=reader.get("output", str),
        examples=reader.get("examples", int),
        draws=reader.get("draws", int),
        elements=reader.get("elements", int),
        distance=reader.get("distance", (float, int)),
        p_value=reader.get("p_value", (float, int)),
        significance=reader.get("significance", (float, int)),
    )


def read_latency(reader: Reader) -> Latency:
    """One entry of ``latency``."""
    return Latency(
        format=reader.get("format", str),
        runtime=reader.get("runtime", str),
        signature=reader.get("signature", str),
        batch_size=reader.get("batch_size", int),
        threads=reader.get("threads", int),
        p50_us=reader.get("p50_us", (float, int)),
        # Manifests of the first exporters know float32 only.
        precision=reader.get("precision", str, optional=True) or "float32",
        examples_per_s=reader.get("examples_per_s", (float, int), optional=True),
    )


def read_choice(reader: Reader) -> RuntimeChoice:
    """One entry of ``choices``."""
    return RuntimeChoice(
        runtime=reader.get("runtime", str),
        format=reader.get("format", str),
        precision=reader.get("precision", str),
        threads=reader.get("threads", int),
        p50_us=reader.get("p50_us", (float, int)),
        speedup=reader.get("speedup", (float, int), optional=True),
    )


def read_refusal(reader: Reader) -> Refusal:
    """One entry of ``refused``."""
    return Refusal(
        format=reader.get("format", str),
        precision=reader.get("precision", str),
        runtime=reader.get("runtime", str),
        measure=reader.get("measure", str),
        value=reader.get("value", (float, int), optional=True),
        allowed=reader.get("allowed", (float, int), optional=True),
        reason=reader.get("reason", str),
    )
