from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.loop import DeviceLoop, Totals


def numbers(*values: float, batch_size: int = 2) -> tf.data.Dataset:
    return tf.data.Dataset.from_tensor_slices(np.array(values, np.float32)).batch(batch_size)


def per_example(batch: Any) -> dict[str, Any]:
    return {"loss": batch, "twice": 2 * batch}


def test_a_value_for_each_example_is_averaged_over_examples() -> None:
    dataset = numbers(1, 2, 6)
    loop = DeviceLoop(per_example, dataset.element_spec, label="step")
    outcome = loop.run(iter(dataset), 2, loop.empty())
    assert outcome.totals.means() == {"loss": 3.0, "twice": 6.0}
    assert outcome.totals.examples == 3
    assert outcome.non_finite_at is None


def test_a_scalar_is_averaged_over_batches() -> None:
    dataset = numbers(1, 2, 6)
    loop = DeviceLoop(lambda batch: {"loss": tf.reduce_mean(batch)}, dataset.element_spec, label="step")
    assert loop.run(iter(dataset), 2, loop.empty()).totals.means() == {"loss": 3.75}


def test_totals_go_on_where_they_were() -> None:
    dataset = numbers(1, 2, 6)
    loop = DeviceLoop(per_example, dataset.element_spec, label="step")
    iterator = iter(dataset)
    first = loop.run(iterator, 1, loop.empty()).totals
    assert first == Totals(sums={"loss": (3.0, 2.0), "twice": (6.0, 2.0)}, examples=2)
    assert loop.run(iterator, 1, first).totals.means() == {"loss": 3.0, "twice": 6.0}


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_it_stops_at_the_first_loss_that_is_not_finite(bad: float) -> None:
    dataset = numbers(1, 2, bad, 4, batch_size=1)
    loop = DeviceLoop(per_example, dataset.element_spec, label="step")
    iterator = iter(dataset)
    outcome = loop.run(iterator, 4, loop.empty())
    assert outcome.non_finite_at == 2
    assert not np.isfinite(outcome.bad_loss)
    assert next(iterator).numpy() == [4.0]


@pytest.mark.parametrize("returned", [{"error": 1.0}, 1.0], ids=["no loss", "no mapping"])
def test_a_step_without_a_loss_is_an_error(returned: Any) -> None:
    with pytest.raises(ConfigurationError, match="my step returned .*; expected a mapping .* 'loss' among them"):
        DeviceLoop(lambda batch: tf.nest.map_structure(tf.constant, returned), numbers(1).element_spec, label="my step")


def test_an_input_that_ends_early_is_an_error() -> None:
    dataset = numbers(1, 2)
    loop = DeviceLoop(per_example, dataset.element_spec, label="my step")
    with pytest.raises(TrainingError, match="input of my step ended early"):
        loop.run(iter(dataset), 3, loop.empty())


def test_an_op_that_fails_is_an_error_that_names_the_step() -> None:
    dataset = numbers(1, 2)
    loop = DeviceLoop(
        lambda batch: {"loss": tf.debugging.check_numerics(batch / 0.0, "divided")},
        dataset.element_spec,
        label="my step",
    )
    with pytest.raises(TrainingError, match="my step failed while it ran: .*divided"):
        loop.run(iter(dataset), 1, loop.empty())
