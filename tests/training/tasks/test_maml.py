"""What ``maml`` computes, exactly, and from what; what it learns is in the test of the zoo."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

from modelyard.training import InputRequest
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import MamlTask

#: Half of the step of a difference quotient.
SMALL = 3e-3


def slopes(net: str, loss: str) -> tuple[float, float]:
    """The length of a net's outer gradient, and the slope of its loss in that direction by difference quotients."""
    tf.random.set_global_generator(tf.random.Generator.from_seed(0))
    task = MamlTask(inner_rate=0.2)
    task.build()
    for name in task.optimizers:
        # A step of 1 is the gradient.
        task.optimizers[name] = keras.optimizers.SGD(1.0)
    batch = next(iter(task.train_dataset(InputRequest(batch_size=8))))
    weights = task.nets[net].weights
    before = [weight.numpy() for weight in weights]
    task.train_step(batch)
    gradient = [old - new.numpy() for old, new in zip(before, weights, strict=True)]
    length = float(tf.linalg.global_norm(gradient))

    def loss_at(distance: float) -> float:
        for weight, old, part in zip(weights, before, gradient, strict=True):
            weight.assign(old + distance * part / length)
        return float(np.mean(task.eval_step(batch)[loss]))

    return length, (loss_at(SMALL) - loss_at(-SMALL)) / (2 * SMALL)


def test_the_outer_gradient_is_that_of_the_loss_after_the_inner_step() -> None:
    # With tf.stop_gradient on the inner gradients the two differ, as those of first-order MAML do below.
    length, slope = slopes("meta", "loss")
    assert length == pytest.approx(slope, rel=0.01)


def test_first_order_maml_leaves_the_second_derivatives_out() -> None:
    length, slope = slopes("first_order", "first_order_loss")
    assert length != pytest.approx(slope, rel=0.05)


def test_new_classes_come_from_other_garments_than_those_of_training(subset: FashionMnist) -> None:
    task = MamlTask(data=subset, problem="fashion")
    x, y, judged_x, judged_y = next(iter(task.train_dataset(InputRequest(batch_size=3))))
    assert (x.shape, judged_x.shape) == ((3, 5, 14, 14, 1), (3, 25, 14, 14, 1))
    assert y.numpy().tolist() == [[0, 1, 2, 3, 4]] * 3
    assert judged_y.numpy().tolist() == [[index for index in range(5) for _ in range(5)]] * 3
    half = subset.train_images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255
    garments = half[subset.train_labels < 5]
    turned = np.concatenate([np.rot90(garments, turns, axes=(1, 2)) for turns in range(4)])
    for image in x.numpy()[0, :, :, :, 0]:
        assert np.abs(turned - image).max(axis=(1, 2)).min() < 1e-6
    new, _, new_judged, _ = next(iter(task.eval_dataset(InputRequest(batch_size=1))))
    others = (subset.test_images.reshape(-1, 14, 2, 14, 2).mean(axis=(2, 4)) / 255)[subset.test_labels >= 5]
    for image in np.concatenate([new[0], new_judged[0]])[..., 0]:
        assert np.abs(others - image).max(axis=(1, 2)).min() < 1e-6
