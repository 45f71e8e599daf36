from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

import modelyard.export
from modelyard.errors import ConfigurationError, MissingDependencyError
from modelyard.export import Budget, ExportEvent, ExportOptions
from modelyard.export.publish import ignore_progress


def test_a_string_is_one_name() -> None:
    options = ExportOptions(formats="onnx", precision="int8", stage_dir="s")  # type: ignore[arg-type]
    assert (options.formats, options.precision, options.stage_dir) == (("onnx",), ("int8",), Path("s"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"options": {"formats": "onnx"}}, r"options is a dict; expected ExportOptions\(\.\.\.\)"),
        ({"signatures": {"f": {"x": 1}}}, r"signatures\['f'\] is a dict; expected a SignatureFunction, an Enc"),
        ({"source": "here"}, r"source is a str; expected Source\(\.\.\.\)"),
        ({"data": (1, 2)}, "data is a tuple; expected arrays by input name, such as"),
        ({"data": None}, "data is a NoneType; expected arrays by input name"),
    ],
)
def test_arguments_of_another_type_are_refused_before_the_work(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        modelyard.export.export(object(), "models/m", **{"data": "random", **arguments})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"formats": ("coreml",)}, "'coreml' is unknown; expected some of saved_model, onnx, tflite"),
        ({"formats": ()}, "expected one or more"),
        ({"formats": ("onnx", "onnx")}, "each once"),
        ({"formats": ("onnx",), "optional": ("tflite",)}, "expected some of the formats"),
        ({"formats": ("onnx",), "optional": ("onnx",)}, "at least one must be required"),
        ({"formats": None}, "formats is None; expected a tuple"),
        ({"batch_sizes": 32}, "batch_sizes is 32; expected a tuple"),
        ({"batch_sizes": (1, 2.5)}, "batch_sizes has a size that is 2.5; expected a whole number"),
        ({"min_examples": "100"}, "min_examples is '100'; expected a whole number"),
        ({"calibration_examples": 1.5}, "calibration_examples is 1.5; expected a whole number"),
        ({"max_abs_error": None}, "max_abs_error is None; expected a number"),
        ({"opset": "17"}, "opset is '17'; expected a whole number"),
        ({"budget": 0.01}, r"budget is 0.01; expected Budget\(...\)"),
        ({"batch_sizes": (1,)}, "expected 1 and at least one larger"),
        ({"batch_sizes": (2, 3)}, "expected 1 and at least one larger"),
        ({"batch_sizes": (0, 1, 3)}, "expected 1 and at least one larger"),
        ({"min_examples": 1}, r"min_examples \(--min-examples\) is 1; expected at least 2"),
        ({"latency_calls": 9}, "latency_calls is 9"),
        ({"max_abs_error": float("nan")}, "is nan; expected a finite number"),
        ({"precision": ("int4",)}, "Precision 'int4' is unknown; expected some of float32"),
        ({"precision": ()}, "expected one or more of float32"),
        ({"precision": ("int8", "int8")}, "each once"),
        ({"precision": ("int8",), "formats": ("saved_model",)}, "only onnx and tflite have variants"),
        ({"calibration_examples": 0}, "calibration_examples is 0"),
        ({"runtimes": ("tensorrt",)}, "Runtime 'tensorrt' is unknown"),
        ({"runtime": "tensorrt"}, "Runtime 'tensorrt' is unknown"),
        ({"measure_seconds": 0.0}, "measure_seconds is 0.0"),
    ],
)
def test_options_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        ExportOptions(**fields)


def test_the_defaults_are_those_of_the_design() -> None:
    options = ExportOptions()
    assert options.formats == ("saved_model", "onnx", "tflite")
    assert (options.min_examples, options.max_abs_error, options.optional) == (256, 1e-5, ())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_accuracy_drop": 1.5}, "max_accuracy_drop is 1.5"),
        ({"max_accuracy_drop": None}, "max_accuracy_drop is None; expected a number"),
        ({"max_spread_error": 0.0}, "max_spread_error 0.0"),
        ({"max_abs_error": -1.0}, "max_abs_error is -1.0"),
    ],
)
def test_budgets_that_make_no_sense(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Budget(**fields)


@pytest.mark.parametrize("value", [0.0, 1.5, float("nan")])
def test_a_spread_error_is_a_share(value: float) -> None:
    with pytest.raises(ConfigurationError, match="max_spread_error is .*; expected a share from 0 to 1"):
        ExportOptions(max_spread_error=value)


def test_progress_may_be_ignored() -> None:
    ignore_progress(ExportEvent(stage="trace", done=0, total=1))


def test_public_names() -> None:
    assert modelyard.export.__all__ == sorted(modelyard.export.__all__)
    for name in modelyard.export.__all__:
        assert getattr(modelyard.export, name) is not None
    with pytest.raises(AttributeError, match="has no attribute 'exprot'"):
        _ = modelyard.export.exprot


def test_without_the_extra_the_package_names_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("modelyard.export.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorflow", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'modelyard\[export\]'"):
        _ = modelyard.export.export
    monkeypatch.setitem(sys.modules, "rich.console", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'modelyard\[training\]'"):
        modelyard.export.ProgressBar()(ExportEvent(stage="trace", done=0, total=1))
