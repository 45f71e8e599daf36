"""A model's configuration as Triton describes it: perf_analyzer and other clients of Triton begin by asking for it."""

from __future__ import annotations

from modelyard.artifact import Signature, TensorSpec
from modelyard.serving.config import ModelConfig
from modelyard.serving.handlers.oip._datatypes import datatype_of
from modelyard.serving.servables import Servable
from modelyard.wire import inference_pb2

#: Triton's names of platforms and backends, by those of backends here; others are as here, with no platform.
_NAMES = {
    "tensorflow": ("tensorflow_savedmodel", "tensorflow"),
    "onnxruntime": ("onnxruntime_onnx", "onnxruntime"),
    "litert": ("", "tflite"),
}


def model_config(
    servable: Servable, signature: Signature, configured: ModelConfig, *, max_rows: int
) -> inference_pb2.ModelConfig:
    platform, backend = _NAMES.get(servable.backend.name, ("", servable.backend.name))
    # In Triton's words a model that takes batches leaves their dimension out, and no tensor may be without others.
    batched = signature.batched and all(
        spec.shape and len(spec.shape) > 1 and spec.shape[0] == -1 for spec in (*signature.inputs, *signature.outputs)
    )
    config = inference_pb2.ModelConfig(
        name=servable.name,
        platform=platform,
        backend=backend,
        max_batch_size=(servable.max_request_rows or max_rows) if batched else 0,
    )
    policy = configured.policy
    if policy.specific is not None:
        config.version_policy.specific.versions.extend(sorted(policy.specific))
    elif policy.latest is None:
        config.version_policy.all.SetInParent()
    else:
        config.version_policy.latest.num_versions = policy.latest
    defaults = servable.defaults.get(signature.compute, {})
    for spec in signature.inputs:
        config.input.add(**_tensor(spec, batched=batched), optional=spec.name in defaults)
    for spec in signature.outputs:
        config.output.add(**_tensor(spec, batched=batched))
    if servable.batching is not None or (signature.decode is None and signature.compute in servable.row_wise):
        config.dynamic_batching.SetInParent()
    return config


def _tensor(spec: TensorSpec, *, batched: bool) -> dict[str, object]:
    datatype = datatype_of(spec.dtype, tensor=spec.name)
    # The protocol has no unknown rank: it shows as a single -1.
    shape = (-1,) if spec.shape is None else spec.shape
    return {
        "name": spec.name,
        "data_type": f"TYPE_{'STRING' if datatype == 'BYTES' else datatype}",
        "dims": shape[1:] if batched else shape,
    }
