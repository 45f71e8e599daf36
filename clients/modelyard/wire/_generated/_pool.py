"""The descriptor pool of modelyard's own copies of TensorFlow's messages.

A process may also import TensorFlow, which registers messages of the same
names in protobuf's default pool. A pool of our own keeps both apart, in either
import order.
"""

from __future__ import annotations

from google.protobuf import any_pb2, wrappers_pb2
from google.protobuf.descriptor_pool import DescriptorPool

_pool = DescriptorPool()
for _file in (any_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR):
    _pool.AddSerializedFile(_file.serialized_pb)


def Default() -> DescriptorPool:
    """The pool, under the name that protoc's code knows of ``google.protobuf.descriptor_pool``."""
    return _pool
