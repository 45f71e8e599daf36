"""The task ``transfer``: a network that knows images already learns new classes.

Source: Keras' guide "Transfer learning & fine-tuning" (Chollet, 2020): a network trained on ImageNet whose first layers
are frozen, whose batch normalization keeps its statistics, whose last layers are trained again, with a new head. The
networks: VGG16 (Simonyan and Zisserman, "Very Deep Convolutional Networks for Large-Scale Image Recognition", 2014) and
MobileNetV2 (Sandler et al., "MobileNetV2: Inverted Residuals and Linear Bottlenecks", 2018). It is made for problems
such as the retinal scans of Kermany et al. ("Identifying Medical Diagnoses and Treatable Diseases by Image-Based Deep
Learning", 2018): 84,495 images of 4 classes; they retrained Inception v3. Here for any folder of images
``root/<label>/*.jpeg``, at 224 x 224: ``[B, H, W, 3]`` from 0 to 1, cross-entropy of logits ``[B, classes]``, Adam.

What the network knows comes from Keras' weights for ImageNet, or from an earlier run on other images:

    modelyard train transfer --set folder=MANY --set weights=none --set trained_layers=200 --model-dir runs/base
    modelyard train transfer --set folder=FEW --set weights=runs/base --set trained_layers=0

Measured: loss and accuracy by epoch, on training and test images.
"""

from __future__ import annotations

import warnings
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import keras
import numpy as np

from modelyard.errors import ConfigurationError, DatasetNotFoundError
from modelyard.training.data import Augmentation, ImageFolder, ImageOptions
from modelyard.training.run import first_line, restore
from modelyard.training.tasks.inputs import ClassifierTask

#: What the networks were trained on: VGG16 sees BGR less these means, MobileNetV2 values from -1 to 1.
_VGG_MEANS = (103.939, 116.779, 123.68)


class TransferTask(ClassifierTask):
    """A pretrained network with a new head, on a folder of images.

    Args:
        folder: Folder of images, one folder for each label.
        backbone: ``mobilenet_v2`` or ``vgg16``.
        weights: ``imagenet`` for Keras' weights, which Keras downloads; ``none`` for random ones; a file of Keras'
            weights for this backbone, ``.weights.h5`` or ``.h5``, with its head or without; or the folder of a run of
            this task with the same backbone.
        size: Height and width of the input, in pixels; at least 32.
        trained_layers: How many of the backbone's last layers are trained; the first stay as they are.
        learning_rate: Step size of Adam.
        augment: Random crops, flips, brightness and contrast in training.

    Attributes:
        folder: Of images.

    Raises:
        ConfigurationError: An unknown backbone, a size below 32, or a negative number of layers.
    """

    name = "transfer"
    recipe = {"batch_size": 32, "epochs": 3}
    full_recipe = {"epochs": 10}

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
        self.folder = Path(folder)
        self._backbone = backbone
        self._weights = weights
        self._trained_layers = trained_layers
        self._learning_rate = learning_rate
        self._augment = augment
        self._image = ImageOptions(height=size, width=size, channels=3, crop=0.875 if augment else 1.0)

    @cached_property
    def train(self) -> ImageFolder:
        """The training images, changed at random, float32 ``[B, H, W, 3]``, and their classes, int64 ``[B]``."""
        augmentation = Augmentation() if self._augment else None
        return ImageFolder(self.folder, split="train", image=self._image, augmentation=augmentation)

    @cached_property
    def test(self) -> ImageFolder:
        """The test images, as serving prepares them."""
        return ImageFolder(self.folder, split="test", image=self._image)

    def build(self) -> None:
        """Loads the backbone, freezes its first layers, and puts a new head on it.

        Raises:
            CheckpointError: The run whose folder ``weights`` is cannot be restored.
            ConfigurationError: The file or the run has weights of another network.
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
        image = keras.Input(shape, name="image")
        # Pretrained statistics of batch normalization are kept as they are; random weights have none worth keeping.
        features = backbone(self._adapted(image), training=None if self._weights == "none" else False)
        pooled = keras.layers.GlobalAveragePooling2D()(features)
        logits = keras.layers.Dense(len(self.train.class_names))(pooled)
        self.model = keras.Model(image, logits, name=self.name)
        self.optimizer = keras.optimizers.Adam(self._learning_rate)

    @property
    def backbone(self) -> Any:
        """The network below the head."""
        return next(layer for layer in self.model.layers if isinstance(layer, keras.Model))

    def _load(self, shape: tuple[int, int, int]) -> Any:
        kind = keras.applications.VGG16 if self._backbone == "vgg16" else keras.applications.MobileNetV2
        if self._weights == "imagenet":
            return self._downloaded(kind, shape)
        backbone = kind(include_top=False, weights=None, input_shape=shape)
        path = Path(self._weights)
        if self._weights == "none":
            return backbone
        try:
            if path.is_dir():
                backbone.set_weights(restore(path).task.backbone.get_weights())
            elif path.is_file():
                _read_weights(path, backbone, kind)
            else:
                raise DatasetNotFoundError(
                    f"There is no {self._weights!r} to take the weights of {self._backbone} from; expected imagenet, "
                    "none, a file of Keras' weights, or the folder of a run of this task: --set weights=FILE."
                )
        # Keras says so of layers and shapes that differ, h5py of what is no HDF5.
        except (ValueError, UserWarning, OSError, AttributeError) as exc:
            raise ConfigurationError(
                f"{self._weights} has no weights of {self._backbone}: {first_line(exc)} Give weights that Keras saved "
                f"of this network (save_weights), or the folder of a run with backbone={self._backbone}."
            ) from exc
        return backbone

    def _downloaded(self, kind: Any, shape: tuple[int, int, int]) -> Any:
        try:
            return kind(include_top=False, weights="imagenet", input_shape=shape)
        # Keras raises a bare Exception where its download fails; its text names the address.
        except Exception as exc:
            raise DatasetNotFoundError(
                f"The weights 'imagenet' of {self._backbone} cannot be loaded: {exc}. Offline, copy the file "
                f"that Keras names to ~/.keras/models, give its path as --set weights=FILE, or start from random "
                "weights with --set weights=none."
            ) from exc

    def _adapted(self, image: Any) -> Any:
        """From values of 0 to 1 to what the backbone was trained on."""
        if self._backbone == "vgg16":
            return image[..., ::-1] * 255.0 - np.array(_VGG_MEANS, np.float32)
        return image * 2.0 - 1.0


def _read_weights(path: Path, backbone: Any, kind: Any) -> None:
    with warnings.catch_warnings():
        # Where the file has nothing for a layer, Keras warns and leaves it as it is.
        warnings.simplefilter("error", UserWarning)
        try:
            backbone.load_weights(path)
        except (ValueError, UserWarning):
            # The same network with its head, for the 1,000 classes of ImageNet: the head's weights are the last ones.
            whole = kind(weights=None)
            whole.load_weights(path)
            backbone.set_weights(whole.get_weights()[: len(backbone.weights)])
