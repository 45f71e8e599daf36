"""Real images of Fashion-MNIST to send, and their classes: the requests of the demo's model."""

from __future__ import annotations

import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from modelyard.clients import SignatureInfo, TensorInfo
from modelyard.clients.protocols import DEFAULT_SIGNATURE
from modelyard.errors import ConfigurationError
from modelyard.lazy import needs_extra
from modelyard.loadtests.options import LoadTestOptions
from modelyard.loadtests.traffic._requests import Array, Request, encode
from modelyard.loadtests.traffic._source import DISTINCT, Traffic, ask
from modelyard.training.data import load_fashion_mnist
from modelyard.wire import object_array, tensorflow_pb2

IMAGE, IMAGE_BYTES, EXAMPLE = PAYLOADS = ("image", "image_bytes", "example")
#: Outputs of the model's signatures.
_OUTPUTS = {
    "class_id": TensorInfo(name="class_id", dtype="int64", shape=(-1,)),
    "label": TensorInfo(name="label", dtype="string", shape=(-1,)),
    "probabilities": TensorInfo(name="probabilities", dtype="float32", shape=(-1, 10)),
}
_INPUTS = {IMAGE: TensorInfo(name=IMAGE, dtype="float32", shape=(-1, 28, 28, 1))}


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """Test images of Fashion-MNIST."""

    #: uint8 ``[N, 28, 28]``.
    pixels: npt.NDArray[np.uint8]
    #: uint8 ``[N]``.
    labels: npt.NDArray[np.uint8]
    #: Names of the classes, in order.
    class_names: tuple[str, ...]
    #: Where the images came from.
    source: str

    def choose(self, rows: int, rng: random.Random) -> npt.NDArray[np.int64]:
        """Indices of some images."""
        return np.array([rng.randrange(len(self.pixels)) for _ in range(rows)])

    def batch(self, chosen: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Images as the signature ``serving_default`` takes them: float32 ``[n, 28, 28, 1]``, 0 to 1."""
        return self.pixels[chosen, :, :, None].astype(np.float32) / np.float32(255)

    def encoded(self, chosen: npt.NDArray[np.int64]) -> list[bytes]:
        """Images as the signature ``image_bytes`` takes them: PNG files."""
        with needs_extra("loadtests", "PIL", purpose="Encoding images"):
            from PIL import Image
        files = []
        for index in chosen:
            buffer = io.BytesIO()
            Image.fromarray(self.pixels[index]).save(buffer, "PNG")
            files.append(buffer.getvalue())
        return files


def load_images() -> Images:
    """Loads the test images; the subset that ships with modelyard will do."""
    data = load_fashion_mnist(allow_download=False, allow_subset=True)
    return Images(pixels=data.test_images, labels=data.test_labels, class_names=data.class_names, source=data.source)


def is_demo(signatures: Mapping[str, SignatureInfo]) -> bool:
    """Whether a model is a Fashion-MNIST classifier such as the demo's."""
    found = signatures.get(DEFAULT_SIGNATURE)
    return found is not None and IMAGE_BYTES in signatures and (found.inputs, found.outputs) == (_INPUTS, _OUTPUTS)


class ImageTraffic(Traffic):
    """Test images of Fashion-MNIST as tensors and as PNG files, or as ``tf.Example`` messages."""

    def __init__(self, images: Images | None = None) -> None:
        self._images = images or load_images()
        self.text = f"images from {self._images.source}"
        self.payloads = (IMAGE, IMAGE_BYTES)

    def refused(self, api: str, payload: str) -> str:
        """See :meth:`Traffic.refused`."""
        return "" if payload in PAYLOADS else f"expected one of {', '.join(PAYLOADS)} behind the API"

    def requests(
        self, options: LoadTestOptions, kinds: Sequence[str], *, rows: int = 0, distinct: int = DISTINCT, seed: int = 0
    ) -> list[Request]:
        """See :meth:`Traffic.requests`."""
        found = []
        images = self._images
        for kind in kinds:
            api, _, payload = kind.partition(" ")
            signature, name = _signature(options, payload)
            # The same images for every kind: their agreement can be compared.
            rng = random.Random(seed)
            for _ in range(distinct):
                chosen = images.choose(rows or options.rows, rng)
                values: Array
                if payload == IMAGE:
                    values = images.batch(chosen)
                elif payload == IMAGE_BYTES:
                    values = object_array(images.encoded(chosen))
                else:
                    values = _examples(images.batch(chosen))
                found.append(
                    encode(
                        api, payload, model=options.model, signature=signature, inputs={name: values},
                        expected=images.labels[chosen].astype(np.int64), outputs=_OUTPUTS,
                        class_names=images.class_names,
                    )
                )  # fmt: skip
        return found


def _signature(options: LoadTestOptions, payload: str) -> tuple[str, str]:
    """The signature for a payload, and the name of its input; the server is asked which one takes examples."""
    if payload != EXAMPLE:
        return (DEFAULT_SIGNATURE, IMAGE) if payload == IMAGE else (IMAGE_BYTES, IMAGE_BYTES)
    signatures = ask(options).signatures
    for name, signature in signatures.items():
        texts = [key for key, info in signature.inputs.items() if info.dtype == "string"]
        if name != IMAGE_BYTES and len(signature.inputs) == len(texts) == 1:
            return name, texts[0]
    raise ConfigurationError(
        f"Model {options.model!r} has no signature that takes tf.Example messages; it has {', '.join(signatures)}."
    )


def _examples(images: npt.NDArray[np.float32]) -> npt.NDArray[np.object_]:
    """Images as serialized ``tf.Example`` messages with the feature ``image``."""
    found = []
    for image in images:
        message = tensorflow_pb2.Example()
        message.features.feature["image"].float_list.value.extend(image.ravel().tolist())
        found.append(message.SerializeToString())
    return object_array(found)
