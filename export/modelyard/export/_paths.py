"""Where each format, and each variant of it, is in a version directory. No TensorFlow here."""

from __future__ import annotations

ONNX_FOLDER = "onnx"
TFLITE_NAME = "model.tflite"


def format_path(format: str, precision: str = "float32") -> str:
    """The file or folder of a format or variant, relative to the version directory.

    The names of the float32 files are those that other servers look for; a
    variant is where none of them looks by itself.

    Args:
        format: ``saved_model``, ``onnx`` or ``tflite``.
        precision: Of the variant. ``bfloat16`` is a way to compute the float32 files.
    """
    if format == "saved_model":
        return "."
    plain = precision in ("float32", "bfloat16")
    if format == "onnx":
        return ONNX_FOLDER if plain else f"{ONNX_FOLDER}/{precision}"
    return TFLITE_NAME if plain else f"model.{precision}.tflite"
