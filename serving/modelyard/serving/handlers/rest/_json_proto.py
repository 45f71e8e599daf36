"""Status and metadata answers: protobuf JSON as TensorFlow Serving prints it."""

from __future__ import annotations

from google.protobuf import json_format
from google.protobuf.message import Message

from modelyard.serving.prediction import SIGNATURE_DEF_FIELD, ModelMetadata
from modelyard.wire import serving_pb2


def message_json(message: Message) -> str:
    """Prints a message with every field, defaults included, under its proto name.

    Args:
        message: The message.
    """
    return json_format.MessageToJson(
        message, indent=1, always_print_fields_with_no_presence=True, preserving_proto_field_name=True
    )


def metadata_json(metadata: ModelMetadata) -> str:
    """Prints the answer of a metadata request; the doubled ``signature_def`` key is upstream's.

    Args:
        metadata: The answer.
    """
    spec = serving_pb2.ModelSpec(name=metadata.spec.name)
    if metadata.spec.version is not None:
        spec.version.value = metadata.spec.version
    definitions = serving_pb2.SignatureDefMap()
    for name, definition in metadata.definitions.items():
        definitions.signature_def[name].CopyFrom(definition)
    parts = (message_json(spec), SIGNATURE_DEF_FIELD, message_json(definitions))
    return '{{\n"model_spec":{},\n"metadata": {{"{}": {}}}\n}}\n'.format(*parts)
