from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training import InputRequest
from modelyard.training.data import FashionMnist, memory_images, worker_share
from modelyard.training.data._plan import BatchPlan


@pytest.mark.parametrize("count", [24, 29, 31])
@pytest.mark.parametrize("workers", [1, 2, 3])
@pytest.mark.parametrize("skip", [0, 1, 2, 9])
def test_workers_together_see_what_one_worker_sees(count: int, workers: int, skip: int) -> None:
    whole = BatchPlan(count=count, batch_size=12, seed=3, epoch=1, skip_batches=skip)
    parts = [
        BatchPlan(
            count=count,
            batch_size=12 // workers,
            seed=3,
            epoch=1,
            skip_batches=skip,
            num_shards=workers,
            shard_index=index,
        )
        for index in range(workers)
    ]
    order = whole.order()
    assert {part.steps for part in parts} == {whole.steps}
    expected = order[12 * whole.start :]
    np.testing.assert_array_equal(whole.local(order), expected)
    for step in range(whole.steps - whole.start):
        size = 12 // workers
        batch = np.concatenate([part.local(order)[step * size : (step + 1) * size] for part in parts])
        np.testing.assert_array_equal(batch, expected[12 * step : 12 * (step + 1)])


def test_shares_are_even_and_work_on_tensors() -> None:
    plans = [BatchPlan(count=100, batch_size=4, num_shards=3, shard_index=index) for index in range(3)]
    assert [plan.share(12) for plan in plans] == [(0, 4), (4, 8), (8, 12)]
    assert [plan.share(5) for plan in plans] == [(0, 2), (2, 4), (4, 5)]
    assert [tuple(int(end) for end in plan.share(tf.constant(5))) for plan in plans] == [(0, 2), (2, 4), (4, 5)]


def test_a_remainder_can_be_left_out() -> None:
    plan = BatchPlan(count=29, batch_size=12, drop_remainder=True)
    assert plan.steps == 2
    assert len(plan.local(plan.order())) == 24


def test_seeds_differ_by_epoch_and_purpose() -> None:
    plans = [BatchPlan(count=9, batch_size=3, seed=seed, epoch=epoch) for seed, epoch in ((0, 0), (0, 1), (1, 0))]
    seeds = {plan.seeds(purpose) for plan in plans for purpose in (1, 2)}
    assert len(seeds) == 6
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size 0"),
        ({"skip_batches": -1}, "skip_batches -1"),
        ({"epoch": -1}, "epoch -1"),
        ({"seed": -2}, "seed -2"),
        ({"num_shards": 0}, "num_shards 0"),
        ({"num_shards": 2, "shard_index": 2}, "shard_index 2 of num_shards 2"),
        ({"num_shards": 3, "batch_size": 33}, "1 examples for 3 workers"),
    ],
)
def test_numbers_out_of_range_are_an_error(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        BatchPlan(**{"count": 100, "batch_size": 10, **options})


def test_a_strategy_gives_each_worker_its_share(subset: FashionMnist) -> None:
    context = tf.distribute.InputContext(num_input_pipelines=2, input_pipeline_id=1, num_replicas_in_sync=2)
    assert worker_share(context) == {"num_shards": 2, "shard_index": 1}
    strategy = tf.distribute.OneDeviceStrategy("/cpu:0")
    dataset = strategy.distribute_datasets_from_function(
        lambda each: memory_images(subset, "test").batches(
            InputRequest(batch_size=100, **worker_share(each)), training=False
        )
    )
    labels = np.concatenate([batch[1].numpy() for batch in dataset])
    np.testing.assert_array_equal(labels, subset.test_labels)


def test_static_shapes_and_shares_of_fashion(subset: FashionMnist) -> None:
    source = memory_images(subset, "train")
    dataset = source.batches(InputRequest(batch_size=300, drop_remainder=True, seed=1))
    assert dataset.element_spec[0].shape == [300, 28, 28, 1]
    assert int(dataset.cardinality()) == 6
    shares = [
        list(source.batches(InputRequest(batch_size=150, num_shards=2, shard_index=index, seed=1)))
        for index in range(2)
    ]
    whole = list(source.batches(InputRequest(batch_size=300, seed=1)))
    for expected, *parts in zip(whole, *shares, strict=True):
        np.testing.assert_array_equal(np.concatenate([part[1] for part in parts]), expected[1])
