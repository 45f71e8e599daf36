"""Real images to send, and their classes."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modelyard.errors import MissingDependencyError
from modelyard.training.data import load_fashion_mnist


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Test images of Fashion-MNIST.

    Attributes:
        pixels: uint8 ``[N, 28, 28]``.
        labels: uint8 ``[N]``.
        class_names: Names of the classes, in order.
        source: Where the images came from.
    """

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.uint8]
    class_names: tuple[str, ...]
    source: str

    def choose(self, rows: int, rng: random.Random) -> npt.NDArray[np.int64]:
        """Indices of some images.

        Args:
            rows: How many.
            rng: Where the choice comes from.
        """
        return np.array([rng.randrange(len(self.pixels)) for _ in range(rows)])

    def batch(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Images as the signature ``serving_default`` takes them: float32 ``[n, 28, 28, 1]``, 0 to 1.

        Args:
            chosen: Indices of images.
        """
        return self.pixels[chosen, :, :, None].astype(np.float32) / np.float32(255)

    def encoded(self, chosen: npt.NDArray[np.int64]) -> list[bytes]:
        """Images as the signature ``image_bytes`` takes them: PNG files.

        Args:
            chosen: Indices of images.

        Raises:
            MissingDependencyError: Pillow is not installed.
        """
        try:
            from PIL import Image
        except ModuleNotFoundError as exc:
            if exc.name != "PIL":
                raise
            raise MissingDependencyError(package="pillow", extra="loadtests", purpose="Encoding images") from exc
        files = []
        for index in chosen:
            buffer = io.BytesIO()
            Image.fromarray(self.pixels[index]).save(buffer, "PNG")
            files.append(buffer.getvalue())
        return files


def load_images() -> Images:
    """Loads the test images; the subset that ships with modelyard will do.

    Raises:
        DatasetNotFoundError: There are none.
    """
    data = load_fashion_mnist(allow_download=False, allow_subset=True)
    return Images(pixels=data.test_images, labels=data.test_labels, class_names=data.class_names, source=data.source)
