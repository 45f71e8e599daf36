"""The checked-in protobuf code: up to date, and a subset of the official messages, number by number."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from modelyard.wire import (
    MODEL_SERVICE,
    PREDICTION_SERVICE,
    config_pb2,
    error_pb2,
    inference_pb2,
    metrics_pb2,
    serving_pb2,
    tensorflow_pb2,
    traffic_pb2,
)

ROOT = Path(__file__).resolve().parents[2]
MODULES = (error_pb2, serving_pb2, tensorflow_pb2)
#: Messages of configuration files, which the official package does not ship.
UNSHIPPED = (config_pb2,)
#: Messages of other packages; test_inference.py compares Triton's, and a real Prometheus reads the page's.
ELSEWHERE = (inference_pb2, metrics_pb2)
#: Messages that nobody else has.
ADDED = (traffic_pb2,)
#: Where the official packages keep the messages that modelyard has copies of.
OFFICIAL = (
    "tensorflow.core.example.example_pb2",
    "tensorflow.core.example.feature_pb2",
    "tensorflow.core.framework.tensor_pb2",
    "tensorflow.core.framework.tensor_shape_pb2",
    "tensorflow.core.framework.types_pb2",
    "tensorflow.core.protobuf.error_codes_pb2",
    "tensorflow.core.protobuf.meta_graph_pb2",
    "tensorflow.core.protobuf.saved_model_pb2",
    "tensorflow_serving.apis.classification_pb2",
    "tensorflow_serving.apis.get_model_metadata_pb2",
    "tensorflow_serving.apis.get_model_status_pb2",
    "tensorflow_serving.apis.inference_pb2",
    "tensorflow_serving.apis.input_pb2",
    "tensorflow_serving.apis.model_management_pb2",
    "tensorflow_serving.apis.model_pb2",
    "tensorflow_serving.apis.predict_pb2",
    "tensorflow_serving.apis.prediction_log_pb2",
    "tensorflow_serving.apis.prediction_service_pb2",
    "tensorflow_serving.apis.regression_pb2",
    "tensorflow_serving.config.log_collector_config_pb2",
    "tensorflow_serving.config.logging_config_pb2",
    "tensorflow_serving.config.model_server_config_pb2",
    "tensorflow_serving.apis.logging_pb2",
    "tensorflow_serving.config.file_system_storage_path_source_pb2",
    "tensorflow_serving.apis.status_pb2",
)


def test_is_what_the_generator_makes() -> None:
    spec = importlib.util.spec_from_file_location("generate_wire", ROOT / "clients" / "generate_wire.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    generated = module.generate()
    assert len(generated) == 2 * len(MODULES + UNSHIPPED + ELSEWHERE + ADDED)
    stale = [name for name, text in generated.items() if (module.GENERATED / name).read_text() != text]
    assert stale == [], "run: make wire"


def _messages(descriptors: Any) -> dict[str, Descriptor]:
    found: dict[str, Descriptor] = {}
    for descriptor in descriptors:
        found[descriptor.full_name] = descriptor
        found.update(_messages(descriptor.nested_types))
    return found


OURS = {
    name: descriptor
    for module in MODULES
    for name, descriptor in _messages(module.DESCRIPTOR.message_types_by_name.values()).items()
}


@pytest.fixture(scope="module")
def official() -> Any:
    from google.protobuf import descriptor_pool

    for name in OFFICIAL:
        importlib.import_module(name)
    return descriptor_pool.Default()


def _field(field: FieldDescriptor) -> tuple[Any, ...]:
    typed = field.message_type or field.enum_type
    oneof = field.containing_oneof
    return (
        field.name,
        field.number,
        field.type,
        field.is_repeated,
        typed.full_name if typed else None,
        oneof.name if oneof else None,
        field.has_presence,
    )


@pytest.mark.parametrize("name", sorted(OURS))
def test_fields_are_the_official_ones(name: str, official: Any) -> None:
    ours, theirs = OURS[name], official.FindMessageTypeByName(name)
    known = {_field(field) for field in theirs.fields}
    assert [field for field in map(_field, ours.fields) if field not in known] == []


def _enums() -> dict[str, EnumDescriptor]:
    top = [enum for module in MODULES for enum in module.DESCRIPTOR.enum_types_by_name.values()]
    nested = [enum for message in OURS.values() for enum in message.enum_types]
    return {enum.full_name: enum for enum in [*top, *nested]}


@pytest.mark.parametrize("name", sorted(_enums()))
def test_enums_are_the_official_ones(name: str, official: Any) -> None:
    ours = {value.name: value.number for value in _enums()[name].values}
    theirs = {value.name: value.number for value in official.FindEnumTypeByName(name).values}
    assert {key: theirs.get(key) for key in ours} == ours


@pytest.mark.parametrize(
    ("methods", "module"),
    [(PREDICTION_SERVICE, "prediction_service_pb2"), (MODEL_SERVICE, "model_service_pb2")],
)
def test_methods_are_the_official_ones(methods: Any, module: str) -> None:
    (service,) = importlib.import_module(f"tensorflow_serving.apis.{module}").DESCRIPTOR.services_by_name.values()
    ours = {
        (method.path, method.request.DESCRIPTOR.full_name, method.response.DESCRIPTOR.full_name)
        for method in methods.values()
    }
    theirs = {
        (f"/{service.full_name}/{method.name}", method.input_type.full_name, method.output_type.full_name)
        for method in service.methods
    }
    assert ours == theirs


def test_json_names_of_the_status_are_snake_case() -> None:
    fields = OURS["tensorflow.serving.StatusProto"].fields_by_name
    assert {field.json_name for field in fields.values()} == {"error_code", "error_message"}
