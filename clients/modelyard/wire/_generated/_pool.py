"""The descriptor pool of modelyard's own copies of TensorFlow's messages.

A process may also import TensorFlow, which registers messages of the same
names in protobuf's default pool. A pool of our own keeps both apart, in either
import order.
"""

from __future__ import annotations

from google.protobuf import any_pb2, wrappers_pb2
from google.protobuf import descriptor_pool as _descriptor_pool

POOL = _descriptor_pool.DescriptorPool()
for _file in (any_pb2.DESCRIPTOR, wrappers_pb2.DESCRIPTOR):
    POOL.AddSerializedFile(_file.serialized_pb)


def descriptor_pool() -> _descriptor_pool.DescriptorPool:
    """The pool that holds our copies of TensorFlow's messages, for reflection."""
    return POOL
