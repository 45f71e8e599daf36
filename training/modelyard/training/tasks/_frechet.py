"""The Fréchet distance between real and made images, in the features of a trained ``fashion`` network.

Source: Heusel et al., "GANs Trained by a Two Time-Scale Update Rule Converge to a Local Nash Equilibrium", 2017, whose
network is Inception v3; images of 28 x 28 want one that knows them.
"""

from __future__ import annotations

from dataclasses import replace

import keras
import numpy as np
import numpy.typing as npt

from modelyard.errors import ConfigurationError
from modelyard.training.data import Mnist
from modelyard.training.run import Trainer, TrainerOptions
from modelyard.training.tasks._fashion import FashionTask
from modelyard.training.tasks.inputs import as_floats

#: Steps enough for features that tell garments apart: four epochs of the shipped subset, a fifth of one of all images.
_STEPS = 128
_BATCH = 64
#: Test images that made ones are compared with.
_MOST, _LEAST = 1000, 100
_SEED = 0


class FrechetDistance:
    """Distance of images from the test images.

    The network is trained here, for a few seconds, on the same images each time: the distance means something beside
    others of the same data only.
    """

    def __init__(self, data: Mnist) -> None:
        self.count = min(_MOST, len(data.test_images))
        if self.count < _LEAST:
            raise ConfigurationError(
                f"There are {self.count} test images; expected at least {_LEAST}, or the covariance says nothing."
            )
        task = FashionTask(data=data)
        per_epoch = -(-len(data.train_images) // _BATCH)
        if per_epoch > _STEPS:
            chosen = np.random.default_rng(_SEED).permutation(len(data.train_images))[: _STEPS * _BATCH]
            few = replace(data, train_images=data.train_images[chosen], train_labels=data.train_labels[chosen])
            task = FashionTask(data=few)
            per_epoch = _STEPS
        Trainer(task, TrainerOptions(epochs=max(1, _STEPS // per_epoch), batch_size=_BATCH, seed=_SEED)).run()
        self._features = keras.Model(task.model.inputs[0], task.model.layers[-2].output)
        self._mean, self._covariance = self._statistics(as_floats(data.test_images[: self.count]))

    def __call__(self, images: npt.NDArray[np.float32]) -> float:
        """The distance of float32 ``[N, 28, 28, 1]`` from 0 to 1, N at least 100; 0 for equal mean and covariance."""
        mean, covariance = self._statistics(images)
        root = _square_root(self._covariance)
        # The trace of the root of a product that is not symmetric, by one that is.
        cross = np.linalg.eigvalsh(root @ covariance @ root)
        spread = np.trace(self._covariance + covariance) - 2 * np.sqrt(np.clip(cross, 0, None)).sum()
        return float(np.square(mean - self._mean).sum() + spread)

    def _statistics(self, images: npt.NDArray[np.float32]) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.float64]]:
        features = np.concatenate(
            [np.asarray(self._features(images[start : start + 500])) for start in range(0, len(images), 500)]
        ).astype(np.float64)
        return features.mean(axis=0), np.cov(features, rowvar=False)


def _square_root(matrix: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    values, vectors = np.linalg.eigh(matrix)
    return (vectors * np.sqrt(np.clip(values, 0, None))) @ vectors.T
