"""Batches: who may share one, what waits for one, and who is refused."""

from modelyard.serving.batching._admission import ModelThreads
from modelyard.serving.batching._batcher import Batcher
from modelyard.serving.batching._counts import BatchCounts
from modelyard.serving.batching._queue import Done, Task
from modelyard.serving.batching._sharing import probe, shared_graphs
from modelyard.serving.batching._sizes import in_few_sizes

__all__ = [
    "BatchCounts",
    "Batcher",
    "Done",
    "ModelThreads",
    "Task",
    "in_few_sizes",
    "probe",
    "shared_graphs",
]
