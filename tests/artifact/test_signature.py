from __future__ import annotations

from typing import Any

import pytest

from modelyard.artifact import REGRESS_METHOD, ExampleDecode, FeatureSpec, ImageDecode, Signature, TensorSpec
from modelyard.errors import ManifestError

FEATURES = (FeatureSpec(name="x", dtype="float32"),)
X = TensorSpec(name="x", dtype="string", shape=(-1,))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"name": ""}, "no name"),
        ({"dtype": "float31"}, "'float31'; expected one of .*float32"),
        ({"shape": (-2, 3)}, r"shape \[-2, 3\]"),
    ],
)
def test_a_wrong_tensor_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        TensorSpec(**({"name": "x", "dtype": "float32", "shape": (-1, 0, 3)} | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"method": "predict"}, "'predict' is unknown; expected one of tensorflow/serving/predict"),
        ({"decode": ImageDecode(input="x")}, "both an image decode and preprocess"),
        ({"preprocess": "s.preprocess"}, "both an image decode and preprocess"),
        ({"decode": ExampleDecode(input="x", features=FEATURES), "preprocess": "p"}, "both an image decode and prepro"),
        ({"decode": ImageDecode(input="y"), "preprocess": "s.preprocess"}, r"decodes 'y'.*received \['x'\]"),
    ],
)
def test_a_wrong_signature_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        Signature(**({"inputs": (X,), "outputs": (X,), "compute": "s"} | fields))


def test_right_ones_are_accepted() -> None:
    assert TensorSpec(name="x", dtype="float32", shape=(None, 28)).shape == (-1, 28)  # type: ignore[arg-type]
    signature = Signature(
        inputs=(X,), outputs=(X,), compute="s", method=REGRESS_METHOD, decode=ImageDecode(input="x"), preprocess="p"
    )
    assert isinstance(signature.decode, ImageDecode) and signature.decode.channels == 3


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "int32"}, "dtype 'int32'; expected one of float32, int64, string"),
        ({"shape": (-1,)}, r"shape \[-1\]; expected every size"),
        ({"default": (1.0, 2.0)}, r"default \[1.0, 2.0\]; expected 1 values of float32"),
        ({"default": ("a",)}, "expected 1 values of float32"),
    ],
)
def test_a_wrong_feature_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        FeatureSpec(**({"name": "x", "dtype": "float32"} | fields))


@pytest.mark.parametrize("features", [(), FEATURES * 2, (*FEATURES, FeatureSpec(name="y", dtype="int64", input="x"))])
def test_features_are_told_apart(features: tuple[FeatureSpec, ...]) -> None:
    with pytest.raises(ManifestError, match="expected at least one, each once"):
        ExampleDecode(input="inputs", features=features)
