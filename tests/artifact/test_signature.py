from __future__ import annotations

from typing import Any

import pytest

from modelyard.artifact import REGRESS_METHOD, ImageDecode, Signature, TensorSpec
from modelyard.errors import ManifestError

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
        ({"decode": ImageDecode(input="x")}, "both decode and preprocess"),
        ({"preprocess": "s.preprocess"}, "both decode and preprocess"),
        ({"decode": ImageDecode(input="y"), "preprocess": "s.preprocess"}, r"decodes 'y'.*received \['x'\]"),
    ],
)
def test_a_wrong_signature_is_an_error(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ManifestError, match=message):
        Signature(**({"inputs": (X,), "outputs": (X,), "compute": "s"} | fields))


def test_right_ones_are_accepted() -> None:
    signature = Signature(
        inputs=(X,), outputs=(X,), compute="s", method=REGRESS_METHOD, decode=ImageDecode(input="x"), preprocess="p"
    )
    assert signature.decode is not None and signature.decode.channels == 3
