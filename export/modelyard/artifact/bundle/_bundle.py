"""From a published version to one file for phones."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    AnyVersion,
    ImageDecode,
    Manifest,
    Precision,
    Signature,
    format_key,
    format_path,
    read_manifest,
    replace_file,
    verify_files,
)
from modelyard.artifact.bundle._graph import Graph
from modelyard.artifact.bundle._metadata import LABELS_FILE, Image, Tensor, write_metadata
from modelyard.errors import ConfigurationError, LoadError, VerificationError
from modelyard.lazy import needs_extra

Array = npt.NDArray[Any]
#: Of the spread of what a preprocess graph makes of 0 to 255: how far off a line it may be.
_AFFINE = 1e-4


@dataclass(frozen=True, kw_only=True)
class BundleOptions:
    """What goes into a bundle.

    Attributes:
        signature: Whose graph. Of one that starts from encoded images it is the graph that they end in: phones decode.
        precision: Which of the version's TFLite files.
        outputs: Which outputs, by name; None for those of floats. MediaPipe takes nothing else for scores.
        labels: Names of the classes in their order; None for those that the graph itself looks its ``label`` up in.
        mean: With ``std``: the input is an image, and the model takes ``(pixel - mean) / std``; one number, or one
            for each channel. None where an image signature of the version says so.
        std: See ``mean``.
    """

    signature: str = DEFAULT_SIGNATURE
    precision: Precision = "float32"
    outputs: Sequence[str] | None = None
    labels: Sequence[str] | None = None
    mean: Sequence[float] | None = None
    std: Sequence[float] | None = None

    def __post_init__(self) -> None:
        if (self.mean is None) != (self.std is None):
            raise ConfigurationError("mean (--mean) and std (--std) belong together; received one of them.")
        if self.std is not None and not all(self.std):
            raise ConfigurationError(f"std (--std) is {list(self.std)}; expected no zero: pixels are divided by it.")


@dataclass(frozen=True, kw_only=True)
class Bundle:
    """What was written.

    Attributes:
        path: The file.
        bytes: Its size.
        outputs: Names of its outputs.
        labels: Names of the classes; empty where there are none.
        image: Height, width and channels where the input is an image, else None.
        mean: For each channel of an image.
        std: For each channel of an image.
    """

    path: Path
    bytes: int
    outputs: tuple[str, ...]
    labels: tuple[str, ...] = ()
    image: tuple[int, int, int] | None = None
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    def __str__(self) -> str:
        """What ``modelyard repo bundle`` says of it."""
        image = (
            ""
            if self.image is None
            else f"image {list(self.image)}, (pixel - {_some(self.mean)}) / {_some(self.std)}; "
        )
        labels = f" ({len(self.labels)} labels)" if self.labels else ""
        return f"{self.path}, {self.bytes / 1e3:,.1f} kB; {image}{', '.join(self.outputs)}{labels}"


def _some(values: Sequence[float]) -> str:
    return ", ".join(f"{value:g}" for value in (values[:1] if len({*values}) == 1 else values))


def write_bundle(version: AnyVersion, path: Path, options: BundleOptions | None = None) -> Bundle:
    """Writes one file for phones: a TFLite file of one graph, with TFLite Metadata and the labels in it.

    MediaPipe's tasks, ML Kit and LiteRT read it; LiteRT ignores the metadata. The file is written only when LiteRT
    computes the same with it, bit for bit, as with the version's own.

    Args:
        version: The version, as :func:`modelyard.artifact.find_version` finds it.
        path: Where the file goes; one that is there is replaced.
        options: What goes into it.

    Raises:
        ArtifactError: The version cannot be read, or the file cannot be written.
        IntegrityError: The TFLite file is not what the manifest says.
        ConfigurationError: The version has no such TFLite file, signature or outputs; the labels do not fit; or
            images are made ready in a way that metadata has no words for.
        VerificationError: The bundle computes something else.
    """
    options = options or BundleOptions()
    manifest = read_manifest(version.path)
    content = _read(version, manifest, options)
    key, preparing = _find(manifest, options.signature)
    original = _interpreter(content)
    runner = original.get_signature_runner(key)
    graph = Graph(content, key)
    kept = _outputs(graph, runner, options)
    labels, labelled = _labels(graph, runner, kept, options)
    inputs = [
        Tensor(name=name, image=_image(original, runner, name, preparing, options) if len(graph.inputs) == 1 else None)
        for name in graph.inputs
    ]
    if options.mean is not None and len(inputs) != 1:
        raise ConfigurationError(f"mean (--mean) is for models of one input; this one has {', '.join(graph.inputs)}.")
    metadata = write_metadata(
        manifest.model,
        str(manifest.version),
        f"{manifest.model}, version {manifest.version}, signature {key}.",
        inputs,
        [Tensor(name=name, labelled=name == labelled) for name in kept],
    )
    packed = _with_labels(graph.pack(kept, metadata), labels)
    _compare(runner, _interpreter(packed).get_signature_runner(key), kept)
    replace_file(path, packed)
    image = inputs[0].image
    return Bundle(
        path=path,
        bytes=len(packed),
        outputs=tuple(kept),
        labels=tuple(labels),
        image=None if image is None else (image.height, image.width, image.channels),
        mean=() if image is None else image.mean,
        std=() if image is None else image.std,
    )


def _read(version: AnyVersion, manifest: Manifest, options: BundleOptions) -> bytes:
    key = format_key("tflite", options.precision)
    name = format_path("tflite", options.precision)
    entries = tuple(each for each in manifest.files if each.path == name)
    if key not in manifest.formats or not entries:
        raise ConfigurationError(
            f"{manifest.model} version {manifest.version} has no format {key}; it has "
            f"{', '.join(sorted(manifest.formats))}. Export it with --format tflite --precision {options.precision}."
        )
    verify_files(version.path, replace(manifest, files=entries))
    return (version.path / name).read_bytes()


def _find(manifest: Manifest, name: str) -> tuple[str, Signature | None]:
    """The graph, and the signature that makes images ready for it, if one does."""
    if name not in manifest.signatures:
        raise ConfigurationError(
            f"{manifest.model} version {manifest.version} has no signature {name!r}; it has "
            f"{', '.join(sorted(manifest.signatures))}."
        )
    key = manifest.signatures[name].compute
    images = [
        each for each in manifest.signatures.values() if isinstance(each.decode, ImageDecode) and each.compute == key
    ]
    return key, images[0] if images else None


def _outputs(graph: Graph, runner: Any, options: BundleOptions) -> list[str]:
    details = runner.get_output_details()
    if options.outputs is not None:
        unknown = sorted({*options.outputs} - details.keys())
        if unknown or not options.outputs:
            raise ConfigurationError(
                f"outputs (--outputs) is {list(options.outputs)}; expected some of {', '.join(sorted(details))}."
            )
        return [name for name in graph.outputs if name in options.outputs]
    floats = [name for name in graph.outputs if np.dtype(details[name]["dtype"]).kind == "f"]
    return floats or graph.outputs


def _labels(graph: Graph, runner: Any, kept: Sequence[str], options: BundleOptions) -> tuple[Sequence[str], str | None]:
    """The names of the classes, and the output that they name."""
    details = runner.get_output_details()
    sizes = {name: int(details[name]["shape"][-1]) for name in kept if len(details[name]["shape"]) == 2}
    tables = graph.class_names() if options.labels is None else [options.labels]
    for names in tables:
        for output, size in sizes.items():
            if size == len(names):
                return names, output
    if options.labels is not None:
        raise ConfigurationError(
            f"labels (--labels) are {len(options.labels)}; expected one for each value of an output. The outputs have "
            f"{', '.join(f'{size} ({name})' for name, size in sizes.items()) or 'no values of classes'}."
        )
    return (), None


def _image(
    interpreter: Any, runner: Any, name: str, preparing: Signature | None, options: BundleOptions
) -> Image | None:
    """What the input takes, where it is an image: as told, or as the version's image signature makes images ready."""
    if preparing is None and options.mean is None:
        return None
    detail = runner.get_input_details()[name]
    shape = [int(size) for size in detail["shape_signature"]]
    if len(shape) != 4 or shape[3] not in (1, 3) or min(shape[1:]) < 1:
        raise ConfigurationError(
            f"The input {name!r} has the shape {shape}; expected [-1, height, width, 1 or 3] of an image, each given."
        )
    height, width, channels = shape[1:]
    if options.mean is not None and options.std is not None:
        mean, std = (_spread(values, channels) for values in (options.mean, options.std))
    else:
        mean, std = _measure(interpreter, preparing, (height, width, channels))
    normalized = np.dtype(detail["dtype"]) != np.uint8
    return Image(height=height, width=width, channels=channels, mean=mean, std=std, normalized=normalized)


def _spread(values: Sequence[float], channels: int) -> tuple[float, ...]:
    if len(values) not in (1, channels):
        raise ConfigurationError(
            f"mean (--mean) or std (--std) has {len(values)} numbers; expected 1, or {channels}, one for each channel."
        )
    return tuple(values) * (channels // len(values))


def _measure(
    interpreter: Any, signature: Signature | None, shape: tuple[int, int, int]
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """What the preprocess graph makes of pixels: it is asked, and held to the answer on a random image."""
    name = signature.preprocess if signature is not None else None
    channels = getattr(getattr(signature, "decode", None), "channels", None)
    hint = "Say what the model takes: mean (--mean) and std (--std)."
    if channels != shape[2]:
        raise ConfigurationError(
            f"The image signature decodes {channels} channels, and the model takes {shape[2]}. {hint}"
        )
    runner = interpreter.get_signature_runner(name)
    (source,) = runner.get_input_details()

    def make_ready(pixels: Array) -> Array:
        (ready,) = runner(**{source: pixels.astype(np.uint8)}).values()
        return np.asarray(ready, np.float64)

    low, high = (make_ready(np.full(shape, value)).mean((0, 1)) for value in (0, 255))
    pixels = np.random.default_rng(0).integers(0, 256, shape)
    with np.errstate(divide="ignore", invalid="ignore"):
        std = 255 / (high - low)
        mean = -low * std
        told = [tuple(float(f"{value:.6g}") + 0.0 for value in each) for each in (mean, std)]
        off = np.abs(make_ready(pixels) - (pixels - told[0]) / told[1]).max()
    if not off <= _AFFINE * np.abs(high - low).max():
        raise ConfigurationError(
            f"Graph {name!r} makes something else of an image than (pixel - mean) / std, and metadata has no words "
            f"for that. {hint}"
        )
    return told[0], told[1]


def _with_labels(content: bytes, labels: Sequence[str]) -> bytes:
    """Files of a bundle are a zip archive behind the model, not compressed."""
    if not labels:
        return content
    file = io.BytesIO(content)
    with zipfile.ZipFile(file, "a") as archive:
        # Dated 1980, as it is by itself: the same version makes the same file.
        archive.writestr(zipfile.ZipInfo(LABELS_FILE), "\n".join(labels))
    return file.getvalue()


def _interpreter(content: bytes) -> Any:
    with needs_extra("export", "ai_edge_litert", purpose="modelyard repo bundle"):
        from ai_edge_litert.interpreter import Interpreter
    try:
        return Interpreter(model_content=content)
    except ValueError as exc:
        raise LoadError(f"LiteRT cannot load the file: {exc}") from exc


def _compare(before: Any, after: Any, outputs: Sequence[str]) -> None:
    rng = np.random.default_rng(0)
    feed = {}
    for name, detail in before.get_input_details().items():
        values, dtype = rng.random(detail["shape"]), np.dtype(detail["dtype"])
        feed[name] = values.astype(dtype) if dtype.kind == "f" else np.zeros(detail["shape"], dtype)
    try:
        expected, found = before(**feed), after(**feed)
    except (RuntimeError, ValueError) as exc:
        raise VerificationError(f"LiteRT does not compute the bundle: {exc}") from exc
    wrong = [name for name in outputs if np.asarray(expected[name]).tobytes() != np.asarray(found[name]).tobytes()]
    if wrong or {*found} != {*outputs}:
        raise VerificationError(
            f"The bundle does not compute what the version's file computes: {', '.join(wrong or sorted(found))}. "
            "This is a bug."
        )
