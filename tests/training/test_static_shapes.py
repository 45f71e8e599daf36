"""Steps of tasks have shapes that are known before they run: what XLA needs, and with it a TPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
import tensorflow as tf

from modelyard.training import InputRequest, Task
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import FashionTask, GanTask, MlpTask, SiameseTask, VaeTask
from modelyard.training.user import StepReport, make_replica_step
from tests.training.toy_task import ToyTask

TASKS: dict[str, Callable[[FashionMnist], Task]] = {
    "fashion": lambda data: FashionTask(data=data),
    "gan": lambda data: GanTask(data=data),
    "mlp": lambda data: MlpTask(data=data),
    "siamese": lambda data: SiameseTask(data=data),
    "vae": lambda data: VaeTask(data=data, samples=2),
}


def lowered(task: Task) -> list[str]:
    """What XLA makes of the steps of a task, before any optimization, for batches of 8."""
    # Another test may have left one that is spread over devices.
    tf.random.set_global_generator(tf.random.Generator.from_seed(0))
    task.build()
    kinds = [(task.train_step, task.train_dataset)]
    if type(task).eval_step is not Task.eval_step:
        kinds.append((task.eval_step, task.eval_dataset))
    texts = []
    for step, dataset in kinds:
        batch = next(iter(dataset(InputRequest(batch_size=8, drop_remainder=True))))
        compiled: Any = tf.function(make_replica_step(step, StepReport()), jit_compile=True)
        texts.append(compiled.experimental_get_compiler_ir(batch)(stage="hlo"))
    return texts


@pytest.mark.parametrize("name", TASKS)
def test_steps_of_tasks_have_static_shapes(name: str, subset: FashionMnist) -> None:
    for text in lowered(TASKS[name](subset)):
        assert "ENTRY" in text
        # A bound in place of a size, as in f32[<=8].
        assert "<=" not in text


def test_a_step_of_dynamic_shapes_is_seen() -> None:
    class Chooses(ToyTask):
        def train_step(self, batch: Any) -> Mapping[str, Any]:
            features, targets = batch
            above = targets > 0
            return super().train_step((tf.boolean_mask(features, above), tf.boolean_mask(targets, above)))

    assert "<=" in lowered(Chooses())[0]
