"""``export``: from any model to a published, verified version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy.typing as npt

from modelyard.artifact import AnyFunction, Location, Signature, Source, VerificationData, locate
from modelyard.errors import ConfigurationError
from modelyard.export._data import Accepts, load_data
from modelyard.export._files import FILE_FORMATS, load_file
from modelyard.export._foreign import LoadedModel, keras_signatures, load_keras_file, load_saved_model
from modelyard.export._model import publish_model
from modelyard.export._options import (
    Budget,
    ExportEvent,
    ExportOptions,
    ExportReport,
    Format,
    Precision,
    Progress,
    ignore_progress,
)
from modelyard.export._reference import accepts, compute_own_reference, compute_reference, runtime_call, source_call
from modelyard.export._text import check_text
from modelyard.export._trace import trace

SAVED_MODEL_FILE = "saved_model.pb"
_EXAMPLES = 512

Data = VerificationData | Path | str | Mapping[str, Any] | npt.NDArray[Any]


def export(
    model: Any,
    destination: Location | str,
    *,
    data: Data,
    signatures: Mapping[str, AnyFunction] | Sequence[str] | None = None,
    formats: Sequence[Format] | None = None,
    precision: Sequence[Precision] | None = None,
    budget: Budget | None = None,
    calibration: Data | None = None,
    options: ExportOptions | None = None,
    source: Source | None = None,
    examples: int = _EXAMPLES,
    progress: Progress = ignore_progress,
) -> ExportReport:
    """Exports any model: verified in every format, published as the next version.

    Args:
        model: A ``tf.Module`` or Keras model; or the path of a SavedModel
            directory (of TensorFlow 2 or 1), a ``.keras`` file, or an ONNX or
            TFLite file. The last two are served as they are, and verified by
            their own runtime: what is computed alone must be the same in a batch.
        destination: ``<repository>/<model>``; the folder's name is the model's.
            Also in an object store: ``s3://bucket/models/fashion``.
        data: Examples to verify with: :class:`VerificationData`; a path or
            ``random``, see ``--data``; arrays by input name (or by signature
            and then input name); or one array, for a model with one input.
        signatures: What to serve, by name, for a ``tf.Module`` or Keras model;
            names of signatures to choose for a SavedModel; None for a Keras
            model's own inputs and outputs, and for all of a SavedModel.
        formats: Overrides ``options.formats``.
        precision: Overrides ``options.precision``: ``("float32", "int8")`` makes
            variants in 8-bit integers beside the float32 files.
        budget: Overrides ``options.budget``: what a variant may cost before it is refused.
        calibration: Representative examples for ``int8``, of any kind that
            ``data`` may have; None for some of ``data``.
        options: None for the defaults.
        source: Where the model came from; None to say the path.
        examples: At most this many are read from a path.
        progress: Called with an :class:`ExportEvent` as the work goes on.

    Returns:
        What was published, and how every format compared.

    Raises:
        ConfigurationError: The model, its signatures or the data are of no known
            kind, or do not go together.
        ConversionError: It cannot be loaded, traced or converted.
        VerificationError: A format does not compute what the model computes.
        ManifestError: ``source`` holds something that is no JSON.
        PublishError: The repository cannot be written.
    """
    options = options or ExportOptions()
    options = replace(
        options,
        formats=options.formats if formats is None else tuple(formats),
        precision=options.precision if precision is None else tuple(precision),
        budget=budget or options.budget,
    )
    model_dir = locate(str(destination))
    path = Path(model) if isinstance(model, (str, Path)) else None
    origin = source or Source(data="", config={} if path is None else {"source": path.name})
    if path is not None and path.suffix in FILE_FORMATS and path.is_file():
        return _export_file(path, model_dir, signatures, data, calibration, options, origin, examples, progress)
    loaded = _load(model, path, signatures, options)
    progress(ExportEvent(stage="trace", done=0, total=1))
    traced = trace(loaded.root, loaded.signatures, saved_model=loaded.saved_model)
    progress(ExportEvent(stage="trace", done=1, total=1))
    check_text(traced, options)
    suits = partial(accepts, traced, source_call(traced))
    verification = _verification_data(data, traced.signatures, examples, suits)
    reference = compute_reference(traced, verification, options=options, progress=progress)
    return publish_model(
        reference,
        model_dir=model_dir,
        source=origin,
        options=options,
        calibration=_calibration_data(calibration, traced.signatures, options, suits),
        progress=progress,
    )


def _export_file(
    path: Path,
    model_dir: Location,
    signatures: Mapping[str, AnyFunction] | Sequence[str] | None,
    data: Data,
    calibration: Data | None,
    options: ExportOptions,
    source: Source,
    examples: int,
    progress: Progress,
) -> ExportReport:
    if signatures is not None:
        raise ConfigurationError(f"{path} is served as it is; expected signatures to be None.")
    served = load_file(path)
    options = replace(options, formats=(served.format,), optional=())
    suits = partial(accepts, served.model, runtime_call(served.model, served.runtime))
    verification = _verification_data(data, served.model.signatures, examples, suits)
    reference = compute_own_reference(served.model, served.runtime, verification, options=options, progress=progress)
    return publish_model(
        reference,
        model_dir=model_dir,
        source=source,
        options=options,
        absent=served.absent,
        calibration=_calibration_data(calibration, served.model.signatures, options, suits),
        progress=progress,
    )


def _load(
    model: Any, path: Path | None, signatures: Mapping[str, AnyFunction] | Sequence[str] | None, options: ExportOptions
) -> LoadedModel:
    declared = signatures if isinstance(signatures, Mapping) else None
    if path is not None and (path / SAVED_MODEL_FILE).is_file():
        if declared is not None:
            raise ConfigurationError(f"{path} has signatures of its own; expected the names of some, or None.")
        names = tuple(signatures or ())
        return load_saved_model(path, names=names, allow_unsafe_ops=options.allow_unsafe_ops)
    if signatures is not None and declared is None:
        raise ConfigurationError(f"signatures is {list(signatures)}; names alone choose from a SavedModel only.")
    if path is not None:
        if path.suffix != ".keras" or not path.is_file():
            raise ConfigurationError(
                f"{path} is no model: expected a SavedModel directory, or a .keras, .onnx or .tflite file."
            )
        loaded = load_keras_file(path)
        return loaded if declared is None else replace(loaded, signatures=dict(declared))
    if declared is not None:
        return LoadedModel(root=model, signatures=dict(declared))
    import keras

    if not isinstance(model, keras.Model):
        raise ConfigurationError(
            f"A {type(model).__name__} says nothing about its signatures; pass signatures=, by name."
        )
    return LoadedModel(root=model, signatures=keras_signatures(model))


def _calibration_data(
    data: Data | None, signatures: Mapping[str, Signature], options: ExportOptions, suits: Accepts
) -> VerificationData | None:
    return None if data is None else _verification_data(data, signatures, options.calibration_examples, suits)


def _verification_data(
    data: Data, signatures: Mapping[str, Signature], examples: int, suits: Accepts
) -> VerificationData:
    if isinstance(data, VerificationData):
        return data
    if isinstance(data, (str, Path)):
        return load_data(data, signatures, limit=examples, accepts=suits)
    if not isinstance(data, Mapping):
        data = {_only_input(signatures): data}
    if all(isinstance(value, Mapping) for value in data.values()):
        return VerificationData(inputs=data)
    inputs: dict[str, dict[str, npt.NDArray[Any]]] = {
        name: {spec.name: data[spec.name] for spec in each.inputs if spec.name in data}
        for name, each in signatures.items()
    }
    if not any(inputs.values()):
        wanted = sorted({spec.name for each in signatures.values() for spec in each.inputs})
        raise ConfigurationError(f"The data has {sorted(data)}; expected arrays by input name, some of {wanted}.")
    return VerificationData(inputs={name: arrays for name, arrays in inputs.items() if arrays})


def _only_input(signatures: Mapping[str, Signature]) -> str:
    names = sorted({spec.name for each in signatures.values() for spec in each.inputs})
    if len(names) != 1:
        raise ConfigurationError(f"The data is one array, but there are inputs {names}; expected arrays by input name.")
    return names[0]
