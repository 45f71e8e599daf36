"""Predict over REST: bodies in row and column form to arrays, and arrays to answers."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from json.encoder import encode_basestring
from typing import Any, Literal, TypeGuard

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature
from modelyard.errors import InvalidInputError, InvalidRequestError, ModelyardError, UnsupportedError
from modelyard.serving.handlers.rest._floats import float_texts
from modelyard.serving.handlers.rest._json import parse_object, quote, signature_in
from modelyard.serving.handlers.rest._tensors import is_b64, value_to_array
from modelyard.serving.requests import Arrays, format_shape
from modelyard.wire import dtype_by_numpy, grpc_status_of

Form = Literal["row", "column"]
_LIST = "of 'instances' list"
#: Dtypes that upstream's JSON writer lacks, with its names for them.
_UNWRITABLE = {
    "float16": "half",
    "bfloat16": "bfloat16",
    "uint16": "uint16",
    "complex64": "complex64",
    "complex128": "complex128",
}


@dataclass(frozen=True, kw_only=True)
class PredictBody:
    """A parsed request body, its tensors still JSON."""

    #: ``row`` for ``instances``, ``column`` for ``inputs``.
    form: Form
    #: The signature asked for; empty for the default.
    signature: str
    #: The JSON value of ``instances`` or ``inputs``.
    value: object


def parse_body(body: bytes, *, max_depth: int) -> PredictBody:
    document = parse_object(body, max_depth=max_depth)
    signature = signature_in(document)
    if "instances" in document and "inputs" in document:
        raise InvalidRequestError(
            f"JSON Value: {quote(document)} Not formatted correctly expecting only one of 'inputs' or 'instances' "
            "keys to exist "
        )
    if "inputs" in document:
        return PredictBody(form="column", signature=signature, value=document["inputs"])
    if "instances" not in document:
        raise InvalidRequestError("Missing 'inputs' or 'instances' key")
    instances = document["instances"]
    if not isinstance(instances, list):
        raise InvalidRequestError(f"JSON Value: {quote(document)} Expecting 'instances' to be an list/array")
    if not instances:
        raise InvalidRequestError(f"JSON Value: {quote(document)} No values in 'instances' array")
    return PredictBody(form="row", signature=signature, value=instances)


def inputs_of(body: PredictBody, signature: Signature, *, extensions: bool = False) -> Arrays:
    """Converts the tensors of a body.

    ``extensions`` accepts dtypes that upstream's JSON lacks, and leaves it to the data plane whether inputs that are
    missing have defaults.
    """
    dtypes = {spec.name: spec.dtype for spec in signature.inputs}
    if body.form == "row" and isinstance(body.value, list):
        return _rows(body.value, dtypes, extensions)
    return _columns(body.value, dtypes, extensions)


def names_of(body: PredictBody) -> Iterable[str]:
    """The inputs that a body names; none where its one input has no name."""
    value = body.value
    if body.form == "row" and isinstance(value, list):
        value = value[0]
    return value if _is_named(value) else ()


def _columns(value: object, dtypes: Mapping[str, str], extensions: bool) -> Arrays:
    if not isinstance(value, dict) or is_b64(value):
        if len(dtypes) != 1:
            raise InvalidRequestError(
                "inputs is a plain value/list, but expecting an object as multiple input tensors required as per "
                f"tensorinfo_map: {', '.join(sorted(dtypes))}"
            )
        ((name, dtype),) = dtypes.items()
        return {name: value_to_array(value, dtype, extensions=extensions)}
    for name in dtypes:
        if name not in value and not extensions:
            raise InvalidRequestError(f"Missing named input: {name} in 'inputs' object.")
    return {
        name: value_to_array(value[name], dtype, extensions=extensions)
        for name, dtype in dtypes.items()
        if name in value
    }


def _rows(instances: list[object], dtypes: Mapping[str, str], extensions: bool) -> Arrays:
    if _is_named(instances[0]):
        return _named_rows(instances, dtypes, extensions)
    if len(dtypes) != 1:
        raise InvalidRequestError(
            "instances is a plain list, but expecting list of objects as multiple input tensors required as per "
            f"tensorinfo_map: {', '.join(sorted(dtypes))}"
        )
    ((name, dtype),) = dtypes.items()
    for index, item in enumerate(instances):
        if _is_named(item):
            raise InvalidRequestError(f"Expecting value/list but got object at item {index} of input list")
    return {name: _batch(instances, dtype, extensions, lambda index: f"Failed to process element: {index} {_LIST}.")}


def _named_rows(instances: list[object], dtypes: Mapping[str, str], extensions: bool) -> Arrays:
    columns: dict[str, list[object]] = {name: [] for name in dtypes}
    first = instances[0]
    for index, item in enumerate(instances):
        if not _is_named(item):
            raise InvalidRequestError(f"Expecting object but got list at item {index} of input list")
        for name in item:
            if name not in columns:
                raise InvalidRequestError(
                    f"Failed to process element: {index} key: {name} of 'instances' list. Error: INVALID_ARGUMENT: "
                    f"JSON object: does not have named input: {name}"
                )
            columns[name].append(item[name])
        # With extensions, every row must still name the same inputs as the first.
        wanted = first.keys() if extensions and _is_named(first) else columns.keys()
        if item.keys() != wanted:
            raise InvalidRequestError(
                f"Failed to process element: {index} of 'instances' list. JSON object: {quote(item)} keys must be "
                f"equal to: {','.join(sorted(wanted))}"
            )

    def place(name: str) -> Callable[[int], str]:
        return lambda index: f"Failed to process element: {index} key: {name} of 'instances' list."

    return {name: _batch(values, dtypes[name], extensions, place(name)) for name, values in columns.items() if values}


def _is_named(item: object) -> TypeGuard[dict[str, object]]:
    return isinstance(item, dict) and not is_b64(item)


def _batch(values: list[object], dtype: str, extensions: bool, place: Callable[[int], str]) -> npt.NDArray[Any]:
    """All rows at once where they are alike; row by row, to name the culprit, where they are not."""
    try:
        return value_to_array(values, dtype, extensions=extensions)
    except (InvalidInputError, UnsupportedError) as exc:
        whole = exc
    first: npt.NDArray[Any] | None = None
    for index, value in enumerate(values):
        try:
            row = value_to_array(value, dtype, extensions=extensions)
            if first is None:
                first = row
            elif row.size != first.size:
                raise InvalidInputError(f"Expecting tensor size: {first.size} but got: {row.size}")
            elif row.shape != first.shape:
                raise InvalidInputError(
                    f"Expecting shape {format_shape(first.shape)} but got: {format_shape(row.shape)}"
                )
        except ModelyardError as exc:
            # Upstream hides the inner code as well: what is UNIMPLEMENTED in column form is 400 here.
            raise InvalidInputError(f"{place(index)} Error: {grpc_status_of(exc)}: {exc.message}") from exc
    raise whole


def predict_answer(outputs: Arrays, form: Form, *, strict: bool = False, extensions: bool = False) -> str:
    """The body of an answer, in the form of the request; NaN and infinities stand bare, as upstream writes them.

    ``strict`` refuses these; ``extensions`` writes dtypes that upstream's JSON lacks.
    """
    if strict:
        _check_finite(outputs)
    if form == "column":
        texts = {name: _text(_widened(array) if extensions else array, name) for name, array in outputs.items()}
        return f'{{\n    "outputs": {next(iter(texts.values())) if len(texts) == 1 else _object(texts, "    ")}\n}}'
    return f'{{\n    "predictions": [{", ".join(_rows_texts(outputs, extensions))}\n    ]\n}}'


def _rows_texts(outputs: Arrays, extensions: bool) -> list[str]:
    size: int | None = None
    for name, array in outputs.items():
        if array.ndim == 0:
            raise InvalidInputError(f"Tensor name: {name} has no shape information ")
        if size is not None and array.shape[0] != size:
            raise InvalidInputError(
                f"Tensor name: {name} has inconsistent batch size: {array.shape[0]} expecting: {size}"
            )
        size = array.shape[0]
    if extensions:
        outputs = {name: _widened(array) for name, array in outputs.items()}
    columns = [_row_texts(array, name) for name, array in outputs.items()]
    # The usual case, of many thousands of rows at times.
    if len(columns) == 1:
        return columns[0]
    return [_object(dict(zip(outputs, row, strict=True)), "        ") for row in zip(*columns, strict=True)]


def _check_finite(outputs: Arrays) -> None:
    for name, array in outputs.items():
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise InvalidInputError(
                f"Output {name!r} holds NaN or an infinity, which strict JSON cannot say. Use gRPC, or start the "
                "server without --rest_api_strict_json."
            )


def _widened(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """A dtype that JSON has, where one holds the same values exactly."""
    name = dtype_by_numpy(array.dtype).name
    if name in ("float16", "bfloat16"):
        return array.astype(np.float32)
    if name == "uint16":
        return array.astype(np.int32)
    return array


def _object(texts: Mapping[str, str], indent: str) -> str:
    lines = ",\n".join(f"{indent}    {json.dumps(name)}: {text}" for name, text in texts.items())
    return f"{{\n{lines}\n{indent}}}"


def _row_texts(array: npt.NDArray[Any], name: str) -> list[str]:
    values = _value_texts(array, name)
    if array.ndim == 1:
        return values
    rows, inner = array.shape[0], array.shape[1:]
    step = len(values) // rows if rows else 0
    return [_nest(values[row * step : (row + 1) * step], inner) for row in range(rows)]


def _text(array: npt.NDArray[Any], name: str) -> str:
    return _nest(_value_texts(array, name), array.shape)


def _nest(values: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return values[0]
    if len(shape) == 1:
        return f"[{', '.join(values)}]"
    if 0 in shape:
        return json.dumps(np.zeros(shape).tolist())
    step = len(values) // shape[0]
    return f"[{', '.join(_nest(values[row * step : (row + 1) * step], shape[1:]) for row in range(shape[0]))}]"


def _value_texts(array: npt.NDArray[Any], name: str) -> list[str]:
    dtype = dtype_by_numpy(array.dtype).name
    if dtype in ("float32", "float64"):
        return float_texts(array)
    flat = array.ravel().tolist()
    if dtype == "bool":
        return ["true" if value else "false" for value in flat]
    if dtype == "string":
        if name.endswith("_bytes"):
            return [json.dumps({"b64": base64.b64encode(_as_bytes(value)).decode("ascii")}) for value in flat]
        # Bytes that are no UTF-8 cannot be JSON; upstream sends them raw, which no strict parser reads.
        return [encode_basestring(_as_bytes(value).decode("utf-8", "replace")) for value in flat]
    if dtype in _UNWRITABLE:
        # Upstream says INVALID_ARGUMENT here, which is 400.
        raise InvalidInputError(f"Failed to write JSON value for tensor type: {_UNWRITABLE[dtype]} (output {name!r})")
    return [str(value) for value in flat]


def _as_bytes(value: object) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
