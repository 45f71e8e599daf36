"""The requests of a run: real test images in each form that an API takes, or what was recorded."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.clients import connect
from modelyard.errors import ConfigurationError
from modelyard.loadtests._images import Images
from modelyard.loadtests._options import LoadTestOptions
from modelyard.loadtests._requests import (
    APIS,
    DEFAULT_SIGNATURE,
    EXAMPLE,
    IMAGE_BYTES,
    Request,
    encode,
    examples,
    strings,
)

PAYLOADS = ("image", IMAGE_BYTES, EXAMPLE)
#: Different requests of a kind; a server that remembers answers would have to remember so many.
DISTINCT = 128


def all_kinds(options: LoadTestOptions) -> tuple[str, ...]:
    """The kinds of request that a run has where none are named: TensorFlow Serving's APIs, images in both forms.

    Args:
        options: With the addresses.
    """
    apis = [name for name, url in (("grpc", options.grpc_url), ("rest", options.rest_url)) if url]
    return tuple(f"{api} {payload}" for api in apis for payload in ("image", IMAGE_BYTES))


def make_requests(
    options: LoadTestOptions, kinds: Sequence[str], images: Images, *, distinct: int = DISTINCT, seed: int = 0
) -> list[Request]:
    """Encodes requests, as many of each kind.

    Args:
        options: Addresses, model and rows.
        kinds: Such as ``grpc image`` or ``rest-v2 image_bytes``.
        images: What to send.
        distinct: Requests of each kind.
        seed: Of the choice of images.

    Raises:
        ConfigurationError: An unknown kind, one that has no server, or
            examples for a model that takes none.
    """
    check_kinds(options, kinds)
    found = []
    for kind in kinds:
        api, _, payload = kind.partition(" ")
        signature, name = signature_for(options, payload)
        # The same images for every kind: their agreement can be compared.
        rng = random.Random(seed)
        for _ in range(distinct):
            chosen = images.choose(options.rows, rng)
            values: npt.NDArray[Any]
            if payload == "image":
                values = images.batch(chosen)
            elif payload == IMAGE_BYTES:
                values = strings(images.encoded(chosen))
            else:
                values = examples(images.batch(chosen))
            found.append(
                encode(
                    api, payload, model=options.model, signature=signature, inputs={name: values},
                    expected=images.labels[chosen].astype(np.int64),
                )
            )  # fmt: skip
    return found


def check_kinds(options: LoadTestOptions, kinds: Sequence[str]) -> None:
    """Checks names of kinds.

    Args:
        options: With the addresses.
        kinds: Such as ``grpc image``.

    Raises:
        ConfigurationError: An unknown kind, or one that has no server.
    """
    for kind in kinds:
        api, _, payload = kind.partition(" ")
        if api not in APIS or payload not in PAYLOADS:
            raise ConfigurationError(
                f"Unknown kind of request {kind!r}; expected one of {', '.join(APIS)}, a space, and one of "
                f"{', '.join(PAYLOADS)}."
            )
        if not (options.grpc_url if api.startswith("grpc") else options.rest_url):
            raise ConfigurationError(f"There is no server for {kind!r}: give --host-{api.partition('-')[0]}.")


def signature_for(options: LoadTestOptions, payload: str) -> tuple[str, str]:
    """The signature for a payload, and the name of its input.

    Args:
        options: Address and model; the server is asked which signature takes examples.
        payload: One of :data:`PAYLOADS`.

    Raises:
        ConfigurationError: The model takes no examples.
        ServerError: The server does not answer.
    """
    if payload != EXAMPLE:
        return (DEFAULT_SIGNATURE, "image") if payload == "image" else (IMAGE_BYTES, IMAGE_BYTES)
    with connect(options.grpc_url or options.rest_url) as client:
        signatures = client.metadata(options.model).signatures
    for name, signature in signatures.items():
        texts = [key for key, info in signature.inputs.items() if info.dtype == "string"]
        if name != IMAGE_BYTES and len(signature.inputs) == len(texts) == 1:
            return name, texts[0]
    raise ConfigurationError(
        f"Model {options.model!r} has no signature that takes tf.Example messages; it has {', '.join(signatures)}."
    )
