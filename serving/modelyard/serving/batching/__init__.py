"""Batches: who may share one, what waits for one, and who is refused."""

from modelyard.serving.batching._admission import ModelThreads
from modelyard.serving.batching._batcher import Batcher
from modelyard.serving.batching._parameters import PER_MODEL_FILE, BatchParameters, read_batch_parameters
from modelyard.serving.batching._queue import Done, Task
from modelyard.serving.batching._sharing import probe, shared_graphs

__all__ = [
    "PER_MODEL_FILE",
    "BatchParameters",
    "Batcher",
    "Done",
    "ModelThreads",
    "Task",
    "probe",
    "read_batch_parameters",
    "shared_graphs",
]
