from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.errors import ConfigurationError, DatasetNotFoundError, TrainingError
from modelyard.training import InputRequest
from modelyard.training.data import FashionMnist, load_mnist, memory_images


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty Keras cache, and a network that cannot be reached."""
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))
    # It keeps the proxies of its first call: they must be looked up now, and again later.
    monkeypatch.setattr("urllib.request._opener", None)
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    folder = tmp_path / "keras" / "datasets"
    folder.mkdir(parents=True)
    return folder


def save(path: Path, data: FashionMnist, **changes: Any) -> Path:
    """The real images of another data set of the same shape, in MNIST's file format."""
    arrays = {
        "x_train": data.train_images,
        "y_train": data.train_labels,
        "x_test": data.test_images,
        "y_test": data.test_labels,
    }
    np.savez(path, **{**arrays, **changes})
    return path


def test_a_local_file_works(cache: Path, tmp_path: Path, subset: FashionMnist) -> None:
    data = load_mnist(path=save(tmp_path / "digits.npz", subset))
    np.testing.assert_array_equal(data.train_images, subset.train_images)
    assert data.class_names == tuple("0123456789")
    assert data.source.endswith("2,000 + 1,000 images")
    images, labels = next(
        iter(memory_images(data, "test").batches(InputRequest(batch_size=50, skip_batches=2), training=False))
    )
    np.testing.assert_array_equal(labels, subset.test_labels[100:150])
    np.testing.assert_allclose(images[..., 0], subset.test_images[100:150] / 255.0, rtol=1e-6)


def test_it_is_found_in_the_cache_and_in_the_named_folder(
    cache: Path, tmp_path: Path, subset: FashionMnist, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(cache / "mnist.npz", subset)
    assert str(cache / "mnist.npz") in load_mnist().source
    (tmp_path / "named" / "mnist").mkdir(parents=True)
    named = save(tmp_path / "named" / "mnist" / "mnist.npz", subset)
    monkeypatch.setenv("MODELYARD_DATA", str(tmp_path / "named"))
    assert str(named) in load_mnist().source


def test_without_a_copy_the_error_says_what_to_do(cache: Path, tmp_path: Path) -> None:
    with pytest.raises(DatasetNotFoundError) as caught:
        load_mnist(allow_download=False)
    for part in (str(cache / "mnist.npz"), "not allowed", "put mnist.npz (https://", "network connection", "fashion"):
        assert part in caught.value.message
    with pytest.raises(DatasetNotFoundError, match="nowhere.npz: no such file"):
        load_mnist(path=tmp_path / "nowhere.npz")
    with pytest.raises(DatasetNotFoundError, match="no such file"):
        load_mnist(path=cache)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x_train": np.zeros((4, 28, 28), np.float32)}, "x_train has dtype float32"),
        ({"y_test": np.full(1000, 11, np.uint8)}, "y_test has dtype uint8"),
        ({"x_test": np.array([{}])}, "cannot be read as MNIST"),
    ],
)
def test_another_file_is_an_error(changes: dict[str, Any], message: str, tmp_path: Path, subset: FashionMnist) -> None:
    with pytest.raises(TrainingError, match=message):
        load_mnist(path=save(tmp_path / "mnist.npz", subset, **changes))


def test_a_damaged_file_and_a_wrong_split_are_errors(tmp_path: Path, subset: FashionMnist) -> None:
    path = save(tmp_path / "mnist.npz", subset)
    data = load_mnist(path=path)
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(TrainingError, match="cannot be read as MNIST"):
        load_mnist(path=path)
    with path.open("wb") as file:
        np.save(file, data.train_images)
    with pytest.raises(TrainingError, match="cannot be read as MNIST: it is one array"):
        load_mnist(path=path)
    with zipfile.ZipFile(path, "w") as archive:
        for name in ("x_train", "y_train", "x_test", "y_test"):
            archive.writestr(name, "text")
    with pytest.raises(TrainingError, match="is not MNIST: x_train has dtype"):
        load_mnist(path=path)
    np.savez_compressed(path, x_train=np.random.default_rng(0).integers(0, 255, 9000, np.uint8))
    content = bytearray(path.read_bytes())
    content[60:4000] = bytes(each ^ 0x5A for each in content[60:4000])
    path.write_bytes(content)
    with pytest.raises(TrainingError, match="cannot be read as MNIST"):
        load_mnist(path=path)
    with pytest.raises(ConfigurationError, match="Unknown split 'all'"):
        memory_images(data, "all")  # type: ignore[arg-type]
