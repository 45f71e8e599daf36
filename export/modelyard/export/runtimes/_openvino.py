"""OpenVINO as the server runs it: ONNX graphs on the CPU, in the precision asked for and no other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature, TensorSpec
from modelyard.artifact.runtimes import copy_openvino, openvino_core, openvino_settings, openvino_spec, prepare_openvino
from modelyard.errors import VerificationError


class OpenVino:
    """ONNX graphs in OpenVINO."""

    name = "openvino"
    package = "openvino"
    decodes = False

    def __init__(self, files: Mapping[str, Path], *, precision: str, threads: int) -> None:
        import openvino

        self.threads = threads
        self._tensor = openvino.Tensor
        settings = openvino_settings(bfloat16=precision == "bfloat16", threads=threads)
        core = openvino_core()
        self._requests: dict[str, Any] = {}
        graphs: dict[str, Signature] = {}
        for name, path in files.items():
            model = core.read_model(path)
            prepare_openvino(model)
            graphs[name] = Signature(
                inputs=tuple(_spec(port) for port in model.inputs),
                outputs=tuple(_spec(port) for port in model.outputs),
                compute=name,
            )
            _check(name, model, graphs[name])
            self._requests[name] = core.compile_model(model, "CPU", settings).create_infer_request()
        self.graphs: Mapping[str, Signature] = graphs

    def run(self, graph: str, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Computes one graph."""
        request = self._requests[graph]
        # Tensors share these arrays but do not keep them alive.
        arrays = [np.require(inputs[spec.name], requirements=["A", "C", "W"]) for spec in self.graphs[graph].inputs]
        for index, array in enumerate(arrays):
            request.set_input_tensor(index, self._tensor(array, shared_memory=True))
        # Never infer(): with one stream of one thread it drops errors of the graph (2026.4).
        request.start_async()
        request.wait()
        outputs = self.graphs[graph].outputs
        return {spec.name: copy_openvino(request.get_output_tensor(index)) for index, spec in enumerate(outputs)}


def _check(graph: str, model: Any, signature: Signature) -> None:
    for spec in signature.inputs:
        if spec.dtype == "string" or spec.shape is None:
            raise VerificationError(f"Graph {graph!r}: OpenVINO takes no {spec.dtype} input of shape {spec.shape}.")
    for node in model.get_ops():
        if any(port.get_element_type().get_type_name() == "f64" for port in node.outputs()):
            raise VerificationError(f"Graph {graph!r}: OpenVINO computes float64 in float32.")


def _spec(port: Any) -> TensorSpec:
    # Every tensor keeps all names that the file has for it; the node knows which one is the graph's own.
    name = port.get_node().get_friendly_name().removesuffix("/sink_port_0")
    if name not in port.get_names():
        raise VerificationError(f"OpenVINO gives {name!r} the names {sorted(port.get_names())}.")
    return openvino_spec(name, port)
