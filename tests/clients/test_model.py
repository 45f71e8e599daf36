"""A model whose signatures are known: what fits is cast, what does not says what was expected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modelyard import errors
from modelyard.clients import Client, Model, SignatureInfo, TensorInfo, connect, connect_async, prepare_inputs
from modelyard.training.data import FashionMnist
from tests.clients.conftest import url_of
from tests.support.server import RunningServer


@pytest.fixture(params=["grpc", "rest"])
def fashion_client(request: pytest.FixtureRequest, fashion_server: RunningServer) -> Iterator[Client]:
    with connect(url_of(fashion_server, request.param)) as client:
        yield client


@pytest.fixture
def model(fashion_client: Client) -> Model:
    return fashion_client.model("fashion")


def test_casts_and_completes(model: Model, fashion: FashionMnist) -> None:
    pixels = fashion.test_images[:3, ..., None]
    exact = (pixels / np.float32(255)).astype(np.float32)
    expected = model.predict(exact)
    for answer in (model.predict({"image": exact.astype(np.float64)}), model.signatures.serving_default(image=exact)):
        np.testing.assert_array_equal(answer["class_id"], expected["class_id"])
    assert model.predict(pixels)["probabilities"].shape == (3, 10)
    assert {"serving_default", "image_bytes"} <= set(dir(model.signatures))
    assert model.signatures.image_bytes.inputs["image_bytes"].dtype == "string"
    assert (model.name, model.version) == ("fashion", 1)
    assert "image: float32 [-1, 28, 28, 1]" in repr(model)
    assert "class_id" in model.signatures["serving_default"].outputs


def test_images_as_files_images_and_bytes(model: Model, fashion: FashionMnist, tmp_path: Any) -> None:
    images = [Image.fromarray(pixels) for pixels in fashion.test_images[:2]]
    paths = [tmp_path / f"{index}.png" for index in range(2)]
    for image, path in zip(images, paths, strict=True):
        image.save(path)
    expected = model.signatures.image_bytes([path.read_bytes() for path in paths])["class_id"].tolist()
    assert model.signatures.image_bytes(paths)["class_id"].tolist() == expected
    assert model.signatures.image_bytes(images)["class_id"].tolist() == expected
    plain = model.signatures.serving_default(fashion.test_images[:2, ..., None] / np.float32(255))
    assert plain["class_id"].tolist() == expected


def test_paths_and_images_in_a_plain_predict(fashion_client: Client, fashion: FashionMnist, tmp_path: Any) -> None:
    image = Image.fromarray(fashion.test_images[0])
    image.save(tmp_path / "a.png")
    inputs = {"image_bytes": [tmp_path / "a.png", image]}
    answer = fashion_client.predict("fashion", inputs, signature="image_bytes")
    assert answer["class_id"][0] == answer["class_id"][1]
    with pytest.raises(errors.InvalidInputError, match="absent.png"):
        fashion_client.predict("fashion", {"image_bytes": [tmp_path / "absent.png"]}, signature="image_bytes")


@pytest.mark.parametrize(
    ("inputs", "match"),
    [
        ({"imgae": 1.0}, "did you mean 'image'"),
        ({}, "missing 'image'. Expected image: float32"),
        (np.zeros((28, 28, 1), np.float32), r"\[28, 28, 1\]; expected \[-1, 28, 28, 1\].*value\[None\]"),
        (np.zeros((1, 28, 27, 1), np.float32), r"\[1, 28, 27, 1\]; expected"),
        ([["a"]], "string, whose values float32 cannot hold"),
        (np.full((1, 28, 28, 1), 1e300), "float64, whose values float32 cannot hold"),
        ([[1.0], [1.0, 2.0]], "equally long"),
    ],
)
def test_says_what_was_expected(model: Model, inputs: Any, match: str) -> None:
    with pytest.raises(errors.InvalidInputError, match=match):
        model.predict(inputs)


def test_unknown_names(model: Model) -> None:
    with pytest.raises(errors.SignatureNotFoundError, match="did you mean 'image_bytes'"):
        model.predict({}, signature="image_byte")
    with pytest.raises(AttributeError, match="did you mean 'image_bytes'"):
        _ = model.signatures.image_byte
    with pytest.raises(errors.InvalidInputError, match="no output 'label_'"):
        model.predict(np.zeros((1, 28, 28, 1)), outputs=["label_"])
    with pytest.raises(errors.SignatureNotFoundError, match="no signature None"):
        model.predict({}, signature=None)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInputError, match="names of outputs as text; received 5"):
        model.predict(np.zeros((1, 28, 28, 1)), outputs=5)  # type: ignore[arg-type]
    with pytest.raises(errors.InvalidInputError, match="expected one value, or inputs by name"):
        model.signatures.serving_default(1, image=2)


def _info(dtype: str) -> SignatureInfo:
    x = TensorInfo(name="x", dtype=dtype, shape=None)
    return SignatureInfo(name="s", method="", inputs={"x": x}, outputs={})


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([1, 255], np.int64), "uint8"),
        (np.array([7], np.uint8), "float32"),
        (np.array([1 << 53], np.int64), "float64"),
        (np.array([0.1]), "float32"),
        (np.array([np.nan, np.inf]), "float16"),
        ([], "int32"),
        (True, "bool"),
        (np.array([1.5, 2], object), "float32"),
    ],
)
def test_values_that_survive_are_cast(value: Any, dtype: str) -> None:
    array = prepare_inputs(value, _info(dtype))["x"]
    assert array.dtype.name == dtype
    np.testing.assert_allclose(array, np.asarray(value, array.dtype), rtol=1e-7)


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (np.array([256]), "uint8"),
        (np.array([-1]), "uint64"),
        (np.array([(1 << 53) + 1], np.int64), "float64"),
        (np.array([(1 << 24) + 1], np.int32), "float32"),
        (np.array([1.0]), "int32"),
        (np.array([1]), "bool"),
        (np.array([True]), "float32"),
        (np.array([1e6]), "float16"),
        (np.array([1j]), "float32"),
        ("a", "int64"),
        (1, "string"),
        (np.array([None]), "float32"),
        (np.ma.array([1.0], mask=[True]), "float32"),
    ],
)
def test_values_that_would_change_are_not(value: Any, dtype: str) -> None:
    with pytest.raises(errors.InvalidInputError, match=f"[Ee]xpected {dtype}"):
        prepare_inputs(value, _info(dtype))


def test_the_asynchronous_model(fashion_server: RunningServer) -> None:
    async def run() -> tuple[int, ...]:
        async with connect_async(f"grpc://{fashion_server.grpc_address}") as client:
            model = await client.model("fashion", version=1)
            answer = await model.signatures.serving_default(np.zeros((2, 28, 28, 1)))
            return answer["probabilities"].shape

    assert asyncio.run(run()) == (2, 10)
