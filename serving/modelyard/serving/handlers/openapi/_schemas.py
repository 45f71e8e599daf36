"""JSON Schemas (2020-12, as OpenAPI 3.1 has them) of tensors, requests and answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.artifact import (
    CLASSIFY_METHOD,
    DEFAULT_SIGNATURE,
    PREDICT_METHOD,
    REGRESS_METHOD,
    Signature,
    TensorSpec,
)
from modelyard.serving.repository import VersionState

Schema = dict[str, Any]

_FLOAT32_MAX = 3.4028234663852886e38
_INTEGERS = {
    f"{sign}int{bits}": (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if not sign else (0, (1 << bits) - 1)
    for bits in (8, 16, 32, 64)
    for sign in ("", "u")
}
_B64 = {"$ref": "#/components/schemas/Base64"}
_TEXT: Schema = {"type": "string"}
_COUNT: Schema = {"type": "integer", "minimum": 0}


def ref(name: str) -> Schema:
    """A reference to one of :data:`COMPONENTS`."""
    return {"$ref": f"#/components/schemas/{name}"}


def object_of(properties: Mapping[str, Schema], *, optional: Sequence[str] = (), **more: Any) -> Schema:
    """An object whose fields are required, but for some."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), **({"required": required} if required else {}), **more}


def list_of(items: Schema, **more: Any) -> Schema:
    return {"type": "array", "items": items, **more}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}]}


def _value(dtype: str, *, sent: bool) -> Schema:
    """One element of a tensor, in version 1 of the API."""
    if dtype in _INTEGERS:
        low, high = _INTEGERS[dtype]
        return {"type": "integer", "minimum": low, "maximum": high}
    if dtype == "bool":
        return {"type": "boolean"}
    if dtype == "string":
        return {"anyOf": [_TEXT, _B64]}
    if dtype == "float32" and sent:
        return {"type": "number", "format": "float", "minimum": -_FLOAT32_MAX, "maximum": _FLOAT32_MAX}
    return {"type": "number"}


def _tensor(dtype: str, shape: Sequence[int] | None, *, sent: bool) -> Schema:
    if shape is None:
        return {"description": f"{dtype}, lists of any depth"}
    schema = _value(dtype, sent=sent)
    for size in reversed(shape):
        # Lists alone say what shape a tensor has: an empty one does not say the sizes of the dimensions below it.
        least = {"minItems": 1} if sent and len(shape) > 1 else {}
        schema = list_of(schema, **least) if size < 0 else list_of(schema, minItems=size, maxItems=size)
    return schema


def _named(specs: Sequence[TensorSpec], *, row: bool) -> Schema:
    """Tensors by name, and without one where there is only one; of one row, or whole."""
    tensors = {
        spec.name: _tensor(spec.dtype, spec.shape[1:] if row and spec.shape is not None else spec.shape, sent=True)
        for spec in specs
    }
    named = object_of(tensors)
    if row:
        named["additionalProperties"] = False
    return named if len(tensors) != 1 else {"anyOf": [*tensors.values(), named]}


def predict_request(signatures: Mapping[str, Signature]) -> Schema:
    forms: list[Schema] = []
    for name, signature in signatures.items():
        chosen = {"signature_name": {"const": name}}
        optional = ("signature_name",) if name == DEFAULT_SIGNATURE else ()
        if signature.batched:
            rows = list_of(_named(signature.inputs, row=True), minItems=1)
            forms.append(object_of({**chosen, "instances": rows}, optional=optional))
        columns = _named(signature.inputs, row=False)
        forms.append(object_of({**chosen, "inputs": columns}, optional=optional))
    return {"anyOf": forms}


def predict_answer(signatures: Mapping[str, Signature]) -> Schema:
    """The answer to a predict request to one model, in the form of the request."""
    rows, columns = [], []
    for signature in signatures.values():
        whole, each = _outputs(signature.outputs, row=False), _outputs(signature.outputs, row=True)
        columns += [whole] if whole not in columns else []
        rows += [each] if each not in rows else []
    return {
        "anyOf": [
            object_of({"predictions": list_of({"anyOf": rows})}),
            object_of({"outputs": {"anyOf": columns}}),
        ]
    }


def _outputs(specs: Sequence[TensorSpec], *, row: bool) -> Schema:
    tensors = {
        spec.name: _tensor(spec.dtype, spec.shape[1:] if row and spec.shape is not None else spec.shape, sent=False)
        for spec in specs
    }
    return next(iter(tensors.values())) if len(tensors) == 1 else object_of(tensors)


def infer_request(signatures: Mapping[str, Signature], datatypes: Mapping[str, str]) -> Schema:
    """The body of an inference of the Open Inference Protocol, for one model."""
    forms: list[Schema] = []
    for name, signature in signatures.items():
        if any(spec.dtype not in datatypes for spec in (*signature.inputs, *signature.outputs)):
            continue
        tensors = [
            object_of(
                {
                    "name": {"const": spec.name},
                    "datatype": {"const": datatypes[spec.dtype]},
                    "shape": _shape(spec.shape),
                    "data": {"type": "array"},
                    "parameters": _or_null({"type": "object"}),
                },
                optional=("parameters",),
            )
            for spec in signature.inputs
        ]
        chosen: dict[str, Schema] = {
            "id": _or_null(_TEXT),
            "inputs": list_of({"anyOf": tensors}, minItems=len(tensors), maxItems=len(tensors)),
            "outputs": _or_null(
                list_of(
                    object_of(
                        {
                            "name": {"enum": [spec.name for spec in signature.outputs]},
                            "parameters": _or_null({"type": "object"}),
                        },
                        optional=("parameters",),
                    )
                )
            ),
        }
        optional = ["id", "outputs"]
        if name != DEFAULT_SIGNATURE:
            chosen["parameters"] = object_of({"signature_name": {"const": name}})
        forms.append(object_of(chosen, optional=optional))
    return {"anyOf": forms}


def _shape(shape: Sequence[int] | None) -> Schema:
    if shape is None:
        return list_of(_COUNT)
    sizes: list[Schema] = [_COUNT if size < 0 else {"const": size} for size in shape]
    return {"type": "array", "prefixItems": sizes, "minItems": len(sizes), "maxItems": len(sizes)}


_DURATION = object_of({"count": _COUNT, "ns": _COUNT})
_TIMES = {name: ref("Duration") for name in ("compute_input", "compute_infer", "compute_output")}
_PARAMETERS: Schema = {
    "type": "object",
    "additionalProperties": {"anyOf": [_TEXT, {"type": "number"}, {"type": "boolean"}]},
}
_TENSOR = object_of(
    {
        "name": _TEXT,
        "datatype": _TEXT,
        "shape": list_of(_COUNT),
        "data": {"type": "array"},
        "parameters": _PARAMETERS,
    },
    optional=("data", "parameters"),
)
_TENSOR_METADATA = object_of({"name": _TEXT, "datatype": _TEXT, "shape": list_of({"type": "integer"})})
_OBJECT: Schema = {"type": "object"}
_LOG_SETTINGS: Mapping[str, Schema] = {
    "log_file": _TEXT,
    **{name: {"type": "boolean"} for name in ("log_info", "log_warning", "log_error")},
    "log_verbose_level": _COUNT,
    "log_format": _TEXT,
}

COMPONENTS: dict[str, Schema] = {
    "Error": object_of({"error": _TEXT}, description="Why a request was refused, and what to send instead."),
    "Base64": object_of(
        {"b64": {"type": "string", "contentEncoding": "base64"}},
        additionalProperties=False,
        description="Bytes, such as an encoded image.",
    ),
    "PredictRequest": {
        "description": "Rows (`instances`) or whole tensors (`inputs`), by the model's signature.",
        "anyOf": [
            object_of(
                {"signature_name": _TEXT, "instances": {"type": "array", "minItems": 1}}, optional=("signature_name",)
            ),
            object_of({"signature_name": _TEXT, "inputs": {}}, optional=("signature_name",)),
        ],
    },
    "PredictAnswer": {
        "description": "In the form of the request.",
        "anyOf": [object_of({"predictions": {"type": "array"}}), object_of({"outputs": {}})],
    },
    "ExamplesRequest": object_of(
        {"signature_name": _TEXT, "context": _OBJECT, "examples": list_of(_OBJECT, minItems=1)},
        optional=("signature_name", "context"),
        description="A feature is a value, a list of values, or base64.",
    ),
    "Classifications": object_of(
        {
            "results": list_of(
                list_of({"type": "array", "prefixItems": [_TEXT, {}], "minItems": 2, "maxItems": 2}),
                description="For each example its classes: label and score.",
            )
        }
    ),
    "Regressions": object_of({"results": {"type": "array", "description": "For each example a number."}}),
    "ModelStatus": object_of(
        {
            "model_version_status": list_of(
                object_of(
                    {
                        "version": {"type": "string", "pattern": "^[0-9]+$"},
                        "state": {"enum": [state.name for state in VersionState]},
                        "status": object_of({"error_code": _TEXT, "error_message": _TEXT}),
                    }
                )
            )
        }
    ),
    "ModelMetadata": object_of({"model_spec": _OBJECT, "metadata": object_of({"signature_def": _OBJECT})}),
    "Models": object_of(
        {
            "models": list_of(
                object_of(
                    {
                        "name": _TEXT,
                        "base_path": _TEXT,
                        "ready": {"type": "boolean"},
                        "labels": {"type": "object", "additionalProperties": _COUNT},
                        "versions": list_of(
                            object_of(
                                {
                                    "version": {"type": "string", "pattern": "^[0-9]+$"},
                                    "state": {"enum": [state.name for state in VersionState]},
                                    "error": _TEXT,
                                }
                            )
                        ),
                        "signatures": {
                            "type": "object",
                            "additionalProperties": object_of(
                                {
                                    "method": {"enum": [PREDICT_METHOD, CLASSIFY_METHOD, REGRESS_METHOD]},
                                    "inputs": {"type": "object", "additionalProperties": _TEXT},
                                    "outputs": {"type": "object", "additionalProperties": _TEXT},
                                }
                            ),
                        },
                    },
                    # Who administers the model is told.
                    optional=("base_path",),
                )
            )
        }
    ),
    "ServerMetadata": object_of({"name": _TEXT, "version": _TEXT, "extensions": list_of(_TEXT)}),
    "V2ModelMetadata": object_of(
        {
            "name": _TEXT,
            "versions": list_of(_TEXT),
            "platform": _TEXT,
            "inputs": list_of(_TENSOR_METADATA),
            "outputs": list_of(_TENSOR_METADATA),
        }
    ),
    "V2ModelConfig": object_of({"name": _TEXT}, description="Triton's ModelConfig as JSON."),
    "InferRequest": object_of(
        {
            "id": _or_null(_TEXT),
            "parameters": _or_null(_PARAMETERS),
            "inputs": list_of(_TENSOR),
            "outputs": _or_null(
                list_of(object_of({"name": _TEXT, "parameters": _or_null(_PARAMETERS)}, optional=("parameters",)))
            ),
        },
        optional=("id", "parameters", "outputs"),
    ),
    "InferAnswer": object_of(
        {
            "model_name": _TEXT,
            "model_version": _TEXT,
            "id": _TEXT,
            "parameters": _PARAMETERS,
            "outputs": list_of(_TENSOR),
        },
        optional=("id", "parameters"),
    ),
    "Live": object_of({"live": {"type": "boolean"}}),
    "Ready": object_of({"ready": {"type": "boolean"}}),
    "ModelReady": object_of({"name": _TEXT, "ready": {"type": "boolean"}}),
    "Duration": _DURATION,
    "Statistics": object_of(
        {
            "model_stats": list_of(
                object_of(
                    {
                        "name": _TEXT,
                        "version": _TEXT,
                        "last_inference": _COUNT,
                        "inference_count": _COUNT,
                        "execution_count": _COUNT,
                        "inference_stats": {"type": "object", "additionalProperties": ref("Duration")},
                        "batch_stats": list_of(object_of({"batch_size": _COUNT, **_TIMES})),
                    }
                )
            )
        }
    ),
    "IndexRequest": object_of({"ready": {"type": "boolean"}}, optional=("ready",)),
    "Index": list_of(object_of({"name": _TEXT, "version": _TEXT, "state": _TEXT, "reason": _TEXT})),
    "ControlRequest": object_of({"parameters": _OBJECT}, optional=("parameters",)),
    "LogSettings": object_of(_LOG_SETTINGS),
    "LogChanges": object_of(_LOG_SETTINGS, optional=tuple(_LOG_SETTINGS)),
}
