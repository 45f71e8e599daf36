"""What several tasks are given: images with their signatures, image files, and texts."""

from modelyard.training.tasks.inputs._encode import encode_variants
from modelyard.training.tasks.inputs._images import (
    PIXELS,
    SIDE,
    ClassifierTask,
    FashionImagesTask,
    as_floats,
    edge_maps,
    sums,
    takes,
    ways,
)
from modelyard.training.tasks.inputs._titles import title_pairs, title_spellings

__all__ = [
    "ClassifierTask",
    "FashionImagesTask",
    "PIXELS",
    "SIDE",
    "as_floats",
    "edge_maps",
    "encode_variants",
    "sums",
    "takes",
    "title_pairs",
    "title_spellings",
    "ways",
]
