"""What ``cyclegan`` trains on, and its histories; what it learns is in the test of the zoo."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from modelyard.errors import ConfigurationError
from modelyard.training import InputRequest, Trainer, TrainerOptions, restore
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import CycleganTask
from modelyard.training.tasks._adversarial import ImageHistory
from tests.support.devices import LOGICAL_CPUS, separate_replicas
from tests.support.garments import write_garments

SEED = 0


def drawings_of(images: npt.NDArray[np.uint8], data: FashionMnist) -> npt.NDArray[np.uint8]:
    task = CycleganTask(data=replace(data, test_images=images))
    drawings = task.verification_data(len(images)).inputs["to_garment"]["drawing"]
    return np.rint(np.asarray(drawings)[..., 0] * 255).astype(np.uint8)


def test_edge_maps_are_white_but_where_brightness_changes(subset: FashionMnist) -> None:
    image = np.zeros((1, 5, 6), np.uint8)
    image[:, :, 3:] = 100
    row = 255 - drawings_of(image, subset)[0, 2].astype(int)
    # Sobel's gradient is 4 * 100 beside the edge, and a quarter of it is drawn; the last column has black beside it.
    assert row.tolist() == [0, 0, 100, 100, 0, 100]


def test_cyclegan_s_domains_share_no_garment(subset: FashionMnist) -> None:
    task = CycleganTask(data=subset)
    garments, drawings = next(iter(task.train_dataset(InputRequest(batch_size=1000))))
    drawn = {image.tobytes() for image in (drawings.numpy()[..., 0] * 255).round().astype(np.uint8)}
    seen = drawings_of((garments.numpy()[..., 0] * 255).round().astype(np.uint8), subset)
    assert len(drawn) > 900
    assert not drawn & {image.tobytes() for image in seen}


def small(data: FashionMnist, **arguments: Any) -> CycleganTask:
    """A quick one, whose weights all but stay: what differs, differs by what the discriminators were shown."""
    few = replace(
        data,
        train_images=data.train_images[:128],
        train_labels=data.train_labels[:128],
        test_images=data.test_images[:32],
        test_labels=data.test_labels[:32],
    )
    return CycleganTask(data=few, width=4, blocks=1, learning_rate=1e-9, **arguments)


def test_a_history_gives_back_what_it_was_given() -> None:
    """Fails where it gives images without keeping the new ones, or gives none."""
    history = ImageHistory((1, 1, 1), 10, tf.random.Generator.from_seed(SEED))
    shown, earlier = [], 0
    for first in range(1, 401, 4):
        made = tf.reshape(tf.range(first, first + 4, dtype=tf.float32), [4, 1, 1, 1])
        numbers = [int(value) for value in tf.reshape(history.exchange(made), [-1])]
        earlier += sum(number < first for number in numbers)
        shown += numbers
    kept = [int(value) for value in tf.reshape(history.images, [-1])]
    # Each is shown, or kept still; twice are shown those alone that a place was empty for.
    assert {*shown, *kept} == set(range(1, 401))
    assert len(shown) - len(set(shown)) <= 10
    assert 0.35 < earlier / len(shown) < 0.65


@pytest.mark.parametrize("history", [0, 50])
def test_discriminators_see_earlier_images(subset: FashionMnist, history: int) -> None:
    """Fails where they are given what was made in this step alone."""
    task = small(subset, history=history)
    task.build()
    batch = next(iter(task.train_dataset(InputRequest(batch_size=32))))
    for each in task.histories:
        # As full as after many steps, of images unlike any that is made.
        each.images.assign(tf.ones_like(each.images))
        each.filled.assign(tf.ones_like(each.filled))
    before = task.eval_step(batch)["discriminator_loss"].numpy()
    seen = task.train_step(batch)["discriminator_loss"].numpy()
    other = np.abs(seen - before) > 1e-4
    # Of two translations, each with a chance of a half: about three quarters.
    assert other.sum() >= 8 if history else not other.any()
    for each in task.histories:
        kept = np.asarray(each.images).min(axis=(1, 2, 3), initial=1) < 1
        assert 4 <= kept.sum() <= 28 if history else not kept.any()


def test_histories_are_in_a_checkpoint_and_not_in_an_export(subset: FashionMnist, tmp_path: Path) -> None:
    task = small(subset)
    Trainer(task, TrainerOptions(batch_size=16, epochs=1, model_dir=tmp_path)).run()
    again = small(subset)
    restore(tmp_path, again)
    for mine, restored in zip(task.histories, again.histories, strict=True):
        assert np.asarray(mine.filled).sum() > 25
        np.testing.assert_array_equal(restored.filled, mine.filled)
        np.testing.assert_array_equal(restored.images, mine.images)
    assert set(again.exported) == {"to_a", "to_b", "judges_a", "judges_b"}


def test_every_replica_has_histories_of_its_own(subset: FashionMnist) -> None:
    separate_replicas()
    strategy = tf.distribute.MirroredStrategy(LOGICAL_CPUS[:2])
    task = small(subset)
    with strategy.scope():
        # The one that is there may be another strategy's, of a run before.
        tf.random.set_global_generator(tf.random.Generator.from_seed(0))
        task.build()
    # Without a trainer, which traces steps of training and of evaluation, each twice: most of the time of this test.
    step: Any = tf.function(lambda batch: strategy.run(task.train_step, args=(batch,)))
    for batch in strategy.experimental_distribute_dataset(task.train_dataset(InputRequest(batch_size=16))):
        step(batch)
    (first, second), _ = (strategy.experimental_local_results(each.images) for each in task.histories)
    assert np.asarray(first).any()
    assert np.abs(np.asarray(first) - np.asarray(second)).max() > 0.01


@pytest.fixture(scope="module")
def boots_and_trousers(session_dir: Path, subset: FashionMnist) -> Path:
    folder = session_dir / "boots-and-trousers"
    write_garments(folder, subset, labels=(1, 9), count=12, side=lambda number: 30 + number % 5, coloured=True)
    for number in range(7, 12):
        (folder / "train" / "trouser" / f"{number:03d}.jpeg").unlink()
    return folder


def test_folders_are_not_paired_and_may_be_of_different_sizes(boots_and_trousers: Path) -> None:
    task = CycleganTask(folder=str(boots_and_trousers), side=32)
    epochs = [list(task.train_dataset(InputRequest(batch_size=4, seed=seed))) for seed in range(2)]
    assert [[tuple(part.shape) for part in batch] for batch in epochs[0]] == [
        [(4, 32, 32, 3)] * 2,
        [(3, 32, 32, 3)] * 2,
    ]
    assert [len(batch[0]) for batch in task.eval_dataset(InputRequest(batch_size=5))] == [5, 5, 2]
    boots, trousers = (np.concatenate([batch[part] for batch in epochs[0]]).mean(axis=(1, 2)) for part in range(2))
    # Shares of light by colour, as they were written: nothing of the one kind is among the other.
    assert (boots[:, 1] / boots[:, 0]).mean() == pytest.approx(0.4, abs=0.04)
    assert (trousers[:, 1] / trousers[:, 0]).mean() == pytest.approx(0.3, abs=0.04)
    skipped = list(task.train_dataset(InputRequest(batch_size=4, skip_batches=1)))
    np.testing.assert_array_equal(skipped[0][0], epochs[0][1][0])


def test_a_folder_of_other_than_two_kinds_is_an_error(subset: FashionMnist, tmp_path: Path) -> None:
    write_garments(tmp_path / "three", subset, labels=(1, 8, 9), count=2, side=lambda number: 28)
    task = CycleganTask(folder=str(tmp_path / "three"))
    with pytest.raises(ConfigurationError, match="has the folders ankle-boot, bag, trouser; expected two"):
        task.train_dataset(InputRequest(batch_size=2))


def test_the_full_networks_are_the_paper_s() -> None:
    """Of 256 x 256: 11.4 million weights with nine blocks, and outputs of the discriminators that see 70 pixels."""
    task = CycleganTask(folder="photos", history=0)
    task.build()
    to_b, judge = task.to_b, task.judges_b
    assert sum("add" in layer.name for layer in to_b.layers) == 9
    assert to_b.count_params() == pytest.approx(11.4e6, rel=0.01)
    assert judge.output_shape == (None, 32, 32, 1)
    sees = 1
    for layer in reversed([layer for layer in judge.layers if hasattr(layer, "kernel_size")]):
        sees = (sees - 1) * layer.strides[0] + layer.kernel_size[0]
    assert sees == 70
