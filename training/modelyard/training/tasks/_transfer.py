"""The task ``transfer``: a network that knows pictures already learns new classes.

Source: the cookbook's classifier of 84,495 retinal scans (Kermany et al.,
"Identifying Medical Diagnoses and Treatable Diseases by Image-Based Deep
Learning", 2018): 4 classes, 224 x 224, VGG16 whose first layers are frozen and
whose last are trained again, with a new head. Here for any folder of images
``root/<label>/*.jpeg``, with VGG16 or MobileNetV2. Images ``[B, H, W, 3]`` from
0 to 1, cross-entropy of logits ``[B, classes]``, Adam.

Measured: loss and accuracy by epoch, on training and test images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import keras
import numpy as np
import tensorflow as tf

from modelyard.artifact import (
    DEFAULT_SIGNATURE,
    EncodedImageFunction,
    SignatureFunction,
    TensorSpec,
    VerificationData,
)
from modelyard.errors import ConfigurationError, DatasetNotFoundError, TrainingError
from modelyard.training._step import average_loss, minimize
from modelyard.training._task import InputRequest, Task
from modelyard.training.data import (
    Augmentation,
    ImageFolder,
    ImageOptions,
    image_examples,
    image_folder_dataset,
    scan_images,
)
from modelyard.training.tasks._images import hits

_IMAGE_BYTES = "image_bytes"
#: What the networks were trained on: VGG16 sees BGR less these means, MobileNetV2 values from -1 to 1.
_VGG_MEANS = (103.939, 116.779, 123.68)


class TransferTask(Task):
    """A pretrained network with a new head, on a folder of images.

    Args:
        folder: Folder of images, one folder for each label.
        backbone: ``mobilenet_v2`` or ``vgg16``.
        weights: ``imagenet`` for Keras' weights, which Keras downloads;
            ``none`` for random ones; or a file of weights that Keras reads.
        size: Height and width of the input, in pixels; at least 32.
        trained_layers: How many of the backbone's last layers are trained; the first stay as they are.
        learning_rate: Step size of Adam.
        augment: Random crops, flips, brightness and contrast in training.

    Raises:
        ConfigurationError: An unknown backbone, a size below 32, or a negative number of layers.
    """

    name: ClassVar[str] = "transfer"
    recipe: ClassVar[Mapping[str, Any]] = {"batch_size": 32, "epochs": 3}
    full_recipe: ClassVar[Mapping[str, Any]] = {"epochs": 10}

    def __init__(
        self,
        *,
        folder: str = "images",
        backbone: Literal["mobilenet_v2", "vgg16"] = "mobilenet_v2",
        weights: str = "imagenet",
        size: int = 224,
        trained_layers: int = 4,
        learning_rate: float = 1e-4,
        augment: bool = True,
    ) -> None:
        if backbone not in ("mobilenet_v2", "vgg16"):
            raise ConfigurationError(f"backbone is {backbone!r}; expected mobilenet_v2 or vgg16.")
        if size < 32:
            raise ConfigurationError(f"size is {size}; expected at least 32 pixels, which the backbones need.")
        if trained_layers < 0:
            raise ConfigurationError(f"trained_layers is {trained_layers}; expected a number of layers.")
        self._root_folder = Path(folder)
        self._backbone = backbone
        self._weights = weights
        self._trained_layers = trained_layers
        self._learning_rate = learning_rate
        self._augment = augment
        self._image = ImageOptions(height=size, width=size, channels=3, crop=0.875 if augment else 1.0)
        self._model: Any = None
        self._optimizer: Any = None

    @cached_property
    def folder(self) -> ImageFolder:
        """The image files, listed on first use."""
        return scan_images(self._root_folder)

    def build(self) -> None:
        """Loads the backbone, freezes its first layers, and puts a new head on it.

        Raises:
            DatasetNotFoundError: The weights are not here and cannot be downloaded.
        """
        shape = (self._image.height, self._image.width, 3)
        backbone = self._load(shape)
        trained = set(backbone.layers[max(0, len(backbone.layers) - self._trained_layers) :])
        for layer in backbone.layers:
            layer.trainable = layer in trained
            if self._weights == "none" and isinstance(layer, keras.layers.BatchNormalization):
                # Made for a million steps, the momentum of 0.999 would not see these statistics in a short run.
                layer.momentum = 0.9
        image = keras.Input(shape)
        # Pretrained statistics of batch normalization are kept as they are; random weights have none worth keeping.
        features = backbone(self._adapted(image), training=None if self._weights == "none" else False)
        pooled = keras.layers.GlobalAveragePooling2D()(features)
        logits = keras.layers.Dense(len(self.folder.class_names))(pooled)
        self._model = keras.Model(image, logits, name=self.name)
        self._optimizer = keras.optimizers.Adam(self._learning_rate)
        self._optimizer.build(self._model.trainable_variables)

    @property
    def root(self) -> tf.Module:
        """The network.

        Raises:
            TrainingError: :meth:`build` was not called.
        """
        if self._model is None:
            raise TrainingError(f"The task {self.name!r} has no model yet; call build(), run a Trainer, or restore().")
        return self._model

    def trackables(self) -> Mapping[str, Any]:
        """The network and its optimizer."""
        return {"model": self.root, "optimizer": self._optimizer}

    def train_step(self, batch: Any) -> Mapping[str, Any]:
        """One step of Adam on the head and the layers that are not frozen.

        Args:
            batch: ``(images, labels)``: float32 ``[B, H, W, 3]``, int64 ``[B]``.

        Returns:
            ``loss`` and ``accuracy`` of each example, float32 ``[B]``.
        """
        model: Any = self.root
        with tf.GradientTape() as tape:
            values = self._values(batch, training=True)
            loss = average_loss(values["loss"])
        minimize(loss, model.trainable_variables, optimizer=self._optimizer, tape=tape)
        return values

    def eval_step(self, batch: Any) -> Mapping[str, Any]:
        """Loss and accuracy of a batch.

        Args:
            batch: As for :meth:`train_step`.

        Returns:
            As for :meth:`train_step`.
        """
        return self._values(batch, training=False)

    def train_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(images, labels)`` of the training images, changed at random.

        Args:
            request: Which part of which epoch.
        """
        return image_folder_dataset(
            "train",
            folder=self.folder,
            image=self._image,
            **asdict(request),
            augmentation=Augmentation() if self._augment else None,
        )

    def eval_dataset(self, request: InputRequest) -> tf.data.Dataset:
        """``(images, labels)`` of the test images, as serving prepares them.

        Args:
            request: The batch size.
        """
        return image_folder_dataset(
            "test",
            folder=self.folder,
            image=self._image,
            batch_size=request.batch_size,
            drop_remainder=request.drop_remainder,
        )

    def signatures(self) -> Mapping[str, SignatureFunction | EncodedImageFunction]:
        """``serving_default`` on tensors, and ``image_bytes`` on encoded images of any size."""
        shape = (-1, self._image.height, self._image.width, 3)
        return {
            DEFAULT_SIGNATURE: SignatureFunction(
                inputs=(TensorSpec(name="image", dtype="float32", shape=shape),), function=self._predict
            ),
            _IMAGE_BYTES: EncodedImageFunction(
                compute=DEFAULT_SIGNATURE, preprocess=self._image.preprocess, input=_IMAGE_BYTES, channels=3
            ),
        }

    def verification_data(self, count: int) -> VerificationData:
        """Test images, and training images where those are too few, as tensors and as the files themselves.

        Args:
            count: How many, at most.

        Raises:
            ConfigurationError: ``count`` is below 1.
        """
        return image_examples(self.folder, image=self._image, count=count)

    def data_description(self) -> str:
        """Which folder, and what is in it."""
        return self.folder.description

    def _load(self, shape: tuple[int, int, int]) -> Any:
        kind = keras.applications.VGG16 if self._backbone == "vgg16" else keras.applications.MobileNetV2
        weights = None if self._weights == "none" else self._weights
        try:
            return kind(include_top=False, weights=weights, input_shape=shape)
        # Keras raises a bare Exception where its download fails; its text names the address.
        except Exception as exc:
            if self._weights == "none":
                raise
            raise DatasetNotFoundError(
                f"The weights {self._weights!r} of {self._backbone} cannot be loaded: {exc}. Offline, copy the file "
                f"that Keras names to ~/.keras/models, give its path as --set weights=FILE, or start from random "
                "weights with --set weights=none."
            ) from exc

    def _adapted(self, image: Any) -> Any:
        """From values of 0 to 1 to what the backbone was trained on."""
        if self._backbone == "vgg16":
            return image[..., ::-1] * 255.0 - np.array(_VGG_MEANS, np.float32)
        return image * 2.0 - 1.0

    def _values(self, batch: Any, *, training: bool) -> Mapping[str, tf.Tensor]:
        images, labels = batch
        model: Any = self.root
        logits = model(images, training=training)
        return {
            "loss": tf.nn.sparse_softmax_cross_entropy_with_logits(labels, logits),
            "accuracy": hits(labels, logits),
        }

    def _predict(self, image: tf.Tensor) -> Mapping[str, tf.Tensor]:
        model: Any = self.root
        logits = model(image, training=False)
        class_id = tf.argmax(logits, axis=-1, output_type=tf.int64)
        return {
            "class_id": class_id,
            "label": tf.gather(tf.constant(self.folder.class_names), class_id),
            "probabilities": tf.nn.softmax(logits),
        }
