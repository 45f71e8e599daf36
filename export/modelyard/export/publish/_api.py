"""``export``: from any model to a published, verified version."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import (
    AnyFunction,
    Location,
    Signature,
    Source,
    VerificationData,
    check_destination,
    locate,
)
from modelyard.errors import ConfigurationError, ConversionError, VerificationError
from modelyard.export.formats import keep_log, say_logs
from modelyard.export.isolation import Worker, WorkerEndedError, remove_staging
from modelyard.export.live import (
    KERAS_FILES,
    is_input,
    keras_signatures,
    load_keras_model,
    module_signatures,
    parse_input,
)
from modelyard.export.publish._model import publish_model, start_apart
from modelyard.export.publish._options import (
    Budget,
    ExportEvent,
    ExportOptions,
    ExportReport,
    Format,
    Precision,
    Progress,
    ignore_progress,
)
from modelyard.export.sources import (
    FILE_FORMATS,
    FLOATS,
    RANDOM,
    LoadedModel,
    Score,
    TracedModel,
    check_text,
    compute_own_reference,
    compute_reference,
    convert_library,
    library_of,
    library_signatures,
    list_inputs,
    load_data,
    load_file,
    load_saved_model,
    model_path,
    name_arrays,
    runtime_call,
    score,
    source_call,
    trace,
)

SAVED_MODEL_FILE = "saved_model.pb"
_EXAMPLES = 512
_CHOOSE = 'signatures=["NAME"] (--signature NAME)'
_ASSUMED = (
    "It was called with what Keras remembers of its inputs, the shapes of its first argument. Where it takes others, "
    "or no floats, say all of them: --signature NAME:DTYPE[SHAPE], such as x:float32[-1,28,28] (signatures= in Python)."
)

Data = VerificationData | Path | str | Mapping[str, Any] | npt.NDArray[Any]


def export(
    model: object,
    destination: Location | str,
    *,
    data: Data,
    expected: Data | None = None,
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
        model: A ``tf.Module`` or Keras model; or the path of a SavedModel directory (of TensorFlow 2 or 1), a
            ``.keras`` or ``.h5`` file, or an ONNX or TFLite file; or a folder of MLflow that has one of them. ONNX and
            TFLite are served as they are, and verified by their own runtime: what is computed alone must be the same in
            a batch, and as ``expected``. Or a model of another library: a ``torch.nn.Module`` in evaluation mode, or an
            estimator of scikit-learn, XGBoost or LightGBM. It is converted to ONNX, and verified on its library's own
            answers.
        destination: ``<repository>/<model>``; the folder's name is the model's.
            Also in an object store: ``s3://bucket/models/fashion``.
        data: Examples to verify with: :class:`VerificationData`; a path or ``random``, see ``--data``; arrays or lists
            by input name (or by signature and then input name), and ``labels`` where there are classes; or one array,
            for a model with one input. A list may have an array for each example, of any sizes where the signature
            leaves axes free. Of a ``torch.nn.Module`` the batch and the axes in which examples differ are free.
        expected: For a file, the answers of the program that wrote it to ``data``, of any kind that ``data`` may have,
            by output name; not necessarily of all outputs. Every format is held to them: of a ``.keras`` file of a
            model that was trained on PyTorch or JAX, to those of that backend. None to compare an ONNX or TFLite file
            with itself only, and other files with what TensorFlow makes of them.
        signatures: What to serve, by name, for a ``tf.Module`` or Keras model. Of a SavedModel, and of functions with
            an ``input_signature``, the names of those to choose. For a Keras model its inputs, such as
            ``["ids:int32[-1,12]"]``, where it does not know them. None for a Keras model's own inputs and outputs, and
            for all of the others.
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
        ConfigurationError: The model, its signatures or the data are of no known kind, do not exist, or do not go
            together; or no model can be published to the destination.
        ConversionError: It cannot be loaded, traced or converted.
        VerificationError: A format does not compute what the model computes.
        ManifestError: ``source`` holds something that is no JSON.
        PublishError: The repository cannot be written.

    Example:
        >>> model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3)])
        >>> data = {"x": np.random.default_rng(0).normal(size=(256, 4))}
        >>> report = export(model, "models/iris", data=data, formats=["saved_model", "onnx"])
        >>> report.version.number
        1
    """
    if options is not None and not isinstance(options, ExportOptions):
        raise ConfigurationError(f"options is a {type(options).__name__}; expected ExportOptions(...).")
    if source is not None and not isinstance(source, Source):
        raise ConfigurationError(f"source is a {type(source).__name__}; expected Source(...) of modelyard.artifact.")
    changes: dict[str, Any] = {"formats": formats, "precision": precision, "budget": budget}
    options = replace(
        options or ExportOptions(), **{name: value for name, value in changes.items() if value is not None}
    )
    signatures = _checked(signatures)
    model_dir = locate(str(destination))
    check_destination(model_dir)
    path = Path(model) if isinstance(model, (str, Path)) else None
    origin = source or Source(data="", config={} if path is None else {"source": path.name})
    # All of them before the work.
    _check_data("data", data)
    for name, each in (("model", path), ("expected", expected), ("calibration", calibration)):
        if each is not None:
            _check_data(name, each)
    path = None if path is None else model_path(path)
    is_file = path is not None and path.suffix in FILE_FORMATS and path.is_file()
    library = library_of(model)
    if (is_file or library) and signatures is not None:
        raise ConfigurationError(f"{path or library} has one signature, as it is; expected signatures to be None.")
    if expected is not None and path is None:
        raise ConfigurationError("Expected answers (--expected) are for files; this model is asked for its own.")
    with TemporaryDirectory() as folder:
        if library is not None:
            path = Path(folder) / f"{type(model).__name__}.onnx"
            given = _verification_data(data, library_signatures(model), examples, lambda *_: 1)
            data = convert_library(model, given, path)
            origin = source or Source(data="", config={"source": f"{library}: {type(model).__qualname__}"})
        if path is not None and (is_file or library):
            options = replace(options, formats=(FILE_FORMATS[path.suffix],), optional=())
            arguments = (path, str(destination), data, expected, calibration, options, origin, examples)
            return _apart(arguments, model_dir, progress) if options.isolate else _export_file(*arguments, progress)
    with start_apart(options) as apart:
        loaded = _load(model, path, signatures, options)
        progress(ExportEvent(stage="trace", done=0, total=1))
        traced = _trace(loaded)
        progress(ExportEvent(stage="trace", done=1, total=1))
        check_text(traced, options)
        scored = partial(score, traced, source_call(traced))
        verification = _verification_data(data, traced.signatures, examples, scored)
        if loaded.assumed:
            _check_assumed(traced.signatures, verification)
        verification = _with_expected(verification, expected, traced.signatures, examples, scored)
        reference = compute_reference(traced, verification, options=options, progress=progress)
        return publish_model(
            reference,
            model_dir=model_dir,
            source=origin,
            options=options,
            calibration=_calibration_data(calibration, traced.signatures, options, scored),
            progress=progress,
            apart=apart,
        )


def _apart(arguments: tuple[object, ...], model_dir: Location, progress: Progress) -> ExportReport:
    """All of the export of a file in a process of its own: there is nothing in this one that it needs."""
    worker = Worker()
    try:
        report: ExportReport = worker.call(_export_file, *arguments, stage="start", progress=progress)
    except WorkerEndedError as exc:
        remove_staging(model_dir, worker.pid)
        said = say_logs([keep_log(exc, model_dir.name)])
        raise VerificationError(f"{exc.message} Nothing was published.{said}") from exc.__cause__
    finally:
        worker.close()
    return report


def _export_file(
    path: Path,
    destination: str,
    data: Data,
    expected: Data | None,
    calibration: Data | None,
    options: ExportOptions,
    source: Source,
    examples: int,
    progress: Progress,
) -> ExportReport:
    served = load_file(path)
    scored = partial(score, served.model, runtime_call(served.model, served.runtime))
    verification = _verification_data(data, served.model.signatures, examples, scored)
    verification = _with_expected(verification, expected, served.model.signatures, examples, scored)
    reference = compute_own_reference(served.model, served.runtime, verification, options=options, progress=progress)
    return publish_model(
        reference,
        model_dir=locate(destination),
        source=source,
        options=options,
        absent=served.absent,
        calibration=_calibration_data(calibration, served.model.signatures, options, scored),
        progress=progress,
    )


def _load(
    model: object,
    path: Path | None,
    signatures: Mapping[str, AnyFunction] | Sequence[str] | None,
    options: ExportOptions,
) -> LoadedModel:
    declared = signatures if isinstance(signatures, Mapping) else None
    if path is not None and (path / SAVED_MODEL_FILE).is_file():
        if declared is not None:
            raise ConfigurationError(f"{path} has signatures of its own; expected the names of some, or None.")
        names = tuple(signatures or ())
        return load_saved_model(path, names=names, allow_unsafe_ops=options.allow_unsafe_ops)
    names = () if signatures is None or declared is not None else tuple(signatures)
    if path is not None:
        if path.suffix not in KERAS_FILES or not path.is_file():
            inside = sorted(path.glob(f"*/{SAVED_MODEL_FILE}"))
            hint = f" It holds one: export {inside[-1].parent}." if inside else ""
            raise ConfigurationError(
                f"{path} is no model: expected a SavedModel directory, or a .keras, .h5, .onnx or .tflite file.{hint}"
            )
        model = load_keras_model(path)
    if declared is not None:
        return LoadedModel(root=model, signatures=dict(declared))
    return _describe(model, names)


def _describe(model: object, names: Sequence[str]) -> LoadedModel:
    """A model that is asked for its own signatures."""
    import keras

    inputs = [parse_input(text) for text in names] if any(is_input(text) for text in names) else []
    is_keras = isinstance(model, keras.Model)
    if not inputs and not (is_keras and getattr(model, "inputs", None)):
        signatures = module_signatures(model, names)
        if signatures:
            hint = "" if names or len(signatures) == 1 else f"Or choose among {', '.join(signatures)}: {_CHOOSE}."
            return LoadedModel(root=model, signatures=signatures, hint=hint)
    if names and not inputs:
        raise ConfigurationError(
            f"signatures is {list(names)}; names alone choose from a SavedModel, or from functions with an "
            "input_signature. The inputs of a Keras model are NAME:DTYPE[SHAPE], such as x:float32[-1,28,28]."
        )
    if not is_keras:
        raise ConfigurationError(
            f"A {type(model).__name__} says nothing about its signatures; give its __call__ an input_signature "
            "(tf.function(input_signature=[...])), or pass signatures=, by name."
        )
    signatures, assumed = keras_signatures(model, inputs)
    return LoadedModel(root=model, signatures=signatures, assumed=assumed, hint=_ASSUMED if assumed else "")


def _trace(loaded: LoadedModel) -> TracedModel:
    weights = len(getattr(loaded.root, "variables", ()))
    try:
        traced = trace(loaded.root, loaded.signatures, saved_model=loaded.saved_model)
    except ConversionError as exc:
        if not loaded.hint:
            raise
        raise ConversionError(f"{exc.message} {loaded.hint}") from exc
    if len(getattr(loaded.root, "variables", ())) != weights:
        raise ConversionError(
            "The model makes new weights when it is called, so what it was trained with is not there. A Keras model "
            "needs a build() that makes all of its weights for them to be loaded from a file; or call it on data and "
            "export it in the same process."
        )
    return traced


def _checked(
    signatures: Mapping[str, AnyFunction] | Sequence[str] | None,
) -> Mapping[str, AnyFunction] | Sequence[str] | None:
    if isinstance(signatures, str):
        return (signatures,)
    for name, function in signatures.items() if isinstance(signatures, Mapping) else ():
        if not isinstance(function, AnyFunction):
            raise ConfigurationError(
                f"signatures[{name!r}] is a {type(function).__name__}; expected a SignatureFunction, an "
                "EncodedImageFunction or an ExampleFunction of modelyard.artifact, such as SignatureFunction(inputs="
                "(TensorSpec(name='x', dtype='float32', shape=(-1, 4)),), function=lambda x: {'y': model(x)}). To say "
                'the inputs of a Keras model alone: signatures=["x:float32[-1,4]"].'
            )
    return signatures


def _check_data(name: str, data: object) -> None:
    if isinstance(data, (str, Path)):
        if str(data) != RANDOM and not Path(data).exists():
            raise ConfigurationError(f"{data} does not exist.")
    elif not isinstance(data, (VerificationData, Mapping, list)) and not hasattr(data, "__array__"):
        raise ConfigurationError(
            f"{name} is a {type(data).__name__}; expected arrays by input name, such as {{'x': X, 'labels': Y}}, one "
            f"array, a path or {RANDOM!r}. Of a tf.data.Dataset, take some examples as arrays."
        )


def _check_assumed(signatures: Mapping[str, Signature], data: VerificationData) -> None:
    """Refuses data that says that an assumed dtype is wrong."""
    for name, signature in signatures.items():
        for spec in signature.inputs:
            values = data.inputs.get(name, {}).get(spec.name)
            if isinstance(values, np.ndarray) and spec.dtype in FLOATS and values.dtype.kind in "iubOSU":
                dtype = values.dtype.name if values.dtype.kind in "iub" else "string"
                shape = ",".join(str(size) for size in spec.shape or ())
                raise ConfigurationError(
                    f"The examples of input {spec.name!r} are {dtype}. A subclassed Keras model remembers the shapes "
                    f"that it was called with, and no dtypes: {spec.dtype} is assumed. Say what it takes: --signature "
                    f"{spec.name}:{dtype}[{shape}], or give {spec.dtype}. With several inputs, say all of them."
                )


def _calibration_data(
    data: Data | None, signatures: Mapping[str, Signature], options: ExportOptions, scored: Score
) -> VerificationData | None:
    return None if data is None else _verification_data(data, signatures, options.calibration_examples, scored)


def _verification_data(
    data: Data, signatures: Mapping[str, Signature], examples: int, scored: Score
) -> VerificationData:
    if isinstance(data, VerificationData):
        return data
    if isinstance(data, (str, Path)):
        return load_data(data, signatures, limit=examples, score=scored)
    return name_arrays(data if isinstance(data, Mapping) else {_only_input(signatures): data}, signatures)


def _with_expected(
    data: VerificationData,
    expected: Data | None,
    signatures: Mapping[str, Signature],
    examples: int,
    scored: Score,
) -> VerificationData:
    """The data with the answers that a file is held to, which have the names of outputs."""
    if expected is None:
        return data
    outputs = {name: replace(each, inputs=each.outputs) for name, each in signatures.items()}
    answers = _verification_data(expected, outputs, examples, scored)
    return replace(data, expected={name: [each] for name, each in answers.inputs.items()})


def _only_input(signatures: Mapping[str, Signature]) -> str:
    names = sorted({spec.name for each in signatures.values() for spec in each.inputs})
    if len(names) != 1:
        raise ConfigurationError(
            f"The data is one array, but there are the inputs {list_inputs(signatures)}; expected arrays by input name."
        )
    return names[0]
