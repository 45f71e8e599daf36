"""What tasks are given: images with their signatures, image files, texts, and families of problems."""

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
from modelyard.training.tasks.inputs._problems import Family, FewShots, Sinusoids, nearest
from modelyard.training.tasks.inputs._titles import title_pairs, title_spellings

__all__ = [
    "ClassifierTask",
    "Family",
    "FashionImagesTask",
    "FewShots",
    "PIXELS",
    "SIDE",
    "Sinusoids",
    "as_floats",
    "edge_maps",
    "encode_variants",
    "nearest",
    "sums",
    "takes",
    "title_pairs",
    "title_spellings",
    "ways",
]
