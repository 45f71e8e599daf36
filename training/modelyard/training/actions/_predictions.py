"""A look at what a task's model says about images it was not trained on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import tensorflow as tf

from modelyard.artifact import DEFAULT_SIGNATURE, SignatureFunction
from modelyard.errors import ConfigurationError
from modelyard.training.user import Task

#: How many test images to choose from.
_POOL = 1000


@dataclass(frozen=True, kw_only=True)
class ImagePredictions:
    """Test images, float32 ``[N, H, W, C]``, and for each the label that a model predicts and the true one."""

    images: npt.NDArray[np.float32]
    predicted: tuple[str, ...]
    actual: tuple[str, ...]


def predict_images(task: Task, count: int = 25, *, seed: int = 0) -> ImagePredictions:
    """Runs the serving function of an image classifier on random test images.

    Args:
        task: Trained or not, but built. Its signature ``serving_default`` takes images ``[B, H, W, C]`` and returns
            ``label`` or ``class_id``.
        count: How many, at most.
        seed: Chooses them, among the first thousand.

    Raises:
        ConfigurationError: The signature is of another kind.
    """
    found = _predict(task, count, seed)
    if isinstance(found, str):
        raise ConfigurationError(found)
    return found


def find_predictions(task: Task) -> ImagePredictions | None:
    """As :func:`predict_images`, for any task."""
    found = _predict(task, 25, 0)
    return None if isinstance(found, str) else found


def _predict(task: Task, count: int, seed: int) -> ImagePredictions | str:
    """The predictions, or why there are none."""
    data = task.verification_data(_POOL)
    function = task.signatures().get(DEFAULT_SIGNATURE)
    if not isinstance(function, SignatureFunction) or len(function.inputs) != 1 or data.labels is None:
        return (
            f"Task {task.name!r} has no {DEFAULT_SIGNATURE!r} from one tensor of images with labels to verify it; "
            "predictions on images need one."
        )
    name = function.inputs[0].name
    pool = np.asarray(data.inputs[DEFAULT_SIGNATURE][name])
    if pool.ndim != 4:
        return f"The input {name!r} of task {task.name!r} has shape {pool.shape}; expected images."
    chosen = np.random.default_rng(seed).permutation(len(pool))[:count]
    outputs = function.function(**{name: tf.constant(pool[chosen])})
    if not {"label", "class_id"} & set(outputs):
        return f"{DEFAULT_SIGNATURE!r} of task {task.name!r} returns {sorted(outputs)}; expected 'label' or 'class_id'."
    return ImagePredictions(
        images=pool[chosen].astype(np.float32),
        predicted=_labels(outputs, data.class_names),
        actual=tuple(_name(int(label), data.class_names) for label in np.asarray(data.labels)[chosen]),
    )


def _labels(outputs: Mapping[str, tf.Tensor], class_names: Sequence[str]) -> tuple[str, ...]:
    if "label" in outputs:
        return tuple(value.decode("utf-8") for value in outputs["label"].numpy())
    return tuple(_name(int(value), class_names) for value in outputs["class_id"].numpy())


def _name(index: int, class_names: Sequence[str]) -> str:
    return str(class_names[index]) if class_names else str(index)
