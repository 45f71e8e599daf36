"""What the differential tests of the serving core's readers and writers share."""

from __future__ import annotations

import os
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from modelyard.artifact import Signature, TensorSpec
from modelyard.serving.requests import complete_inputs
from modelyard.wire import dtype_by_name

#: Random cases of each test; the comparison before a release takes 20,000 and more.
CASES = int(os.environ.get("MODELYARD_FORM_CASES", "500"))
#: Every dtype of the usual forms.
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "float16", "bfloat16", "float32", "float64",
)  # fmt: skip
#: Those of outputs.
OUTPUT_DTYPES = (*DTYPES, "string")
_FLOATS = [
    0.0, -0.0, 1.0, -1.0, 0.1, 0.5, 1 / 3, 1e-4, 9.9999e-5, 1e-5, 999999.0, 999999.4, 999999.5, 1e6, 1000001.0,
    123456.7, 1234567.0, 16777216.0, 16777217.0, 1e9, 1e15, 1e16, 1e17, 1e22, 1e23, 3.4e38, 1e-38, 1e-45, 1e300, 5e-324,
    np.nan, -np.nan, np.inf, -np.inf,
]  # fmt: skip

_TEXTS = ["", "a", "T-shirt/top", "größe", "\U0001f600", '"\\/', "\b\f\n\r\t", "\0\x01\x1f\x7f\u2028", "x" * 300]

Arrays = dict[str, npt.NDArray[Any]]


def native() -> Any:
    """The core's functions for tests; the test is skipped where the core is not installed."""
    return pytest.importorskip("modelyard_core", reason="needs the distribution modelyard-core").forms


def cases(seed: int, count: int = CASES) -> Iterator[tuple[random.Random, np.random.Generator]]:
    """Sources of randomness, the same ones in every run."""
    for case in range(count):
        yield random.Random(f"{seed}/{case}"), np.random.default_rng((seed, case))


def some_shape(
    rng: random.Random, *, largest: int = 4, ranks: tuple[int, int] = (0, 4), least: int = 1
) -> tuple[int, ...]:
    return tuple(rng.randint(least, largest) for _ in range(rng.randint(*ranks)))


def some_array(rng: np.random.Generator, dtype: str, shape: Sequence[int]) -> npt.NDArray[Any]:
    """Values of all kinds: any bits, ordinary ones, and those beside the edges of number formats."""
    kind = dtype_by_name(dtype).numpy
    assert kind is not None
    count = int(np.prod(shape, dtype=np.int64))
    if dtype == "string":
        texts = np.empty(count, object)
        texts[:] = [text if rng.random() < 0.5 else text.encode() for text in rng.choice(_TEXTS, count).tolist()]
        return texts.reshape(shape)
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(np.bool_)
    choice = rng.integers(0, 4)
    if choice == 0:
        return np.frombuffer(rng.bytes(count * kind.itemsize), kind).reshape(shape)
    if kind.kind in "iu":
        return rng.integers(-3 if kind.kind == "i" else 0, 100, shape).astype(kind)
    with np.errstate(all="ignore"):
        if choice == 1:
            return rng.choice(_FLOATS, shape).astype(kind)
        if choice == 2:
            return (rng.choice([-1, 1], shape) * 10.0 ** rng.uniform(-46, 39, shape)).astype(kind)
        return np.round(rng.normal(size=shape) * 10.0 ** rng.integers(-3, 7), int(rng.integers(0, 9))).astype(kind)


def some_signature(rng: random.Random, arrays: Mapping[str, npt.NDArray[Any]], dtypes: Mapping[str, str]) -> Signature:
    """One that the arrays fit, with sizes that are free here and there."""
    specs = [
        TensorSpec(
            name=name,
            dtype=dtypes[name],
            shape=None if rng.random() < 0.05 else tuple(-1 if rng.random() < 0.4 else size for size in array.shape),
        )
        for name, array in arrays.items()
    ]
    rng.shuffle(specs)
    return Signature(inputs=tuple(specs), outputs=(), compute="x")


def described(signature: Signature) -> list[tuple[str, str, list[int] | None]]:
    """A signature as the core takes it."""
    return [(spec.name, spec.dtype, None if spec.shape is None else list(spec.shape)) for spec in signature.inputs]


def outputs_of(
    arrays: Mapping[str, npt.NDArray[Any]], dtypes: Mapping[str, str]
) -> list[tuple[str, str, list[int], bytes]]:
    """Outputs as the core takes them."""
    return [
        (name, dtypes[name], list(array.shape), _packed(array) if dtypes[name] == "string" else array.tobytes())
        for name, array in arrays.items()
    ]


def _packed(strings: npt.NDArray[Any]) -> bytes:
    values = [value.encode() if isinstance(value, str) else value for value in strings.ravel().tolist()]
    return b"".join(len(value).to_bytes(4, "little") + value for value in values)


def check_read(read: Any, general: Callable[[], Mapping[str, npt.NDArray[Any]]], signature: Signature) -> bool:
    """Whether the core read a body; where it did, the general path must have the same arrays, bit for bit."""
    if read is None:
        return False
    arrays = general()
    complete_inputs(signature, arrays, check_shapes=True, defaults={}, feed_name=str)
    expected = [(list(arrays[spec.name].shape), arrays[spec.name].tobytes()) for spec in signature.inputs]
    assert [(shape, bytes(data)) for shape, data in read] == expected
    return True


def mutated(rng: random.Random, data: bytes, words: Sequence[bytes] = ()) -> bytes:
    """The body with a few changes of the kinds that break readers."""
    result = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        at = rng.randrange(len(result) + 1)
        end = min(len(result), at + rng.choice((1, 1, 2, 5, 20)))
        kind = rng.randrange(6 if words else 5)
        if kind == 0 and at < len(result):
            result[at] ^= 1 << rng.randrange(8)
        elif kind == 1:
            del result[at:end]
        elif kind == 2:
            result[at:at] = result[at:end]
        elif kind == 3 and at < len(result):
            result[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
        elif kind == 4:
            del result[at:]
        elif words:
            result[at : rng.choice((at, end))] = rng.choice(words)
    return bytes(result)


#: Strings of JSON, to be passed over, and numbers.
_NUMBERS = re.compile(rb'"(?:[^"\\]|\\.)*"|(-?[0-9][-+.0-9eE]*)')
_OTHER_NUMBERS = [
    b"0", b"1", b"7", b"-1", b"-0", b"-0.0", b"0.5", b"1.0", b"2e0", b"1E+2", b"127", b"128", b"-129", b"255", b"256",
    b"65504", b"65536", b"16777217", b"2147483648", b"-2147483649", b"9007199254740993", b"18446744073709551616",
    b"0.1234567", b"3.5e38", b"1e-400", b"1e400", b"4.9e-324", b"123456789012345678901234567890",
]  # fmt: skip


def with_other_numbers(rng: random.Random, text: bytes) -> bytes:
    """JSON with another number in one or two places: whole otherwise, which text with other bytes in it seldom is."""
    for _ in range(rng.choice((1, 1, 2))):
        found = [match for match in _NUMBERS.finditer(text) if match[1]]
        if found:
            match = rng.choice(found)
            text = text[: match.start()] + rng.choice(_OTHER_NUMBERS) + text[match.end() :]
    return text


def number_texts(rng: random.Random, array: npt.NDArray[Any]) -> str:
    """An array as JSON, in one of the ways that clients write numbers."""
    flat = array.ravel()
    if array.dtype.kind == "b":
        texts = ["true" if value else "false" for value in flat]
    elif array.dtype.kind != "f":
        texts = [str(value) for value in flat.tolist()]
    else:
        form = rng.choice(("r", "r", ".7f", ".6g", ".17g", ".3e", ".25f", ".0f", "E"))
        texts = [repr(value) if form == "r" else format(value, form) for value in flat.astype(np.float64).tolist()]
    between = rng.choice((",", ", ", " ,\n"))
    for size in reversed(array.shape):
        texts = ["[" + between.join(texts[at : at + size]) + "]" for at in range(0, len(texts), size)]
    return texts[0]
