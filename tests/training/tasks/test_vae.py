"""``vae``: its bounds against an integral, and more than two latent dimensions; the rest is in the test of the zoo."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import tensorflow as tf

from modelyard.training import Trainer, TrainerOptions
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import VaeTask

SEED = 0


def log_likelihood(task: VaeTask, images: npt.NDArray[np.float32], step: float = 0.12) -> npt.NDArray[np.float64]:
    """``log p(x)``, the integral of ``p(x | z) p(z)`` over two latent dimensions, as a sum over a grid.

    With half the step it differs by 4e-7.
    """
    decoder: Any = task.decoder
    axis = np.arange(-6, 6, step, dtype=np.float32)
    pixels = images.reshape(len(images), -1).astype(np.float64)
    total = np.full(len(images), -np.inf)
    for first in axis:
        z = np.stack([np.full_like(axis, first), axis], axis=1)
        logits = np.asarray(decoder(z, training=False), np.float64).reshape(len(axis), -1)
        normal = -np.square(z).sum(axis=1) / 2 - np.log(2 * np.pi)
        joint = pixels @ logits.T - np.logaddexp(0, logits).sum(axis=1) + normal
        total = np.logaddexp(total, np.logaddexp.reduce(joint, axis=1))
    likelihood: npt.NDArray[np.float64] = total + 2 * np.log(step)
    return likelihood


def bounds(task: VaeTask, images: npt.NDArray[np.float32], samples: int) -> tuple[npt.NDArray[np.float64], ...]:
    """ELBO and importance-weighted bound of each image, as evaluation with so many samples reports them."""
    again = VaeTask(data=task.data, samples=samples)
    again.encoder, again.decoder = task.encoder, task.decoder
    evaluate: Any = tf.function(again.eval_step)
    values = evaluate((tf.constant(images), tf.zeros([len(images)], tf.int64)))
    elbo, weighted = (-np.asarray(values[name], np.float64) for name in ("loss", "importance_weighted_loss"))
    return elbo, weighted


def test_its_bounds_are_below_the_likelihood_and_more_samples_come_closer(subset: FashionMnist) -> None:
    """Fails where z is the mean of q, which is no bound, and where a weight lacks p(z) or q(z | x)."""
    task = VaeTask(data=subset, samples=1)
    Trainer(task, TrainerOptions(batch_size=100, epochs=8, seed=SEED)).run()
    images = task.test_images(20)
    exact = log_likelihood(task, images)
    elbo, many = bounds(task, images, 2000)
    _, few = bounds(task, images, 5)
    assert (exact - elbo).mean() > 0.3
    assert (exact - many).mean() == pytest.approx(0, abs=0.1)
    assert (exact - elbo).mean() > (exact - few).mean() + 0.1 > (exact - many).mean() + 0.2


@pytest.mark.parametrize("latent", [5, 20])
def test_it_learns_with_as_many_dimensions_as_are_asked_for(subset: FashionMnist, latent: int) -> None:
    task = VaeTask(data=subset, latent=latent, samples=2)
    options = TrainerOptions(**{**task.recipe, "epochs": 6, "seed": SEED})
    losses = [epoch.evaluation["loss"] for epoch in Trainer(task, options).run().history]
    # As after as many steps with two dimensions, in the test of the zoo.
    assert losses[-1] < 0.9 * losses[0]
    signatures: Any = task.signatures()
    images = task.test_images(200)
    z = signatures["encode"].function(images)["mean"]
    assert z.shape == (200, latent)
    decoded = signatures["decode"].function(z)["image"].numpy()
    np.testing.assert_allclose(decoded, signatures["reconstruct"].function(images)["reconstruction"], atol=1e-6)
    # Better than the mean image, which knows nothing of what it is to be like.
    assert np.square(decoded - images).mean() < 0.7 * images.var(axis=0).mean()
    assert task.pictures()["latent_grid"].shape == (20 * 28, 20 * 28)
