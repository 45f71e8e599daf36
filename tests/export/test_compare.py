from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import VerificationError
from modelyard.export.verification._compare import Comparison, check_answer

SIGNATURE = Signature(
    inputs=(TensorSpec(name="x", dtype="float32", shape=(-1,)),),
    outputs=(
        TensorSpec(name="y", dtype="float32", shape=(-1, 2)),
        TensorSpec(name="n", dtype="int64", shape=(-1,)),
        TensorSpec(name="s", dtype="string", shape=(-1,)),
    ),
    compute="f",
)


def answers(count: int = 20) -> dict[str, Any]:
    y = np.arange(2 * count, dtype=np.float32).reshape(count, 2)
    return {"y": y, "n": np.arange(count), "s": np.array([b"%d" % i for i in range(count)], object)}


def compare(
    received: dict[str, Any],
    *,
    expected: dict[str, Any] | None = None,
    allowed: float = 1e-3,
    comparison: Comparison | None = None,
) -> Comparison:
    comparison = comparison or Comparison(format="onnx", max_abs_error=allowed)
    comparison.add("f", SIGNATURE, 1, expected or answers(), received, count=20)
    return comparison


def test_figures() -> None:
    received = answers()
    received["y"][3, 1] += np.float32(0.0005)
    received["y"][0, 0] = 1e-5
    comparison = compare(received)
    assert comparison.worst_abs == comparison.by_signature["f"] == pytest.approx(0.0005, rel=1e-2)
    # The source is 0 there: relative to the floor of 1e-6.
    assert comparison.worst_rel == pytest.approx(10.0, rel=1e-3)
    assert comparison.histogram.sum() == 40
    assert comparison.histogram[0] == 38
    assert [worst.index for worst in comparison.worst[:2]] == [3, 0]
    assert len(comparison.worst) == 16


def test_the_worst_examples_are_told_once_with_their_larger_error() -> None:
    first, second = answers(), answers()
    first["y"][3] += np.float32(0.0001)
    second["y"][3] += np.float32(0.0005)
    comparison = compare(first)
    compare(second, comparison=comparison)
    compare(first, comparison=comparison)
    assert [worst.index for worst in comparison.worst].count(3) == 1
    assert comparison.worst[0].error == pytest.approx(0.0005, rel=1e-2)


def test_the_worst_output_comes_first() -> None:
    received = answers()
    received["y"][7, 0] += 4
    received["n"][2] = 99
    received["s"][5] = b"x"
    with pytest.raises(VerificationError) as caught:
        compare(received)
    message = caught.value.message
    assert message.index("output 'y'") < message.index("output 'n'")
    assert "(example 7: source 14, onnx 18)" in message
    assert "output 'n' differs in 1 of 20 examples, all must be equal (example 2: source 2, exported 99)" in message
    assert "(example 5: source b'5', exported b'x')" in message


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_masks_of_the_source_are_compared_as_they_are(value: float) -> None:
    expected = answers()
    expected["y"][4:6] = value
    assert compare(expected, expected=expected).worst_abs == 0
    for other in (0.0, np.inf if value != np.inf else -np.inf):
        received = {**expected, "y": np.where(np.arange(20)[:, np.newaxis] == 4, np.float32(other), expected["y"])}
        with pytest.raises(VerificationError, match="NaN or infinite in 1 of 20 examples"):
            compare(received, expected=expected, allowed=1e30)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_fails_whatever_is_allowed(value: float) -> None:
    received = answers()
    received["y"][4:6] = value
    with pytest.raises(VerificationError, match="NaN or infinite in 2 of 20 examples"):
        compare(received, allowed=1e30)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z": np.zeros(20)}, r"outputs are \['n', 's', 'y', 'z'\]; expected \['n', 's', 'y'\]"),
        ({"y": np.zeros((20, 2))}, r"output 'y' is float64 \[20, 2\]; expected float32 \[20, 2\]"),
        ({"y": np.zeros((20, 3), np.float32)}, r"output 'y' is float32 \[20, 3\]; expected float32 \[20, 2\]"),
        ({"n": np.zeros((20, 1), np.int64)}, r"output 'n' is int64 \[20, 1\]; expected int64 \[20\]"),
    ],
)
def test_names_dtypes_and_shapes(change: dict[str, Any], message: str) -> None:
    check_answer("onnx", "f", SIGNATURE, answers(), answers())
    with pytest.raises(VerificationError, match=message):
        check_answer("onnx", "f", SIGNATURE, answers(), answers() | change)
