"""The Open Inference Protocol's messages: those of the official tritonclient, which may live in the same process."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2, service_pb2

from modelyard.wire import INFERENCE_SERVICE, inference_pb2

#: What nothing here has to say: left out.
OMITTED = {
    "inference.ModelConfig": {
        "batch_input", "batch_output", "cc_model_filenames", "default_model_filename", "ensemble_scheduling",
        "instance_group", "metric_tags", "model_metrics", "model_operations", "model_repository_agents",
        "model_transaction_policy", "model_warmup", "optimization", "parameters", "response_cache", "runtime",
        "sequence_batching",
    },
    "inference.ModelDynamicBatching": {
        "default_priority_level", "default_queue_policy", "max_queue_delay_microseconds", "preferred_batch_size",
        "preserve_ordering", "priority_levels", "priority_queue_policy",
    },
    "inference.ModelInput": {"allow_ragged_batch", "is_non_linear_format_io", "is_shape_tensor", "reshape"},
    "inference.ModelOutput": {"is_non_linear_format_io", "is_shape_tensor", "label_filename", "reshape"},
    "inference.ModelStatistics": {"memory_usage", "response_stats"},
}  # fmt: skip


def _messages(descriptors: Any) -> dict[str, Descriptor]:
    found: dict[str, Descriptor] = {}
    for descriptor in descriptors:
        found[descriptor.full_name] = descriptor
        found.update(_messages(descriptor.nested_types))
    return found


OURS = _messages(inference_pb2.DESCRIPTOR.message_types_by_name.values())
THEIRS = _messages(
    [
        *service_pb2.DESCRIPTOR.message_types_by_name.values(),
        *model_config_pb2.DESCRIPTOR.message_types_by_name.values(),
    ]
)


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
def test_fields_are_tritons(name: str) -> None:
    ours = {_field(field) for field in OURS[name].fields}
    theirs = {_field(field) for field in THEIRS[name].fields if field.name not in OMITTED.get(name, set())}
    assert ours == theirs


def test_data_types_are_tritons() -> None:
    theirs = {value.name: value.number for value in model_config_pb2.DESCRIPTOR.enum_types_by_name["DataType"].values}
    assert dict(inference_pb2.DataType.items()) == theirs
    assert inference_pb2.ModelInput.Format.items() == model_config_pb2.ModelInput.Format.items()


def test_methods_are_tritons() -> None:
    service = service_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"]
    theirs = {
        f"/{service.full_name}/{method.name}": (method.input_type.full_name, method.output_type.full_name)
        for method in service.methods
    }
    for method in INFERENCE_SERVICE.values():
        assert theirs[method.path] == (method.request.DESCRIPTOR.full_name, method.response.DESCRIPTOR.full_name)
    declared = inference_pb2.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert set(declared) == {*INFERENCE_SERVICE, "ModelStreamInfer"}
    assert set(declared) <= {method.name for method in service.methods}


OWN = "from modelyard.wire import inference_pb2"
TRITON = "from tritonclient.grpc import service_pb2"
EXCHANGE = """
ours = inference_pb2.ModelInferRequest(model_name="m", raw_input_contents=[b"1234"])
ours.parameters["p"].double_param = 0.5
ours.inputs.add(name="x", datatype="FP32", shape=[1])
theirs = service_pb2.ModelInferRequest.FromString(ours.SerializeToString())
assert type(theirs) is not type(ours)
assert (theirs.inputs[0].name, theirs.parameters["p"].double_param) == ("x", 0.5)
theirs.id = "7"
assert inference_pb2.ModelInferRequest.FromString(theirs.SerializeToString()).id == "7"
print("exchanged")
"""


@pytest.mark.parametrize("order", [(TRITON, OWN), (OWN, TRITON)], ids=["tritonclient first", "modelyard first"])
def test_both_live_in_one_process(order: tuple[str, str]) -> None:
    script = "\n".join([*order, EXCHANGE])
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "exchanged"), done.stderr
