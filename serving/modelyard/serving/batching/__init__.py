"""Batches: who may share one, what waits for one, and who is refused."""

from modelyard.serving.batching._admission import ModelThreads
from modelyard.serving.batching._parameters import PER_MODEL_FILE, BatchParameters, read_batch_parameters
from modelyard.serving.batching._queue import BatchQueue, Done, Task, rows_of
from modelyard.serving.batching._sharing import probe, shared_graphs

__all__ = [
    "PER_MODEL_FILE",
    "BatchParameters",
    "BatchQueue",
    "Done",
    "ModelThreads",
    "Task",
    "probe",
    "read_batch_parameters",
    "rows_of",
    "shared_graphs",
]
