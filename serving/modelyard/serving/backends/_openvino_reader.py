"""From files to OpenVINO models whose inputs and outputs have the names that requests use."""

from __future__ import annotations

import logging
import re
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from modelyard.artifact import DEFAULT_SIGNATURE, Signature, TensorSpec
from modelyard.artifact.runtimes import OPENVINO_DTYPES, openvino_spec, prepare_openvino
from modelyard.errors import LoadError
from modelyard.serving.backends._openvino_conversions import BITS, add_conversions
from modelyard.serving.backends._saved_model import (
    INIT_SIGNATURE,
    SAVED_MODEL_NAME,
    callable_signatures,
    read_meta_graph,
)
from modelyard.serving.backends._saved_model_state import state_changes
from modelyard.wire import tensorflow_pb2

if TYPE_CHECKING:
    import openvino

_LOG = logging.getLogger("modelyard.serving")

_EXACT = frozenset(OPENVINO_DTYPES.values()) - {"float64"}
_VARIABLES = "variables"
#: The tag that OpenVINO looks for.
_TAG = "serve"


@dataclass(frozen=True, kw_only=True)
class OpenVinoGraph:
    """One graph, read but not compiled, and the positions of its inputs and outputs in the model."""

    model: openvino.Model
    signature: Signature
    inputs: Mapping[str, int]
    outputs: Mapping[str, int]


def read_onnx(graph: str, path: Path) -> OpenVinoGraph:
    try:
        model = _read("onnx", path)
        if not model.outputs:
            # An empty file, for one, is an empty graph to it.
            raise LoadError("it has no outputs")
        # Every tensor keeps all names that the file has for it; the node knows which one is the graph's own.
        inputs = [port.get_node().get_friendly_name() for port in model.inputs]
        outputs = [port.get_node().get_friendly_name().removesuffix("/sink_port_0") for port in model.outputs]
        for port, name in zip([*model.inputs, *model.outputs], [*inputs, *outputs], strict=True):
            if name not in port.get_names():
                raise LoadError(f"OpenVINO gives {name!r} the names {sorted(port.get_names())}")
        signature = Signature(
            inputs=tuple(_spec(name, port) for name, port in zip(inputs, model.inputs, strict=True)),
            outputs=tuple(_spec(name, port) for name, port in zip(outputs, model.outputs, strict=True)),
            compute=graph,
        )
        _check(model, signature)
    except LoadError as exc:
        raise LoadError(f"OpenVINO cannot serve {path}: {exc.message}.") from exc
    return OpenVinoGraph(
        model=model,
        signature=signature,
        inputs={name: index for index, name in enumerate(inputs)},
        outputs={name: index for index, name in enumerate(outputs)},
    )


def read_saved_model(path: Path, tags: Sequence[str]) -> dict[str, OpenVinoGraph]:
    """Reads the signatures of a SavedModel that OpenVINO can compute; the others are logged."""
    meta_graph = read_meta_graph(path, tags)
    signatures = callable_signatures(meta_graph)
    graphs: dict[str, OpenVinoGraph] = {}
    refused: dict[str, str] = {}
    for name in sorted(meta_graph.signature_def):
        if name == INIT_SIGNATURE:
            continue
        try:
            if name not in signatures:
                raise LoadError("it has a resource or a variant among its tensors")
            graphs[name] = _read_signature(path, meta_graph, signatures[name])
        except LoadError as exc:
            refused[name] = exc.message
    if not graphs:
        reasons = "; ".join(f"{name!r}: {reason}" for name, reason in refused.items())
        raise LoadError(
            f"OpenVINO can serve none of the signatures of {path} ({reasons or 'there are none'}). "
            "TensorFlow can (pip install 'modelyard[tensorflow]', and --runtime=tensorflow)."
        )
    for name, reason in refused.items():
        _LOG.warning("%s: signature %r is left out, OpenVINO cannot serve it: %s", path, name, reason)
    return graphs


def _read_signature(path: Path, meta_graph: tensorflow_pb2.MetaGraphDef, signature: Signature) -> OpenVinoGraph:
    """Reads one signature.

    OpenVINO's TensorFlow frontend reads one signature, ``serving_default``, and loses names where an input and an
    output share one. So it is shown a SavedModel that has the wanted signature under that name, with names of our own,
    and the same variables.
    """
    definition = meta_graph.signature_def[signature.compute]
    changes = state_changes(meta_graph, (info.name for info in definition.outputs.values()))
    if changes:
        # It would compute every call from the state that was saved, with no error.
        raise LoadError(f"it changes its state ({', '.join(changes)}), which OpenVINO does not keep between calls")
    _check_specs(signature)
    # Aliases may share a tensor; OpenVINO is asked for each tensor once.
    inputs = {info.name: f"modelyard_input_{index}" for index, info in enumerate(definition.inputs.values())}
    outputs = {info.name: f"modelyard_output_{index}" for index, info in enumerate(definition.outputs.values())}
    if len(inputs) != len(definition.inputs):
        raise LoadError("two of its inputs are the same tensor")
    with tempfile.TemporaryDirectory(prefix="modelyard-") as folder:
        view = Path(folder)
        _write_view(view, path, meta_graph, signature.compute, inputs, outputs)
        shapes = {inputs[definition.inputs[spec.name].name]: spec.shape for spec in signature.inputs}
        model = _read("tf", view, shapes)
    graph = OpenVinoGraph(
        model=model,
        signature=signature,
        outputs=_positions(signature.outputs, definition.outputs, outputs, model.outputs),
        inputs=_positions(signature.inputs, definition.inputs, inputs, model.inputs),
    )
    _check(model, signature)
    return graph


def _positions(
    specs: Iterable[TensorSpec],
    infos: Mapping[str, tensorflow_pb2.TensorInfo],
    names: Mapping[str, str],
    ports: Sequence[openvino.Output],
) -> dict[str, int]:
    """Positions of a signature's tensors among the model's; ``names`` are those that the model has for tensors."""
    known = {name: index for index, port in enumerate(ports) for name in port.get_names()}
    wanted = {spec.name: known.get(names[infos[spec.name].name]) for spec in specs}
    lost = [name for name, position in wanted.items() if position is None]
    if lost:
        raise LoadError(f"OpenVINO loses {', '.join(map(repr, lost))} on the way, as it does with constants")
    positions = {name: position for name, position in wanted.items() if position is not None}
    for spec in specs:
        dtype = _spec(spec.name, ports[positions[spec.name]]).dtype
        if dtype != spec.dtype:
            raise LoadError(f"OpenVINO reads {spec.name!r} as {dtype}; the signature says {spec.dtype}")
    return positions


def _write_view(
    view: Path,
    path: Path,
    meta_graph: tensorflow_pb2.MetaGraphDef,
    signature: str,
    inputs: Mapping[str, str],
    outputs: Mapping[str, str],
) -> None:
    shown = tensorflow_pb2.SavedModel(saved_model_schema_version=1, meta_graphs=[meta_graph])
    graph = shown.meta_graphs[0]
    graph.meta_info_def.ClearField("tags")
    graph.meta_info_def.tags.append(_TAG)
    for name in list(graph.signature_def):
        # Tables are filled by the first; OpenVINO reads their contents there.
        if name != INIT_SIGNATURE:
            del graph.signature_def[name]
    definition = meta_graph.signature_def[signature]
    wanted = graph.signature_def[DEFAULT_SIGNATURE]
    wanted.method_name = definition.method_name
    for infos, names, target in (
        (definition.inputs, inputs, wanted.inputs),
        (definition.outputs, outputs, wanted.outputs),
    ):
        for info in infos.values():
            target[names[info.name]].CopyFrom(info)
    try:
        (view / SAVED_MODEL_NAME).write_bytes(shown.SerializeToString())
        if (path / _VARIABLES).is_dir():
            (view / _VARIABLES).symlink_to((path / _VARIABLES).resolve(), target_is_directory=True)
    except OSError as exc:
        raise LoadError(f"a view of it cannot be written to {view}: {exc}") from exc


def _read(frontend: str, path: Path, shapes: Mapping[str, tuple[int, ...] | None] | None = None) -> openvino.Model:
    """Reads a model; ``shapes`` cuts it at these inputs, wherever they are in the graph."""
    import openvino
    from openvino.frontend import FrontEndManager

    try:
        # Named, for the one that fits is else guessed, and tried after the others have complained.
        reader = FrontEndManager().load_by_framework(frontend)
        if frontend == "tf":
            add_conversions(reader)
        # Not mapped: a file that is cut while it is served would end the process, and one that is changed be served.
        source = reader.load(str(path), enable_mmap=False)
        if shapes is not None:
            places = {name: source.get_place_by_tensor_name(name) for name in shapes}
            missing = [name for name, place in places.items() if place is None]
            if missing:
                raise LoadError(f"OpenVINO finds {len(missing)} of its inputs nowhere in the graph")
            source.override_all_inputs(list(places.values()))
            for name, place in places.items():
                source.set_partial_shape(place, openvino.PartialShape(list(shapes[name] or ())))
        model = reader.convert(source)
        prepare_openvino(model)
        return model
    except LoadError:
        raise
    # OpenVINO raises RuntimeError and classes of its frontends that share no name: this is the boundary that maps them.
    except Exception as exc:
        raise LoadError(short_reason(exc)) from exc


def short_reason(exc: Exception) -> str:
    """What an OpenVINO exception says, without the places in its own source that it says it from."""
    text = str(exc)
    found = re.search(r"(?:No conversion rule found for operations?|Conversion is failed for): *(.+)", text)
    if found:
        return f"there is no counterpart for {found[1].strip()}"
    noise = re.compile(r"^(Exception from |Check '|FrontEnd API failed|.*src/[\w/]+\.(cpp|hpp|h):\d+)")
    lines = [line.strip() for line in text.splitlines() if line.strip() and not noise.match(line)]
    return (" ".join(lines) or " ".join(text.split()) or type(exc).__name__)[:300].rstrip(".")


def _spec(name: str, port: openvino.Output) -> TensorSpec:
    kind = port.get_element_type().get_type_name()
    if OPENVINO_DTYPES.get(kind) not in _EXACT:
        raise LoadError(f"{name!r} has the dtype {kind}; OpenVINO computes {', '.join(sorted(_EXACT))} exactly")
    return openvino_spec(name, port)


def _check(model: openvino.Model, signature: Signature) -> None:
    _check_specs(signature)
    for node in model.get_ops():
        if any(port.get_element_type().get_type_name() == "f64" for port in node.outputs()):
            raise LoadError(f"{node.get_friendly_name()!r} is float64, which OpenVINO computes in float32")
        if BITS in node.rt_info:
            raise LoadError("there is no counterpart for Bitcast")
        if node.get_type_name() == "Interpolate" and node.get_attributes().get("antialias"):
            # Of ONNX: what its reader makes of TensorFlow's has none.
            raise LoadError(f"{node.get_friendly_name()!r} resizes with antialiasing, which OpenVINO leaves out")


def _check_specs(signature: Signature) -> None:
    for spec in signature.inputs:
        if spec.dtype == "string":
            raise LoadError(f"its input {spec.name!r} holds strings")
        if spec.shape is None:
            raise LoadError(f"its input {spec.name!r} has no fixed number of dimensions")
    for spec in (*signature.inputs, *signature.outputs):
        if spec.dtype not in _EXACT:
            raise LoadError(f"{spec.name!r} is {spec.dtype}, which OpenVINO does not compute exactly")
