"""Networks over graphs, sets and other things in segments."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from benchmarks.zoo._kind import floats, integers, kind, module, named, spec, weights


def _one_graph(rng: Any, n: int) -> Any:
    nodes = int(rng.integers(4, 9))
    edges = int(rng.integers(5, 12))
    return {
        "nodes": rng.normal(size=(nodes, 4)).astype(np.float32),
        "edges": rng.integers(0, nodes, (edges, 2)).astype(np.int32),
    }


@kind(_one_graph, batch=False)
def message_passing() -> Any:
    """Graph network on one graph: gather and unsorted segment sums."""
    w, own = weights(4, 4), weights(4, 4)

    def serve(nodes: Any, edges: Any) -> Any:
        for _ in range(2):
            sent = tf.gather(nodes @ w, edges[:, 0])
            nodes = tf.nn.relu(nodes @ own + tf.math.unsorted_segment_sum(sent, edges[:, 1], tf.shape(nodes)[0]))
        return nodes

    return module(serve, spec(None, 4), spec(None, 2, dtype=tf.int32), w=w, own=own)


@kind(named(nodes=floats(6, 4), edges=integers(6, 9, 2)))
def graph_batch() -> Any:
    """Graph network on a batch of graphs of equal size."""
    w = weights(4, 4)

    def serve(nodes: Any, edges: Any) -> Any:
        count = tf.shape(nodes)[0]
        sent = tf.gather(nodes, edges[..., 0], batch_dims=1)
        target = edges[..., 1] + 6 * tf.range(count)[:, None]
        summed = tf.math.unsorted_segment_sum(tf.reshape(sent, [-1, 4]), tf.reshape(target, [-1]), count * 6)
        return tf.reduce_mean(tf.tanh((tf.reshape(summed, [-1, 6, 4]) + nodes) @ w), 1)

    return module(serve, spec(None, 6, 4), spec(None, 9, 2, dtype=tf.int32), w=w)


@kind(named(nodes=floats(5, 4), adjacent=lambda rng, n: (rng.random((n, 5, 5)) > 0.5).astype(np.float32)))
def graph_attention() -> Any:
    """Graph attention over an adjacency matrix."""
    w, left, right = weights(4, 4), weights(4, 1), weights(1, 4)

    def serve(nodes: Any, adjacent: Any) -> Any:
        h = nodes @ w
        scores = tf.nn.leaky_relu(h @ left + tf.linalg.matrix_transpose(h @ tf.transpose(right)))
        return tf.nn.softmax(tf.where(adjacent + tf.eye(5) > 0, scores, -1e9)) @ h

    return module(serve, spec(None, 5, 4), spec(None, 5, 5), w=w, left=left, right=right)


@kind(floats(7, 3))
def point_cloud() -> Any:
    """Set of points: pairwise distances, nearest, pooled (PointNet)."""
    w = weights(6, 4)

    def serve(points: Any) -> Any:
        far = tf.norm(points[:, :, None] - points[:, None] + 1e-6, axis=-1)
        near = tf.gather(points, tf.math.top_k(-far, 3).indices, batch_dims=1)
        middle = tf.reduce_mean(near, 2)
        return tf.reduce_max(tf.nn.relu(tf.concat([points, middle], -1) @ w), 1)

    return module(serve, spec(None, 7, 3), w=w)


def _segments(rng: Any, n: int) -> Any:
    rows = int(rng.integers(6, 12))
    segments = np.sort(rng.integers(0, 4, rows)).astype(np.int32)
    return {"values": rng.normal(size=(rows, 3)).astype(np.float32), "segments": segments}


@kind(_segments, batch=False)
def segment_statistics() -> Any:
    """Mean and maximum by sorted segments."""

    def serve(values: Any, segments: Any) -> Any:
        return {"mean": tf.math.segment_mean(values, segments), "largest": tf.math.segment_max(values, segments)}

    return module(serve, spec(None, 3), spec(None, dtype=tf.int32))


def _bag(rng: Any, n: int) -> Any:
    lengths = rng.integers(1, 4, n)
    return {
        "ids": rng.integers(0, 20, int(lengths.sum())).astype(np.int32),
        "splits": np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
    }


@kind(_bag, batch=False)
def embedding_bag() -> Any:
    """Embedding bag over ragged ids, given by their row splits."""
    table = weights(20, 4)

    def serve(ids: Any, splits: Any) -> Any:
        return tf.reduce_mean(tf.gather(table, tf.RaggedTensor.from_row_splits(ids, splits)), 1)

    return module(serve, spec(None, dtype=tf.int32), spec(None, dtype=tf.int64), table=table)
