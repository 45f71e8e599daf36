"""The signatures of TFLite files that LiteRT's interpreter does not know, named as TensorFlow Serving names them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
import numpy.typing as npt
from google.protobuf.message import DecodeError

from modelyard.artifact import DEFAULT_SIGNATURE, PREDICT_METHOD, Signature, TensorSpec, known_method
from modelyard.artifact.runtimes._tflite_checks import operator_kinds
from modelyard.errors import LoadError
from modelyard.wire import dtype_by_numpy, tensorflow_pb2

if TYPE_CHECKING:
    from ai_edge_litert.interpreter import Interpreter, SignatureRunner

#: Where TensorFlow Serving looks for signatures. The file's own came later, and it does not know them.
_METADATA = b"signature_defs_metadata"


class _Detail(TypedDict):
    """What LiteRT says of a tensor."""

    name: str
    index: int
    dtype: type[np.generic]
    shape: npt.NDArray[np.int32]
    shape_signature: NotRequired[npt.NDArray[np.int32]]


class TfliteModel:
    """One interpreter of a file, and its signatures as TensorFlow Serving names them.

    Where the file has SignatureDefs for TensorFlow Serving (``tensorflow/lite/tools/signature``), these count, before
    any of its own. Where it has neither, one signature is made of the names of its tensors.

    Args:
        interpreter: LiteRT's, of the file.
        content: The file, which LiteRT has accepted.

    Attributes:
        signatures: By name.
        tensor_names: By signature, the file's own names of its inputs and of its outputs.

    Raises:
        LoadError: The SignatureDefs are damaged, or name tensors that there are not.
    """

    def __init__(self, interpreter: Interpreter, content: bytes) -> None:
        self._interpreter = interpreter
        self._shapes: dict[int, tuple[int, ...]] = {}
        inputs = {detail["name"]: detail for detail in interpreter.get_input_details()}
        outputs = {detail["name"]: detail for detail in interpreter.get_output_details()}
        keys = interpreter.get_signature_list()
        definitions = _definitions(content)
        named = {
            key: (_named(key, each.inputs, inputs), _named(key, each.outputs, outputs))
            for key, each in definitions.items()
        }
        if not named and not keys:
            named = {DEFAULT_SIGNATURE: (_aliases(inputs), _aliases(outputs))}
        self._runners = {} if named else {key: interpreter.get_signature_runner(key) for key in keys}
        self._details: dict[str, tuple[dict[str, _Detail], dict[str, _Detail]]] = {}
        for key, runner in self._runners.items():
            found = runner.get_input_details(), runner.get_output_details()
            self._details[key] = dict(sorted(found[0].items())), dict(sorted(found[1].items()))
        for key, (first, second) in named.items():
            self._details[key] = (
                {alias: inputs[name] for alias, name in first.items()},
                {alias: outputs[name] for alias, name in second.items()},
            )
        self.tensor_names: Mapping[str, tuple[Mapping[str, str], Mapping[str, str]]] = {
            key: (
                {name: detail["name"] for name, detail in ins.items()},
                {name: detail["name"] for name, detail in outs.items()},
            )
            for key, (ins, outs) in self._details.items()
        }
        self.signatures: Mapping[str, Signature] = {
            key: Signature(
                inputs=tuple(_spec(name, detail) for name, detail in ins.items()),
                outputs=tuple(_spec(name, detail) for name, detail in outs.items()),
                compute=key,
                method=known_method(definitions[key].method_name) if key in definitions else PREDICT_METHOD,
            )
            for key, (ins, outs) in self._details.items()
        }

    def run(self, graph: str, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        """Computes a signature; its answers are copies. Raises ValueError and RuntimeError as LiteRT does."""
        for spec in self.signatures[graph].inputs:
            _check_shape(spec, inputs[spec.name].shape)
        if graph in self._runners:
            return self._call(self._runners[graph], inputs)
        feeds, fetches = self._details[graph]
        for name, detail in feeds.items():
            index, shape = detail["index"], inputs[name].shape
            if self._shapes.get(index) != shape:
                self._interpreter.resize_tensor_input(index, shape)
                self._shapes[index] = shape
        self._interpreter.allocate_tensors()
        for name, detail in feeds.items():
            self._interpreter.set_tensor(detail["index"], inputs[name])
        self._interpreter.invoke()
        details = {detail["index"]: detail for detail in self._interpreter.get_output_details()}
        return {name: self._read(details[detail["index"]]) for name, detail in fetches.items()}

    def _call(self, runner: SignatureRunner, inputs: Mapping[str, npt.NDArray[Any]]) -> dict[str, npt.NDArray[Any]]:
        try:
            # The next call writes into the memory that LiteRT's own answers view.
            return {name: np.array(value) for name, value in runner(**inputs).items()}
        except ValueError as exc:
            # So says LiteRT 2.3 of an output without an element, which it has computed like any other.
            if str(exc) != "Invalid tensor size.":
                raise
        details = runner.get_output_details()
        return {name: self._read(each, runner._subgraph_index) for name, each in details.items()}

    def _read(self, detail: _Detail, graph: int = 0) -> npt.NDArray[Any]:
        """An output of the last call, by what LiteRT says of it since."""
        if 0 in detail["shape"]:
            return np.zeros(detail["shape"], object if detail["dtype"] in (np.bytes_, np.str_) else detail["dtype"])
        return np.array(self._interpreter.get_tensor(detail["index"], graph))


def _check_shape(spec: TensorSpec, given: tuple[int, ...]) -> None:
    """Only the number of rows may be another than the file says.

    Operators take the rest for granted: other sizes made LiteRT (2.3) answer with what is in memory, also the next
    call, and end the process. No axes may be an unknown number of them.
    """
    _, *rest = spec.shape or (0,)
    fits = len(given) == 1 + len(rest) and all(want in (-1, have) for have, want in zip(given[1:], rest, strict=True))
    if spec.shape and not fits:
        raise ValueError(f"input {spec.name!r} has the shape {list(given)}; expected {[-1, *rest]}")


def tflite_has_state(content: bytes) -> bool:
    """Whether a call of a file changes what later calls answer."""
    from ai_edge_litert import schema_py_generated as schema

    return schema.BuiltinOperator.ASSIGN_VARIABLE in operator_kinds(content)


def _definitions(content: bytes) -> dict[str, tensorflow_pb2.SignatureDef]:
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import flexbuffers

    model = schema.Model.GetRootAs(content)
    entries = (model.Metadata(index) for index in range(model.MetadataLength()))
    buffers = [model.Buffers(entry.Buffer()) for entry in entries if entry.Name() == _METADATA]
    if not buffers:
        return {}
    try:
        found = flexbuffers.GetRoot(buffers[0].DataAsNumpy().tobytes()).AsMap
        return {
            key.AsKey: tensorflow_pb2.SignatureDef.FromString(bytes(value.AsStringBytes))
            for key, value in zip(found.Keys, found.Values, strict=True)
        }
    # The reader of flexbuffers raises whatever it stumbles over.
    except (DecodeError, AttributeError, ValueError, TypeError, IndexError, OverflowError) as exc:
        raise LoadError(f"The file's SignatureDefs cannot be read: {exc}.") from exc


def _named(name: str, infos: Mapping[str, tensorflow_pb2.TensorInfo], tensors: Iterable[str]) -> dict[str, str]:
    named = {}
    for alias, info in sorted(infos.items()):
        # Converters used to drop the :0 that SignatureDefs have.
        found = next((each for each in (info.name, info.name.partition(":")[0]) if each in tensors), None)
        if found is None:
            raise LoadError(
                f"Signature {name!r} says that {alias!r} is the tensor {info.name!r}; the file has {sorted(tensors)}."
            )
        named[alias] = found
    return named


def _spec(name: str, detail: _Detail) -> TensorSpec:
    kind = detail["dtype"]
    dtype = "string" if kind in (np.bytes_, np.str_, np.object_) else dtype_by_numpy(np.dtype(kind)).name
    # shape_signature is empty where the shape is fixed (and for scalars, whose shape is empty too).
    shape = detail.get("shape_signature")
    shape = detail["shape"] if shape is None or len(shape) == 0 else shape
    return TensorSpec(name=name, dtype=dtype, shape=tuple(int(size) for size in shape))


def _aliases(names: Iterable[str]) -> dict[str, str]:
    """The names without what follows the colon, as upstream has them; two that would be one keep a ``:1`` and on."""
    short = Counter(name.partition(":")[0] for name in names)
    return {
        name.partition(":")[0] if short[name.partition(":")[0]] == 1 else name.removesuffix(":0"): name
        for name in names
    }
