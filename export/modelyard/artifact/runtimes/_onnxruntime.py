"""What exporters and servers share about onnxruntime, and the operators that ONNX graphs need of it."""

from __future__ import annotations

import mmap
import os
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


def onnx_signature(graph: str, session: InferenceSession) -> Signature:
    """What a graph says that it takes and gives; a dtype that no tensor here has is a LoadError."""
    return Signature(
        inputs=tuple(_spec(node) for node in session.get_inputs()),
        outputs=tuple(_spec(node) for node in session.get_outputs()),
        compute=graph,
    )


def _spec(node: NodeArg) -> TensorSpec:
    kind = node.type.removeprefix("tensor(").removesuffix(")")
    if kind not in _DTYPES:
        hint = ' Convert scikit-learn models with options={id(model): {"zipmap": False}}.' if "map(" in kind else ""
        raise LoadError(
            f"ONNX value {node.name!r} has type {node.type}; expected a tensor of "
            f"{', '.join(sorted(_DTYPES.values()))}.{hint}"
        )
    # An axis without a size is a name or None; an output of unknown rank has no shape at all.
    shape = None if node.shape is None else tuple(size if isinstance(size, int) else -1 for size in node.shape)
    return TensorSpec(name=node.name, dtype=_DTYPES[kind], shape=shape)
