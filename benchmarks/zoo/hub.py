"""Architectures of keras-hub, small, with random weights. Without keras-hub they are skipped."""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from benchmarks.zoo._kind import kind

SETTINGS: dict[str, Any] = {"needs": ("keras_hub",), "options": {"max_abs_error": 1e-4}, "tolerance": 1e-3}
_TEXT = {"vocabulary_size": 40, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
_LLAMA = {
    "vocabulary_size": 40, "num_layers": 2, "num_query_heads": 2, "num_key_value_heads": 1, "hidden_dim": 8,
    "intermediate_dim": 16,
}  # fmt: skip


def _tokens(ids: str = "token_ids", mask: str = "padding_mask", **more: int) -> Any:
    """Tokens of a length that differs from call to call, with a mask of padding behind them."""

    def sample(rng: Any, n: int) -> Any:
        length = int(rng.integers(4, 11))
        arrays = {ids: rng.integers(1, 40, (n, length)).astype(np.int32)}
        if mask:
            arrays[mask] = (np.arange(length) < rng.integers(2, length + 1, (n, 1))).astype(np.int32)
        return arrays | {name: rng.integers(0, high, (n, length)).astype(np.int32) for name, high in more.items()}

    return sample


def _pairs(rng: Any, n: int) -> Any:
    """Tokens of an encoder and of a decoder."""
    encoder, decoder = ("encoder_token_ids", "encoder_padding_mask"), ("decoder_token_ids", "decoder_padding_mask")
    return _tokens(*encoder)(rng, n) | _tokens(*decoder)(rng, n)


def _images(size: int) -> Any:
    return lambda rng, n: rng.normal(size=(n, size, size, 3)).astype(np.float32)


def _make(name: str, **settings: Any) -> Any:
    """A backbone whose weights are large enough for answers to differ: keras-hub begins with a deviation of 0.02."""
    backbone = getattr(importlib.import_module("keras_hub").models, name)(**settings)
    rng = np.random.default_rng(0)
    for variable in backbone.trainable_variables:
        if len(variable.shape) > 1:
            variable.assign(rng.normal(0.0, 0.2, variable.shape))
    return backbone


@kind(_tokens(segment_ids=2), **SETTINGS)
def hub_bert() -> Any:
    """BERT."""
    return _make("BertBackbone", **_TEXT, max_sequence_length=16)


@kind(_tokens(), **SETTINGS)
def hub_distil_bert() -> Any:
    """DistilBERT."""
    return _make("DistilBertBackbone", **_TEXT, max_sequence_length=16)


@kind(_tokens(segment_ids=2), **SETTINGS)
def hub_albert() -> Any:
    """ALBERT."""
    return _make("AlbertBackbone", **_TEXT, embedding_dim=6, max_sequence_length=16)


@kind(_tokens(), **SETTINGS)
def hub_deberta() -> Any:
    """DeBERTa V3."""
    return _make("DebertaV3Backbone", **_TEXT, max_sequence_length=16, bucket_size=8)


@kind(_tokens(mask="", segment_ids=4), **SETTINGS)
def hub_fnet() -> Any:
    """FNet."""
    sizes = {name: size for name, size in _TEXT.items() if name != "num_heads"}
    return _make("FNetBackbone", **sizes, max_sequence_length=16)


@kind(_tokens(), **SETTINGS)
def hub_gpt2() -> Any:
    """GPT-2."""
    return _make("GPT2Backbone", **_TEXT, max_sequence_length=16)


@kind(_tokens(), **SETTINGS)
def hub_bloom() -> Any:
    """BLOOM."""
    return _make("BloomBackbone", **_TEXT)


@kind(_tokens(), **SETTINGS)
def hub_llama() -> Any:
    """Llama."""
    return _make("LlamaBackbone", **_LLAMA)


@kind(_tokens(), **SETTINGS)
def hub_gemma() -> Any:
    """Gemma."""
    return _make("GemmaBackbone", **_LLAMA, head_dim=4)


@kind(_pairs, **SETTINGS)
def hub_t5() -> Any:
    """T5, encoder and decoder."""
    return _make("T5Backbone", **_TEXT)


@kind(_pairs, **SETTINGS)
def hub_bart() -> Any:
    """BART, encoder and decoder."""
    return _make("BartBackbone", **_TEXT, max_sequence_length=16)


@kind(lambda rng, n: rng.normal(size=(n, 24, 10)).astype(np.float32), **SETTINGS)
def hub_whisper_encoder() -> Any:
    """Whisper's encoder."""
    import keras

    backbone = _make(
        "WhisperBackbone", **_TEXT, num_mels=10, max_encoder_sequence_length=24, max_decoder_sequence_length=8
    )
    return keras.Model(backbone.input["encoder_features"], backbone.output["encoder_sequence_output"])


@kind(_images(16), **SETTINGS)
def hub_vit() -> Any:
    """Vision transformer."""
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    return _make("ViTBackbone", image_shape=(16, 16, 3), patch_size=(4, 4), **sizes)


@kind(_images(32), **SETTINGS)
def hub_resnet() -> Any:
    """ResNet with its own kind of blocks."""
    return _make(
        "ResNetBackbone", input_conv_filters=[64], input_conv_kernel_sizes=[3], stackwise_num_filters=[64, 64],
        stackwise_num_blocks=[1, 1], stackwise_num_strides=[1, 2], block_type="basic_block", image_shape=(32, 32, 3),
    )  # fmt: skip


@kind(_images(32), **SETTINGS)
def hub_swin() -> Any:
    """Swin transformer."""
    sizes = {"embed_dim": 8, "depths": (2, 2), "num_heads": (2, 2), "window_size": 4}
    return _make("SwinTransformerBackbone", image_shape=(32, 32, 3), **sizes)
