"""Models of other Python libraries: an ONNX file by the exporter of each, and the answers of the library itself."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import DEFAULT_SIGNATURE, Signature, TensorSpec, VerificationData
from modelyard.errors import ConfigurationError, ConversionError, MissingDependencyError
from modelyard.export.formats import gist
from modelyard.export.publish import LIBRARIES, Library

Arrays = Mapping[str, Any]

_ROWS = 64
#: What an estimator answers, in the order of the outputs that skl2onnx gives it.
_METHODS = (
    ("predict", "predict_proba"),
    ("predict", "decision_function"),
    ("predict", "transform"),
    ("transform",),
    ("predict",),
)


def library_of(model: object) -> Library | None:
    """The library of a model's class, None for TensorFlow and whatever is no model; torch also of a Keras backend."""
    roots = [each.__module__.partition(".")[0] for each in type(model).__mro__]
    return None if "keras" in roots else next((each for root in roots for each in LIBRARIES if each == root), None)


def library_signatures(model: Any) -> dict[str, Signature]:
    """The inputs that examples may have: arguments of a module's ``forward``, or the matrix of an estimator."""
    names = inspect.signature(model.forward).parameters if library_of(model) == "torch" else ("X",)
    inputs = tuple(TensorSpec(name=name, dtype="float32", shape=None) for name in names)
    return {DEFAULT_SIGNATURE: Signature(inputs=inputs, outputs=(), compute=DEFAULT_SIGNATURE)}


def convert_library(model: object, data: VerificationData, path: Path) -> VerificationData:
    """Writes an ONNX file, and returns the examples with what the library answers to them.

    Raises:
        ConfigurationError: The module is in training mode.
        ConversionError: The exporter or the model itself fails.
        MissingDependencyError: The exporter is not installed.
    """
    library = library_of(model) or ""
    groups = [data.inputs.get(DEFAULT_SIGNATURE, {}), *data.others.get(DEFAULT_SIGNATURE, ())]
    groups = [{name: np.asarray(values) for name, values in each.items()} for each in groups]
    try:
        call = (_convert_torch if library == "torch" else _convert_estimator)(model, groups, path)
        expected = [call(each) for each in groups]
    except ModuleNotFoundError as exc:
        package = str(exc.name).partition(".")[0]
        raise MissingDependencyError(package=package, extra=library, purpose=f"Export of {library} models") from exc
    except ConfigurationError:
        raise
    # Exporters and models raise classes of their own: this is the boundary.
    except Exception as exc:
        raise ConversionError(f"{type(model).__name__} cannot be exported by {library}: {gist(exc)}.") from exc
    description = f"{data.description or 'examples'}, with the answers of {library}"
    return replace(data, expected={DEFAULT_SIGNATURE: expected}, description=description)


def _convert_torch(model: Any, groups: Sequence[Arrays], path: Path) -> Callable[[Arrays], Arrays]:
    import onnxscript  # noqa: F401 - torch.onnx would say less well that it is missing
    import torch

    # The exporter loads Triton where it is installed, whose LLVM ends a process that has loaded TensorFlow's before.
    sys.modules.setdefault("triton", None)  # type: ignore[arg-type]
    if any(module.training for module in model.modules()):
        raise ConfigurationError("The module is in training mode; expected model.eval() before it is exported.")
    parameter = next((each for each in model.parameters() if each.is_floating_point()), torch.zeros(()))

    def tensors(arrays: Arrays) -> dict[str, Any]:
        found = {name: torch.from_numpy(values).to(parameter.device) for name, values in arrays.items()}
        return {name: each.to(parameter.dtype) if each.is_floating_point() else each for name, each in found.items()}

    def call(arrays: Arrays) -> dict[str, Any]:
        answers = model(**tensors(arrays))
        if isinstance(answers, torch.Tensor):
            answers = (answers,)
        named = answers if isinstance(answers, Mapping) else {f"output_{i}": each for i, each in enumerate(answers)}
        return {name: each.cpu().numpy() for name, each in named.items()}

    first = {name: values[:2] for name, values in groups[0].items()}
    free = {
        # The batch, and what differs between the examples.
        name: {axis for axis in range(values.ndim) if not axis or len({each[name].shape[axis] for each in groups}) > 1}
        for name, values in first.items()
    }
    with torch.inference_mode():
        names = list(call(first))
    torch.onnx.export(
        model,
        (),
        path,
        kwargs=tensors(first),
        input_names=list(first),
        output_names=names,
        dynamic_shapes={name: dict.fromkeys(axes, torch.export.Dim.DYNAMIC) for name, axes in free.items()},
        dynamo=True,
        verbose=False,
    )

    def answer(arrays: Arrays) -> dict[str, npt.NDArray[Any]]:
        count = len(next(iter(arrays.values())))
        with torch.inference_mode():
            parts = [
                call({name: values[start : start + _ROWS] for name, values in arrays.items()})
                for start in range(0, count, _ROWS)
            ]
        return {name: np.concatenate([part[name] for part in parts]) for name in names}

    return answer


def _convert_estimator(model: object, groups: Sequence[Arrays], path: Path) -> Callable[[Arrays], Arrays]:
    from skl2onnx import get_latest_tested_opset_version, to_onnx
    from sklearn.base import is_classifier

    for library in ("xgboost", "lightgbm"):
        # Also inside of a pipeline: whose classes are there was imported.
        if library in sys.modules:
            _register(library)
    # Without it the probabilities would be a list of dictionaries, which is no tensor.
    options = {id(model): {"zipmap": False}} if is_classifier(model) else None
    (rows,) = groups[0].values()
    # The trees of onnxmltools, and some of skl2onnx itself, know no later version of that domain.
    opset = {"": get_latest_tested_opset_version(), "ai.onnx.ml": 3}
    onnx_model = to_onnx(model, rows[:1].astype(np.float32), options=options, target_opset=opset)
    path.write_bytes(onnx_model.SerializeToString())
    names = [output.name for output in onnx_model.graph.output]
    methods = [each for each in _METHODS if len(each) == len(names) and all(hasattr(model, name) for name in each)]
    if not methods:
        raise ConversionError(f"which of its methods compute the outputs {names} is not known; export the ONNX file")

    def answer(arrays: Arrays) -> dict[str, Any]:
        (values,) = arrays.values()
        values = values.astype(np.float32)
        return {name: getattr(model, method)(values) for name, method in zip(names, methods[0], strict=True)}

    return answer


def _register(library: str) -> None:
    """Tells skl2onnx of the estimators for which onnxmltools has the converters."""
    from skl2onnx import update_registered_converter
    from skl2onnx.common import shape_calculator

    module = sys.modules[library]
    if library == "xgboost":
        from onnxmltools.convert.xgboost.operator_converters.XGBoost import convert_xgboost as convert

        kinds = (module.XGBClassifier, module.XGBRegressor)
    else:
        from onnxmltools.convert.lightgbm.operator_converters.LightGbm import convert_lightgbm as convert

        kinds = (module.LGBMClassifier, module.LGBMRegressor)
    zipmap = {"nocl": [True, False], "zipmap": [True, False, "columns"]}
    for kind, shapes, options in (
        (kinds[0], shape_calculator.calculate_linear_classifier_output_shapes, zipmap),
        (kinds[1], shape_calculator.calculate_linear_regressor_output_shapes, None),
    ):
        update_registered_converter(kind, f"{library}{kind.__name__}", shapes, convert, options=options)
