"""TFLite files with other signatures than the converter gives them."""

from __future__ import annotations

from pathlib import Path

from modelyard.wire import tensorflow_pb2


def with_signatures(
    path: Path, definitions: dict[str, tensorflow_pb2.SignatureDef] | None, content: bytes | None = None
) -> Path:
    """The file without its own signatures, and with SignatureDefs as metadata for TensorFlow Serving."""
    import flatbuffers
    from ai_edge_litert import schema_py_generated as schema
    from flatbuffers import flexbuffers

    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    model.signatureDefs = []
    if definitions is not None:
        buffer, entry = schema.BufferT(), schema.MetadataT()
        values = {name: definition.SerializeToString().decode() for name, definition in definitions.items()}
        buffer.data = list(content if content is not None else flexbuffers.Dumps(values))
        model.buffers.append(buffer)
        entry.name, entry.buffer = "signature_defs_metadata", len(model.buffers) - 1
        model.metadata = [*(model.metadata or []), entry]
    builder = flatbuffers.Builder()
    builder.Finish(model.Pack(builder), file_identifier=b"TFL3")
    changed = path.with_name(f"changed-{len(definitions or ())}-{path.name}")
    changed.write_bytes(bytes(builder.Output()))
    return changed
