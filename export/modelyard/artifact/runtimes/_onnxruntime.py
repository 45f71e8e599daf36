"""What exporters and servers share about onnxruntime, and the operators that ONNX graphs need of it."""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import LoadError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, NodeArg, SessionOptions

#: Of what onnxruntime has beside ONNX's own: classic machine learning, and onnxruntime's additions.
_DOMAINS = ("ai.onnx.ml", "com.microsoft")
#: What onnxruntime exchanges with numpy: of bfloat16 it has the type, and neither takes nor gives it.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    **{name: name for name in ("float16", "bool", "string")},
    **{f"{kind}{bits}": f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)},
}


def operator_domains(file: Path) -> tuple[str, ...]:
    """The sorted operator domains beside ONNX's own that an ONNX file names, of those that onnxruntime has."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        # As the file has a text: its length before it.
        return tuple(each for each in _DOMAINS if content.find(bytes([len(each)]) + each.encode()) >= 0)


def disable_telemetry() -> None:
    """Has onnxruntime send nothing to Microsoft, which it does since 1.29, unless ``ORT_DISABLE_TELEMETRY`` says 0.

    To be called before each import: onnxruntime reads the variable once, writes an identifier of the machine below the
    home directory and starts a thread that uploads what models are loaded.
    """
    os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")


def onnx_options(threads: int) -> SessionOptions:
    """What sessions are made with: what an exporter verifies and measures is what a server runs."""
    disable_telemetry()
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Idle worker threads that spin would take the cores from the request path.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    # Its errors come as exceptions, too. Printed beside that they would look like ours, and most are none: loading
    # tries what a model takes, and clients send what it does not.
    options.log_severity_level = 4
    return options


def onnx_signature(graph: str, session: InferenceSession, file: Path) -> Signature:
    """What a graph says that it takes and gives; a dtype that no tensor here has is a LoadError."""
    inputs, outputs = session.get_inputs(), session.get_outputs()
    # onnxruntime says the same of a value of unknown rank as of a scalar; the file does not.
    unranked = () if all(node.shape for node in (*inputs, *outputs)) else frozenset(_unranked(file))
    return Signature(
        inputs=tuple(_spec(node, ranked=node.name not in unranked) for node in inputs),
        outputs=tuple(_spec(node, ranked=node.name not in unranked) for node in outputs),
        compute=graph,
    )


def _spec(node: NodeArg, *, ranked: bool) -> TensorSpec:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _DTYPES:
        hint = ' Convert scikit-learn models with options={id(model): {"zipmap": False}}.' if "map(" in kind else ""
        raise LoadError(
            f"ONNX value {node.name!r} has type {node.type}; expected a tensor of "
            f"{', '.join(sorted(_DTYPES.values()))}.{hint}"
        )
    # An axis without a size is a name or None. What the file says nothing of, onnxruntime may know all the same.
    sizes = tuple(size if isinstance(size, int) else -1 for size in node.shape or ())
    return TensorSpec(name=node.name, dtype=_DTYPES[kind], shape=sizes if sizes or ranked else None)


def _unranked(file: Path) -> Iterator[str]:
    """The inputs and outputs that an ONNX file gives no shape, not even that of a scalar; numbers as in onnx.proto."""
    with file.open("rb") as opened, mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for graph in _fields(content, slice(0, len(content)), 7):
            for value in _fields(content, graph, 11, 12):
                tensors = [each for kind in _fields(content, value, 2) for each in _fields(content, kind, 1)]
                if not any(True for tensor in tensors for _ in _fields(content, tensor, 2)):
                    yield from (content[name].decode() for name in _fields(content, value, 1))


def _fields(content: mmap.mmap, message: slice, *numbers: int) -> Iterator[slice]:
    """Where the texts and messages of these numbers lie in a message of protobuf."""
    at = message.start
    while at < message.stop:
        key, at = _varint(content, at)
        kind = key & 7
        size, at = _varint(content, at) if kind in (0, 2) else ({1: 8, 5: 4}[kind], at)
        if kind == 2 and key >> 3 in numbers:
            yield slice(at, at + size)
        at += 0 if kind == 0 else size


def _varint(content: mmap.mmap, at: int) -> tuple[int, int]:
    """A number of protobuf, and where what follows it begins."""
    value = shift = 0
    while True:
        byte = content[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80:
            return value, at
