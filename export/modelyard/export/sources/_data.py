"""Verification data from files: arrays, folders of images, TFRecords of Examples, or random numbers."""

from __future__ import annotations

import logging
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import replace
from numbers import Integral
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    FEATURE_DTYPES,
    ExampleDecode,
    FeatureSpec,
    Signature,
    TensorSpec,
    VerificationData,
    decode_examples,
    decode_image,
    holds_class_ids,
    holds_class_scores,
)
from modelyard.errors import (
    ConfigurationError,
    ImageDecodeError,
    InvalidInputError,
    UnsupportedError,
    VerificationError,
)
from modelyard.export.sources._lengths import random_shapes
from modelyard.export.sources._named import name_arrays
from modelyard.wire import as_wire_array, cast_unchanged, dtype_by_name, object_array

_LOG = logging.getLogger("modelyard.export")

RANDOM = "random"
_IMAGES = frozenset({".bmp", ".gif", ".jpeg", ".jpg", ".png", ".webp"})
_RECORDS = frozenset({".record", ".records", ".tfrecord", ".tfrecords"})
FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})
_SEED = 0
#: Pixels of an image along a free axis: networks that halve their input seven times take it.
_FREE_SIZE = 128
#: Of random inputs that take any number in a signature without a batch.
_ROWS = 5

#: Ranges that random integers are drawn from, both ends included, the widest first; the last is taken untried.
_RANGES = ((-999, 999), (0, 999), (0, 99), (0, 9), (0, 1))

Arrays = dict[str, npt.NDArray[Any]]
Score = Callable[[str, Arrays], int]


def load_data(
    path: Path | str, signatures: Mapping[str, Signature], *, limit: int, score: Score = lambda *_: 1
) -> VerificationData:
    """Reads real examples for every signature that a file or folder can feed.

    ==============  ==============================================================
    ``.npz``        arrays ``INPUT`` or ``SIGNATURE/INPUT``, ``[N, ...]``; and
                    ``labels``, integers ``[N]``, where there are classes; no others
    ``.npy``        ``[N, ...]``, for signatures with one input
    folder          image files, in the order of their names; an input of numbers
                    gets them decoded and resized, floats divided by 255; a free
                    height or width is 128, and a second size is cut from that
    ``.tfrecord``   serialized ``tf.Example`` messages; an input of numbers gets
                    the feature of its name
    ``random``      numbers from a fixed seed: floats from a standard normal
                    distribution, integers from the range to which the model has
                    most to say (an embedding takes no more than its rows). They
                    show that a conversion is right, not that the model is.
    ==============  ==============================================================

    Args:
        path: The file or folder, or the word ``random``.
        signatures: What to feed.
        limit: At most this many examples of each; for ``random`` exactly.
        score: How many different answers a signature has for inputs, 0 where it fails; asked for ``random``.

    Raises:
        ConfigurationError: There is nothing to read, it cannot be read or does not fit; or the limit is below 1.
    """
    given: object = limit
    if not isinstance(given, Integral) or limit < 1:
        raise ConfigurationError(f"The number of examples (--examples) is {limit!r}; expected a whole number >= 1.")
    if str(path) == RANDOM:
        return _random(signatures, limit, score)
    path = Path(path)
    if not path.exists():
        raise ConfigurationError(f"The data {path} does not exist.")
    try:
        if path.is_dir():
            return _images(path, signatures, limit)
        if path.suffix in (".npy", ".npz"):
            return _arrays(path, signatures, limit)
        if path.suffix in _RECORDS:
            return _records(path, signatures, limit)
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as exc:
        hint = ". Save text as an array of str, not of objects" if "Object arrays" in str(exc) else ""
        raise ConfigurationError(f"The data {path} cannot be read: {exc}{hint}.") from exc
    raise ConfigurationError(
        f"The data {path} is of no known kind; expected an .npz, .npy or .tfrecord file, a folder of images, or "
        f"the word {RANDOM}."
    )


def _random(signatures: Mapping[str, Signature], count: int, score: Score) -> VerificationData:
    rng = np.random.default_rng(_SEED)
    inputs: dict[str, Arrays] = {}
    for name, signature in signatures.items():
        shapes = _random_shapes(rng, name, signature, count, score)
        arrays = inputs[name] = {
            spec.name: _numbers(rng, name, spec, shapes[spec.name], _RANGES[-1]) for spec in signature.inputs
        }
        for spec in signature.inputs:
            if arrays[spec.name].dtype.kind not in "iu":
                continue
            ranges = [
                {**arrays, spec.name: _numbers(rng, name, spec, shapes[spec.name], limits)} for limits in _RANGES[:-1]
            ]
            scores = [score(name, drawn) for drawn in ranges]
            if any(scores):
                # Of those that are alike the first, which is the widest.
                arrays.update(ranges[scores.index(max(scores))])
    return VerificationData(inputs=inputs, description=f"{count} random examples")


def _random_shapes(
    rng: np.random.Generator, name: str, signature: Signature, count: int, score: Score
) -> dict[str, tuple[int, ...]]:
    """Sizes of the free axes with which the model does not fail."""
    if signature.takes_calls:
        # Some rows more than one, where a call may have any number.
        return {
            spec.name: (count, *(_ROWS if size < 0 else size for size in spec.shape or ())) for spec in signature.inputs
        }
    candidates = list(random_shapes(signature, count))
    for shapes in candidates if len(candidates) > 1 else ():
        few = {
            spec.name: _numbers(rng, name, spec, (2, *shapes[spec.name][1:]), _RANGES[-1]) for spec in signature.inputs
        }
        if score(name, few):
            return shapes
    return candidates[0]


def _numbers(
    rng: np.random.Generator, name: str, spec: TensorSpec, shape: tuple[int, ...], limits: tuple[int, int]
) -> npt.NDArray[Any]:
    dtype = dtype_by_name(spec.dtype).numpy
    if spec.dtype == "string" or dtype is None or spec.shape is None:
        raise ConfigurationError(
            f"Input {spec.name!r} of signature {name!r} is {spec.dtype}; random examples are numbers of a known rank. "
            "Give real data, or choose other signatures."
        )
    if dtype.kind in "iu":
        known = np.iinfo(dtype)
        return rng.integers(max(limits[0], known.min), min(limits[1], known.max), shape, endpoint=True).astype(dtype)
    return rng.integers(0, 2, shape).astype(bool) if dtype.kind == "b" else rng.standard_normal(shape).astype(dtype)


def _arrays(path: Path, signatures: Mapping[str, Signature], limit: int) -> VerificationData:
    # Opened here: numpy leaves a file open that is no archive.
    with path.open("rb") as file:
        # No pickle: an archive is data, not a program.
        loaded = np.load(file, allow_pickle=False)
        if not isinstance(loaded, np.ndarray):
            arrays = {key: _read(loaded[key], limit) for key in loaded.files}
            return name_arrays(arrays, signatures, path.name)
    array = _read(loaded, limit)
    single = {name: each.inputs[0].name for name, each in signatures.items() if len(each.inputs) == 1}
    return VerificationData(
        inputs={name: {key: array} for name, key in single.items()}, description=f"{len(array)} examples of {path.name}"
    )


def _read(array: Any, limit: int) -> npt.NDArray[Any]:
    # What is no array in an archive is bytes.
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise ValueError("it holds something else than arrays with a row for each example, [N, ...]")
    return as_wire_array(array[:limit]) if array.dtype.kind in "SU" else array[:limit]


def _images(path: Path, signatures: Mapping[str, Signature], limit: int) -> VerificationData:
    files = sorted(each for each in path.rglob("*") if each.suffix.lower() in _IMAGES)[:limit]
    if not files:
        raise ConfigurationError(f"The folder {path} holds no images ({', '.join(sorted(_IMAGES))}).")
    encoded = object_array([each.read_bytes() for each in files])
    inputs: dict[str, Arrays] = {}
    for name, signature in signatures.items():
        if len(signature.inputs) != 1 or isinstance(signature.decode, ExampleDecode):
            continue
        (spec,) = signature.inputs
        if spec.dtype == "string":
            inputs[name] = {spec.name: encoded}
        elif spec.shape is not None and len(spec.shape) == 4 and spec.shape[3] in (1, 3):
            inputs[name] = {spec.name: np.stack([_pixels(file, spec) for file in files])}
    return VerificationData(inputs=inputs, description=f"{len(files)} images of {path.name}")


def _pixels(file: Path, spec: TensorSpec) -> npt.NDArray[Any]:
    from PIL import Image

    height, width, channels = (_FREE_SIZE if size < 0 else size for size in (spec.shape or ())[1:])
    try:
        pixels = decode_image(file.read_bytes(), channels)
    except ImageDecodeError as exc:
        raise ConfigurationError(f"{file}: {exc.message}") from exc
    image = Image.fromarray(pixels[..., 0] if channels == 1 else pixels).resize((width, height))
    resized = np.asarray(image).reshape(height, width, channels)
    dtype = dtype_by_name(spec.dtype).numpy or np.dtype(np.float32)
    return resized.astype(dtype) if dtype.kind in "iu" else (resized / np.float32(255)).astype(dtype)


def _records(path: Path, signatures: Mapping[str, Signature], limit: int) -> VerificationData:
    import tensorflow as tf

    try:
        messages = [record.numpy() for record in tf.data.TFRecordDataset(str(path)).take(limit)]
    except tf.errors.OpError as exc:
        raise ConfigurationError(f"The data {path} is no TFRecord file: {exc}") from exc
    inputs: dict[str, Arrays] = {}
    for name, signature in signatures.items():
        if [spec.dtype for spec in signature.inputs] == ["string"]:
            inputs[name] = {signature.inputs[0].name: object_array(messages)}
        elif all(_is_feature(spec) for spec in signature.inputs):
            features = tuple(
                FeatureSpec(name=spec.name, dtype=spec.dtype, shape=(spec.shape or ())[1:]) for spec in signature.inputs
            )
            try:
                inputs[name] = decode_examples(messages, ExampleDecode(input=path.name, features=features))
            except InvalidInputError as exc:
                raise ConfigurationError(f"The data does not fit signature {name!r}. {exc.message}") from exc
    return VerificationData(inputs=inputs, description=f"{len(messages)} records of {path.name}")


def _is_feature(spec: TensorSpec) -> bool:
    return spec.dtype in FEATURE_DTYPES and spec.shape is not None and all(size >= 0 for size in spec.shape[1:])


def fit_examples(signatures: Mapping[str, Signature], data: VerificationData) -> VerificationData:
    """Examples as the signatures want them, and labels with the output that they are compared with.

    Lists become arrays, and arrays are cast where no value changes, as a client casts them: float64 to float32,
    integers to floats that hold them. What cannot be cast stays as it is.
    """
    inputs: dict[str, Mapping[str, npt.NDArray[Any]]] = dict(data.inputs)
    for name in inputs.keys() & signatures.keys():
        inputs[name] = _in_calls(signatures[name], _fitted(name, signatures[name], inputs[name]))
    others = {
        name: [_fitted(name, signatures[name], each) for each in groups]
        for name, groups in data.others.items()
        if name in signatures
    }
    data = replace(data, inputs=inputs, others=others)
    if data.labels is None:
        return data
    data = replace(data, labels=np.asarray(data.labels))
    problem, output = _class_output(signatures, data)
    if problem:
        _LOG.warning("The labels of the data %s Going on without the accuracy.", problem)
        return replace(data, labels=None)
    return replace(data, labels=np.asarray(data.labels).astype(np.int64), class_output=output)


def _in_calls(signature: Signature, inputs: Arrays) -> Arrays:
    """Rows for inputs with a fixed number of them, such as ``[4, 8]``, as calls of so many; the rest is left out.

    Calls with one row, for inputs such as ``[1, 8]``, as rows.
    """
    if not signature.takes_calls:
        ranks = {spec.name: len(spec.shape) for spec in signature.inputs if spec.shape and spec.shape[0] == 1}
        return {
            name: values[:, 0] if values.ndim == ranks.get(name, -2) + 1 and values.shape[1] == 1 else values
            for name, values in inputs.items()
        }
    calls = dict(inputs)
    for spec in signature.inputs:
        values, rows = inputs.get(spec.name), spec.shape[0] if spec.shape else -1
        if values is not None and rows > 0 and values.ndim == len(spec.shape or ()) and len(values) >= rows:
            calls[spec.name] = values[: len(values) // rows * rows].reshape(-1, rows, *values.shape[1:])
    return calls


def tells_class(output: TensorSpec) -> bool:
    """Whether labels can be compared with an output."""
    return holds_class_ids(output.dtype, output.shape) or holds_class_scores(output.dtype, output.shape)


def labelled(signatures: Mapping[str, Signature], data: VerificationData) -> list[str]:
    """Signatures with as many examples as there are labels, the default one first."""
    count = -1 if data.labels is None else len(data.labels)
    rows = [name for name, signature in signatures.items() if not signature.takes_calls]
    names = [name for name in rows if {len(each) for each in data.inputs.get(name, {}).values()} == {count}]
    # The default signature first: it is what most requests will ask for.
    return sorted(names, key=lambda name: name != DEFAULT_SIGNATURE)


def _fitted(name: str, signature: Signature, inputs: Mapping[str, object]) -> Arrays:
    dtypes = {spec.name: spec.dtype for spec in signature.inputs}
    fitted: Arrays = {}
    for key, values in inputs.items():
        try:
            fitted[key] = as_wire_array(values)
        except (InvalidInputError, UnsupportedError) as exc:
            raise ConfigurationError(
                f"The examples of input {key!r} of signature {name!r} are no array. {exc.message}"
            ) from exc
        cast = cast_unchanged(fitted[key], dtypes[key]) if key in dtypes else None
        fitted[key] = fitted[key] if cast is None else cast
    return fitted


def _class_output(signatures: Mapping[str, Signature], data: VerificationData) -> tuple[str, str]:
    """What keeps the labels from being used, if anything does; and the output that they are compared with."""
    labels = np.asarray(data.labels)
    names = labelled(signatures, data)
    if not names:
        counts = {name: [len(each) for each in arrays.values()] for name, arrays in data.inputs.items()}
        raise VerificationError(
            f"There are {len(labels)} labels, but no signature has that many examples "
            f"({', '.join(f'{name}: {sorted(set(count))}' for name, count in counts.items())})."
        )
    if labels.ndim != 1 or labels.dtype.kind not in "iu":
        return f"are {labels.dtype} {list(labels.shape)}; expected class ids, integers [N].", ""
    if any(spec.name == data.class_output and tells_class(spec) for name in names for spec in signatures[name].outputs):
        return "", data.class_output
    lowest, classes = int(labels.min(initial=0)), max(int(labels.max(initial=-1)) + 1, len(data.class_names))
    if lowest < 0:
        return f"begin at {lowest}; expected class ids from 0.", ""
    widths = {
        spec.name: spec.shape[1]
        for spec in signatures[names[0]].outputs
        if spec.shape is not None and holds_class_scores(spec.dtype, spec.shape)
    }
    exact = [key for key, width in widths.items() if width == classes]
    # Not much wider, where the labels at hand are not of all classes.
    near = [key for key, width in widths.items() if width == -1 or classes <= width < 2 * classes]
    for found in (exact, near):
        if len(found) == 1:
            return "", found[0]
    outputs = ", ".join(
        f"{spec.name} {spec.dtype} {spec.shape and list(spec.shape)}" for spec in signatures[names[0]].outputs
    )
    return (
        f"fit no output of signature {names[0]!r}; expected an output {data.class_output!r} of integers [N], or one "
        f"float output with a value for each of {classes} classes, at least 2; there are {outputs}.",
        "",
    )
