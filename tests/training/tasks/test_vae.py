"""``vae`` with more than two latent dimensions; with two it is in the test of the zoo."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from modelyard.training import Trainer, TrainerOptions
from modelyard.training.data import FashionMnist
from modelyard.training.tasks import VaeTask

SEED = 0


@pytest.mark.parametrize("latent", [5, 10, 20])
def test_it_learns_with_as_many_dimensions_as_are_asked_for(subset: FashionMnist, latent: int) -> None:
    task = VaeTask(data=subset, latent=latent)
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
