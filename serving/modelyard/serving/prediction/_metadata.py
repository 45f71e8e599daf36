"""What a metadata request is answered with, in no protocol's words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from modelyard.serving.requests import ModelSpec
from modelyard.wire import tensorflow_pb2


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What a metadata request is answered with.

    Attributes:
        spec: The request's spec with the version filled in.
        definitions: SignatureDefs by signature name.
    """

    spec: ModelSpec
    definitions: Mapping[str, tensorflow_pb2.SignatureDef]
