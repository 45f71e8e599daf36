"""Data sets and input functions. Loading needs only numpy; ``tf.data`` comes in with the input functions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from modelyard.training._lazy import load_attribute
from modelyard.training.data._fashion_mnist import FashionMnist, load_fashion_mnist

if TYPE_CHECKING:
    from modelyard.training.data._datasets import fashion_dataset

_LAZY = {"fashion_dataset": "modelyard.training.data._datasets"}

__all__ = ["FashionMnist", "fashion_dataset", "load_fashion_mnist"]


def __getattr__(name: str) -> Any:
    return load_attribute(__name__, _LAZY, name)
