"""The task ``gan``: a generative adversarial network of fully connected layers.

Source: Goodfellow et al., "Generative Adversarial Networks", 2014. Generator 100-128-784 (ReLU, sigmoid), discriminator
784-128-1 (ReLU, logit), Xavier initial weights, Adam, one step of each network in turn. Images ``[B, 28, 28, 1]`` from
0 to 1, latent vectors ``[B, 100]`` from N(0, I).

Losses: the discriminator's is the mean of the cross-entropies of its logits ``[B]`` for real images and for made ones;
the generator's is the cross-entropy of "real" for what it made, the form that does not saturate.

Measured: both losses, the share of made images that pass for real, and the Fréchet distance to test images. Images:
64 samples, every 500 steps; at the end ways between latent vectors, and sums of those of classes.
"""

from __future__ import annotations

import keras

from modelyard.training.data import Mnist
from modelyard.training.tasks._adversarial import AdversarialTask
from modelyard.training.tasks.inputs import PIXELS, SIDE

_HIDDEN = 128


class GanTask(AdversarialTask):
    """Fully connected generator and discriminator of Fashion-MNIST.

    Args:
        data: Images, or a folder of them in MNIST's idx format; None loads Fashion-MNIST when it is first needed.
        latent: Numbers in the vector that the generator starts from.
        learning_rate: Step size of the discriminator's Adam.
        generator_rate: Step size of the generator's; larger, or the discriminator wins early.
        beta_1: Their decay of the mean of gradients; below the usual 0.9 the two networks circle each other less.
    """

    name = "gan"
    recipe = {"batch_size": 128, "epochs": 10}
    full_recipe = {"epochs": 200}

    def __init__(
        self,
        *,
        data: Mnist | str | None = None,
        latent: int = 100,
        learning_rate: float = 2e-4,
        generator_rate: float = 6e-4,
        beta_1: float = 0.5,
    ) -> None:
        super().__init__(data=data, latent=latent, rates=(learning_rate, generator_rate), beta_1=beta_1)

    def make_generator(self) -> keras.Model:
        """100-128-784."""
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((self._latent,)),
                layers.Dense(_HIDDEN, activation="relu", kernel_initializer="glorot_normal"),
                layers.Dense(PIXELS, activation="sigmoid", kernel_initializer="glorot_normal"),
                layers.Reshape((SIDE, SIDE, 1)),
            ],
            name="generator",
        )

    def make_discriminator(self) -> keras.Model:
        """784-128-1."""
        layers = keras.layers
        return keras.Sequential(
            [
                keras.Input((SIDE, SIDE, 1)),
                layers.Reshape((PIXELS,)),
                layers.Dense(_HIDDEN, activation="relu", kernel_initializer="glorot_normal"),
                layers.Dense(1, kernel_initializer="glorot_normal"),
            ],
            name="discriminator",
        )
