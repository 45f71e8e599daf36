"""Detection and retrieval: boxes, and outputs of as many rows as are found."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, kind, module, named, spec, weights

layers = keras.layers


def _boxes(rng: Any, n: int) -> Any:
    corners = rng.random((n, 10, 2))
    return np.concatenate([corners, corners + rng.uniform(0.1, 0.4, (n, 10, 2))], -1).astype(np.float32)


def _scores(rng: Any, n: int) -> Any:
    return rng.random((n, 10, 2)).astype(np.float32)


@kind(named(boxes=_boxes, scores=_scores))
def combined_nms() -> Any:
    """Combined non-max suppression of a batch."""

    def serve(boxes: Any, scores: Any) -> Any:
        found = tf.image.combined_non_max_suppression(boxes[:, :, None], scores, 5, 5, 0.5, 0.3)
        return dict(zip(("kept_boxes", "kept_scores", "classes", "valid"), found, strict=True))

    return module(serve, spec(None, 10, 4), spec(None, 10, 2))


@kind(named(boxes=lambda rng, n: _boxes(rng, 1)[0], scores=lambda rng, n: _scores(rng, 1)[0, :, 0]), batch=False)
def single_nms() -> Any:
    """Non-max suppression of one image, as many boxes as are kept."""

    def serve(boxes: Any, scores: Any) -> Any:
        kept = tf.image.non_max_suppression(boxes, scores, 5, 0.5, 0.3)
        return {"kept": kept, "chosen": tf.gather(boxes, kept)}

    return module(serve, spec(10, 4), spec(10))


@kind(named(boxes=_boxes, scores=_scores))
def padded_nms() -> Any:
    """Padded non-max suppression of a batch."""

    def serve(boxes: Any, scores: Any) -> Any:
        kept, valid = tf.image.non_max_suppression_padded(
            boxes, scores[..., 0], 5, 0.5, 0.3, pad_to_max_output_size=True, sorted_input=False
        )
        return {"kept": kept, "valid": valid}

    return module(serve, spec(None, 10, 4), spec(None, 10, 2))


@kind(floats(16, 16, 3))
def ssd_heads() -> Any:
    """Single-shot detector: boxes decoded from anchors of two scales."""
    x = keras.Input((16, 16, 3), name="image")
    fine = layers.Conv2D(4, 3, 2, "same", activation="relu")(x)
    coarse = layers.Conv2D(4, 3, 2, "same", activation="relu")(fine)
    raw = [layers.Reshape((-1, 6))(layers.Conv2D(12, 1)(each)) for each in (fine, coarse)]
    found = keras.ops.concatenate(raw, 1)
    anchors = keras.ops.convert_to_tensor(np.random.default_rng(0).random((160, 4)).astype(np.float32))
    sizes = keras.ops.exp(0.2 * found[..., 2:4]) * anchors[:, 2:]
    boxes = keras.ops.concatenate([0.1 * found[..., :2] + anchors[:, :2], sizes], -1)
    return keras.Model(x, {"boxes": boxes, "scores": keras.ops.softmax(found[..., 4:])})


@kind(named(image=floats(12, 12, 3), boxes=lambda rng, n: _boxes(rng, n)[:, 0]))
def crop_and_resize() -> Any:
    """Regions cut out and resized, one for each image."""

    def serve(image: Any, boxes: Any) -> Any:
        return tf.image.crop_and_resize(image, boxes, tf.range(tf.shape(image)[0]), [4, 4])

    return module(serve, spec(None, 12, 12, 3), spec(None, 4))


@kind(floats(8, 8, 3))
def peaks() -> Any:
    """Heat map: peaks by max pooling, the best four and their places."""
    w = weights(3, 3, 3, 1)

    def serve(image: Any) -> Any:
        heat = tf.nn.conv2d(image, w, 1, "SAME")
        peak = tf.where(tf.equal(heat, tf.nn.max_pool2d(heat, 3, 1, "SAME")), heat, 0.0)
        score, place = tf.math.top_k(tf.reshape(peak, [-1, 64]), 4)
        return {"score": score, "row": place // 8, "column": place % 8}

    return module(serve, spec(None, 8, 8, 3), w=w)


@kind(floats(5))
def nearest_neighbours() -> Any:
    """Nearest neighbours in an index of vectors."""
    index = weights(30, 5)

    def serve(query: Any) -> Any:
        far = tf.reduce_sum(tf.square(query[:, None] - index), -1)
        distance, place = tf.math.top_k(-far, 3)
        return {"distance": -distance, "place": place}

    return module(serve, spec(None, 5), index=index)


@kind(floats(4))
def kept_rows() -> Any:
    """Rows above a threshold: as many as there are."""
    w = weights(4, 3)
    return module(lambda x: tf.boolean_mask(x, x[:, 0] > 0) @ w, spec(None, 4), w=w)
