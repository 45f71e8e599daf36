"""Models that live in this process: of Keras, and modules with functions of TensorFlow."""

from modelyard.export.live._keras import KERAS_FILES, keras_signatures, load_keras_model
from modelyard.export.live._module import module_signatures
from modelyard.export.live._specs import is_input, parse_input

__all__ = ["KERAS_FILES", "is_input", "keras_signatures", "load_keras_model", "module_signatures", "parse_input"]
