"""Images, volumes and boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf

from modelyard.export.rewrites._integers import computed_as
from modelyard.export.rewrites._replay import Rule, emit
from modelyard.export.rewrites._values import constant

if TYPE_CHECKING:
    from tensorflow.core.framework.node_def_pb2 import NodeDef


def _resize(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """A resize as a product with a matrix for each axis: its kernel's answers to a single pixel."""
    images = tf.cast(inputs[0], tf.float32)
    sizes = constant(inputs[1])
    height, width = images.shape[1:3]
    if sizes is None or height is None or width is None:
        return None
    rows = _answers(node, inputs[2:], 0, height, int(sizes[0]))
    columns = _answers(node, inputs[2:], 1, width, int(sizes[1]))
    if rows is None or columns is None:
        return None
    channels = images.shape[3]
    tall = tf.linalg.matmul(rows, tf.reshape(images, [-1, height, width * channels]))
    wide = tf.linalg.matmul(columns, tf.reshape(tall, [-1, width, channels]))
    return tf.reshape(wide, [-1, int(sizes[0]), int(sizes[1]), channels])


def _answers(node: NodeDef, more: Sequence[tf.Tensor], axis: int, source: int, target: int) -> tf.Tensor:
    shape, size = ([1, source, 1, source], [target, 1]) if axis == 0 else ([1, 1, source, source], [1, target])
    pixels = np.eye(source, dtype=np.float32).reshape(shape)
    known = [constant(each) for each in more]
    if any(each is None for each in known):
        return None
    with tf.init_scope():
        if node.op == "ScaleAndTranslate":
            scale, shift = (
                np.where(np.arange(2) == axis, each, other) for each, other in zip(known, (1, 0), strict=True)
            )
            answers = tf.raw_ops.ScaleAndTranslate(
                images=pixels, size=size, scale=scale.astype(np.float32), translation=shift.astype(np.float32),
                kernel_type=node.attr["kernel_type"].s or b"lanczos3", antialias=node.attr["antialias"].b,
            )  # fmt: skip
        else:
            options = {name: node.attr[name].b for name in ("align_corners", "half_pixel_centers") if name in node.attr}
            answers = getattr(tf.raw_ops, node.op)(images=pixels, size=size, **options)
        matrix = answers.numpy().reshape(target, source)
    return tf.constant(matrix, tf.float32)


def _pool3d(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """Over height and width, then over depth; an average too, as borders of each axis count by themselves."""
    (x,) = inputs
    if node.attr["data_format"].s not in (b"", b"NDHWC"):
        raise ValueError(f"{node.op} ({node.name}) with channels first; make it with channels last")
    pool = tf.nn.max_pool2d if node.op == "MaxPool3D" else tf.nn.avg_pool2d
    size, step = (list(node.attr[name].list.i)[1:4] for name in ("ksize", "strides"))
    padding = node.attr["padding"].s.decode()
    shape = tf.shape(x)
    flat = tf.reshape(x, tf.stack([shape[0] * shape[1], shape[2], shape[3], x.shape[4] or shape[4]]))
    flat = pool(flat, size[1:], step[1:], padding)
    inner = tf.shape(flat)
    deep = tf.reshape(flat, tf.stack([shape[0], shape[1], inner[1] * inner[2], inner[3]]))
    deep = pool(deep, [size[0], 1], [step[0], 1], padding)
    depth = tf.shape(deep)[1]
    known = _pooled(x.shape.as_list(), size, step, padding)
    dynamic = [shape[0], depth, inner[1], inner[2], inner[3]]
    return tf.reshape(deep, tf.stack([dynamic[i] if one is None else one for i, one in enumerate(known)]))


def _pooled(shape: list[int | None], size: list[int], step: list[int], padding: str) -> list[int | None]:
    less = [0 if padding == "SAME" else each - 1 for each in size]
    inner = [
        None if each is None else -(-(each - cut) // by) for each, cut, by in zip(shape[1:4], less, step, strict=True)
    ]
    return [None, *inner, shape[4]]


def _patches(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """A convolution with kernels that each take one element."""
    (x,) = inputs
    (height, width), step, rate = (list(node.attr[name].list.i)[1:3] for name in ("ksizes", "strides", "rates"))
    count = height * width * x.shape[3]
    kernels = tf.constant(np.eye(count, dtype=np.float32).reshape(height, width, x.shape[3], count))
    found = tf.nn.conv2d(tf.cast(x, tf.float32), kernels, step, node.attr["padding"].s.decode(), dilations=rate)
    return tf.cast(found, x.dtype)


def _rgb_to_hsv(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    red, green, blue = tf.unstack(inputs[0], axis=-1)
    most = tf.maximum(red, tf.maximum(green, blue))
    spread = most - tf.minimum(red, tf.minimum(green, blue))
    divisor = tf.where(spread > 0, spread, tf.ones_like(spread))
    hue = tf.where(
        tf.equal(most, red),
        (green - blue) / divisor,
        tf.where(tf.equal(most, green), (blue - red) / divisor + 2.0, (red - green) / divisor + 4.0),
    )
    hue = tf.where(spread > 0, hue / 6.0, tf.zeros_like(hue))
    saturation = tf.where(most > 0, spread / tf.where(most > 0, most, tf.ones_like(most)), tf.zeros_like(most))
    return tf.stack([tf.where(hue < 0, hue + 1.0, hue), saturation, most], -1)


def _hsv_to_rgb(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    hue, saturation, value = tf.unstack(inputs[0], axis=-1)
    sixth = hue * 6.0
    parts = [tf.abs(sixth - 3.0) - 1.0, 2.0 - tf.abs(sixth - 2.0), 2.0 - tf.abs(sixth - 4.0)]
    colours = tf.stack([tf.minimum(tf.maximum(part, 0.0), 1.0) for part in parts], -1)
    saturation, value = saturation[..., tf.newaxis], value[..., tf.newaxis]
    return ((1.0 - saturation) + saturation * colours) * value


def _contrast(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    images, factor = inputs
    mean = tf.reduce_mean(images, [images.shape.rank - 3, images.shape.rank - 2], keepdims=True)
    return (images - mean) * factor + mean


def _saturate(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    hue, saturation, value = tf.unstack(_rgb_to_hsv(node, inputs), axis=-1)
    saturation = tf.minimum(tf.maximum(saturation * inputs[1], 0.0), 1.0)
    return _hsv_to_rgb(node, [tf.stack([hue, saturation, value], -1)])


def _turn_hue(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    hue, saturation, value = tf.unstack(_rgb_to_hsv(node, inputs), axis=-1)
    hue += inputs[1]
    return _hsv_to_rgb(node, [tf.stack([hue - tf.floor(hue), saturation, value], -1)])


def _crop_and_resize(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    images, boxes, which, size = inputs
    images = tf.cast(images, tf.float32)
    nearest = node.attr["method"].s == b"nearest"
    outside = node.attr["extrapolation_value"].f
    limits = tf.cast(tf.shape(images)[1:3] - 1, tf.float32)
    size = tf.cast(size, tf.float32)
    places = []
    for axis in (0, 1):
        low, high, steps = boxes[:, axis, tf.newaxis], boxes[:, axis + 2, tf.newaxis], size[axis]
        position = tf.range(tf.cast(steps, tf.int32))
        along = tf.cast(position, tf.float32) / tf.maximum(steps - 1.0, 1.0)
        # One row is in the middle of its box.
        along = tf.where(steps > 1.0, along, 0.5)
        places.append((low + (high - low) * along) * limits[axis])
    inside = [tf.logical_and(each >= 0.0, each <= limits[axis]) for axis, each in enumerate(places)]
    known = [tf.minimum(tf.maximum(each, 0.0), limits[axis]) for axis, each in enumerate(places)]

    def at(rows: tf.Tensor, columns: tf.Tensor) -> tf.Tensor:
        rows, columns = tf.cast(rows, tf.int32)[:, :, tf.newaxis], tf.cast(columns, tf.int32)[:, tf.newaxis, :]
        width = tf.shape(images)[2]
        image = which[:, tf.newaxis, tf.newaxis] * (tf.shape(images)[1] * width)
        pixels = tf.reshape(images, tf.stack([-1, tf.shape(images)[3]]))
        return tf.gather(pixels, image + rows * width + columns)

    if nearest:
        crops = at(*(tf.floor(each + 0.5) for each in known))
    else:
        low = [tf.floor(each) for each in known]
        high = [tf.math.ceil(each) for each in known]
        down = (known[0] - low[0])[:, :, tf.newaxis, tf.newaxis]
        right = (known[1] - low[1])[:, tf.newaxis, :, tf.newaxis]
        top = at(low[0], low[1]) * (1.0 - right) + at(low[0], high[1]) * right
        bottom = at(high[0], low[1]) * (1.0 - right) + at(high[0], high[1]) * right
        crops = top * (1.0 - down) + bottom * down
    seen = tf.logical_and(inside[0][:, :, tf.newaxis], inside[1][:, tf.newaxis, :])
    return tf.where(seen[..., tf.newaxis], crops, outside)


def _combined_nms(
    suppress: Callable[..., tuple[tf.Tensor, tf.Tensor]], node: NodeDef, inputs: Sequence[tf.Tensor]
) -> list[tf.Tensor]:
    """One suppression for each example and class, and the best of what they leave."""
    boxes, scores, each_most, all_most, overlap, least = inputs
    kinds = scores.shape[2]
    if kinds is None or scores.shape[1] is None:
        raise ValueError(f"{node.op} ({node.name}) of an unknown number of boxes or classes")
    per_class = constant(each_most)
    total = constant(all_most)
    if per_class is None or total is None:
        raise ValueError(f"{node.op} ({node.name}): how many boxes it gives is no constant")
    per_class, total = min(int(per_class), scores.shape[1]), int(total)
    shared = boxes.shape[2] == 1
    count = tf.shape(scores)[0]
    flat = tf.reshape(tf.transpose(scores, [0, 2, 1]), [-1, scores.shape[1]])

    def one(index: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        example, kind = index // kinds, index % kinds
        mine = tf.gather(boxes, example)
        mine = mine[:, 0] if shared else tf.gather(mine, kind, axis=1)
        own = tf.gather(flat, index)
        chosen, valid = suppress(mine, own, per_class, overlap, least)
        real = tf.range(per_class) < valid
        return tf.gather(mine, chosen), tf.where(real, tf.gather(own, chosen), -1.0), real

    specs = (
        tf.TensorSpec([per_class, 4], tf.float32), tf.TensorSpec([per_class], tf.float32),
        tf.TensorSpec([per_class], tf.bool),
    )  # fmt: skip
    left, points, real = tf.map_fn(one, tf.range(count * kinds), fn_output_signature=specs)
    every = kinds * per_class
    limit = min(total, every)
    points = tf.where(tf.reshape(real, [-1, every]), tf.reshape(points, [-1, every]), float("-inf"))
    best, places = tf.math.top_k(points, limit)
    there = best > float("-inf")
    picked = tf.gather(tf.reshape(left, [-1, every, 4]), places, batch_dims=1, axis=1)
    if node.attr["clip_boxes"].b:
        picked = tf.minimum(tf.maximum(picked, 0.0), 1.0)
    picked = tf.where(there[..., tf.newaxis], picked, 0.0)
    labels = tf.where(there, tf.cast(places // per_class, tf.float32), 0.0)
    wanted = min(total, kinds * int(constant(each_most))) if node.attr["pad_per_class"].b else total
    gap = wanted - limit
    results = [picked, tf.where(there, best, 0.0), labels]
    if gap > 0:
        results = [tf.pad(each, [[0, 0], [0, gap], *([[0, 0]] * (each.shape.rank - 2))]) for each in results]
    return [*results, tf.reduce_sum(tf.cast(there, tf.int32), 1)]


def _combined_nms_of_classes(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """tf2onnx has it for boxes that all classes share."""

    def suppress(
        boxes: tf.Tensor, scores: tf.Tensor, most: int, overlap: tf.Tensor, least: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        kept = tf.image.non_max_suppression(boxes, scores, most, overlap, least)
        count = tf.shape(kept)[0]
        return tf.reshape(tf.pad(kept, [[0, most - count]]), [most]), count

    return None if inputs[0].shape[2] == 1 else _combined_nms(suppress, node, inputs)


def _padded_nms(
    boxes: tf.Tensor, scores: tf.Tensor, most: int, overlap: tf.Tensor, least: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    found: tuple[tf.Tensor, tf.Tensor] = tf.image.non_max_suppression_padded(
        boxes, scores, most, overlap, least, pad_to_max_output_size=True
    )
    return found


def _cut_suppression(node: NodeDef, inputs: Sequence[tf.Tensor]) -> list[tf.Tensor]:
    """TFLite gives as many places as there may be at most, TensorFlow as many as it keeps."""
    padded = type(node).FromString(node.SerializeToString())
    padded.op = "NonMaxSuppressionV4" if node.op == "NonMaxSuppressionV3" else node.op
    padded.attr["pad_to_max_output_size"].b = True
    *results, count = emit(padded, inputs).outputs
    kept = [each[:count] for each in results]
    return kept if node.op == "NonMaxSuppressionV3" else [*kept, count]


def _is_cut(node: NodeDef) -> bool:
    return node.op == "NonMaxSuppressionV3" or not node.attr["pad_to_max_output_size"].b


def _soft_suppression(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    sigma = constant(inputs[5])
    if sigma is None or sigma > 0:
        raise ValueError(f"{node.op} ({node.name}) with soft_nms_sigma, which ONNX has not; use hard suppression (0.0)")


def _dilated_transpose(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    """TFLite's transposed convolution has no dilation: zeros between the elements of the kernel are the same."""
    shape, kernel, x = inputs
    rates = list(node.attr["dilations"].list.i)[1:3]
    for axis, rate in enumerate(rates):
        length = kernel.shape[axis]
        spaced = tf.concat(
            [tf.expand_dims(kernel, axis + 1), *[tf.zeros_like(tf.expand_dims(kernel, axis + 1))] * (rate - 1)],
            axis + 1,
        )
        sizes = kernel.shape.as_list()
        sizes[axis] = length * rate
        ends = [-1] * 4
        ends[axis] = (length - 1) * rate + 1
        kernel = tf.slice(tf.reshape(spaced, sizes), [0] * 4, ends)
    other = type(node).FromString(node.SerializeToString())
    other.attr["dilations"].list.i[:] = [1, 1, 1, 1]
    return emit(other, [shape, kernel, x]).outputs[0]


def _convolution(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor | None:
    """Of float64, of which onnxruntime has none; and with a dilation, of images whose sizes are not known.

    tf2onnx leaves the padding of these to the runtime, and onnxruntime has none for a dilation.
    """
    x, kernel = inputs
    if x.dtype == tf.float64:
        return computed_as(node, inputs, tf.float32)
    if None not in x.shape[1:3]:
        return None
    rates = node.attr["dilations"].list.i[1:3]
    more = [rate * (size - 1) for rate, size in zip(rates, kernel.shape[:2], strict=True)]
    other = type(node).FromString(node.SerializeToString())
    other.attr["padding"].s = b"VALID"
    padded = tf.pad(x, [[0, 0], *([size // 2, size - size // 2] for size in more), [0, 0]])
    return emit(other, [padded, kernel]).outputs[0]


def _is_convolution_to_change(node: NodeDef) -> bool:
    padded = node.attr["padding"].s == b"SAME" and max(node.attr["strides"].list.i) == 1
    return node.attr["T"].type == tf.float64.as_datatype_enum or (padded and _is_dilated(node))


def _space_to_batch(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, blocks, pads = inputs[0], *map(constant, inputs[1:])
    if blocks is None or pads is None or len(blocks) < 3:
        return None
    rank = x.shape.rank
    x = tf.pad(x, [[0, 0], *pads.tolist(), *[[0, 0]] * (rank - 1 - len(blocks))])
    # The last axis first: TensorFlow counts the places in a block in the order of the axes.
    for axis in range(len(blocks), 0, -1):
        block, shape = int(blocks[axis - 1]), _sizes(x)
        x = tf.reshape(
            x, tf.stack([shape[0], _product(shape[1:axis]), shape[axis] // block, block, _product(shape[axis + 1 :])])
        )
        x = tf.transpose(x, [3, 0, 1, 2, 4])
        x = tf.reshape(x, tf.stack([-1, *shape[1:axis], shape[axis] // block, *shape[axis + 1 :]]))
    return x


def _batch_to_space(node: NodeDef, inputs: Sequence[tf.Tensor]) -> tf.Tensor:
    x, blocks, crops = inputs[0], *map(constant, inputs[1:])
    if blocks is None or crops is None or len(blocks) < 3:
        return None
    for axis in range(1, len(blocks) + 1):
        block, shape = int(blocks[axis - 1]), _sizes(x)
        x = tf.reshape(x, tf.stack([block, -1, _product(shape[1:axis]), shape[axis], _product(shape[axis + 1 :])]))
        x = tf.transpose(x, [1, 2, 3, 0, 4])
        x = tf.reshape(x, tf.stack([-1, *shape[1:axis], shape[axis] * block, *shape[axis + 1 :]]))
    begin = [0, *crops[:, 0].tolist(), *[0] * (x.shape.rank - 1 - len(blocks))]
    shape = _sizes(x)
    ends = [-1] * x.shape.rank
    for axis, (low, high) in enumerate(crops.tolist(), 1):
        ends[axis] = shape[axis] - low - high
    return tf.slice(x, begin, tf.stack(ends))


def _sizes(x: tf.Tensor) -> list[tf.Tensor]:
    actual = tf.shape(x)
    return [actual[i] if size is None else size for i, size in enumerate(x.shape.as_list())]


def _product(sizes: Sequence[tf.Tensor]) -> tf.Tensor:
    product: tf.Tensor = 1
    for size in sizes:
        product = product * size
    return product


def _is_dilated(node: NodeDef) -> bool:
    return any(each > 1 for each in node.attr["dilations"].list.i)


def _has_other_kernel(node: NodeDef) -> bool:
    """Than those of which ONNX has a resize."""
    return node.attr["kernel_type"].s not in (b"triangle", b"keyscubic") or not node.attr["antialias"].b


_BOTH = {
    "AdjustHue": Rule(_turn_hue),
    "AdjustSaturation": Rule(_saturate),
    "CropAndResize": Rule(_crop_and_resize),
    "ExtractImagePatches": Rule(_patches),
    "HSVToRGB": Rule(_hsv_to_rgb),
    "RGBToHSV": Rule(_rgb_to_hsv),
    "ResizeArea": Rule(_resize),
}
TFLITE = {
    **_BOTH,
    "AdjustContrastv2": Rule(_contrast),
    "AvgPool3D": Rule(_pool3d),
    "CombinedNonMaxSuppression": Rule(partial(_combined_nms, _padded_nms)),
    "BatchToSpaceND": Rule(_batch_to_space),
    "Conv2DBackpropInput": Rule(_dilated_transpose, _is_dilated),
    "MaxPool3D": Rule(_pool3d),
    **{f"NonMaxSuppressionV{version}": Rule(_cut_suppression, _is_cut) for version in (3, 4, 5)},
    "ResizeBicubic": Rule(_resize),
    "ScaleAndTranslate": Rule(_resize),
    "SpaceToBatchND": Rule(_space_to_batch),
}
ONNX = {
    **_BOTH,
    "CombinedNonMaxSuppression": Rule(_combined_nms_of_classes),
    "Conv2D": Rule(_convolution, _is_convolution_to_change),
    "DepthwiseConv2dNative": Rule(_convolution, _is_convolution_to_change),
    "NonMaxSuppressionV5": Rule(_soft_suppression),
    "ResizeBicubic": Rule(_resize),
    "ScaleAndTranslate": Rule(_resize, _has_other_kernel),
}
