"""What reads files, images and tensors, and malformed input to that, in this process."""

from __future__ import annotations

import functools
import gc
import io
import json
import random
import struct
import time
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import psutil
from PIL import Image

from benchmarks.torture.cases import Result, Scratch, Target, case, expect
from benchmarks.torture.runner import MAX_GROWTH_MB
from modelyard.artifact import (
    LABELS_NAME,
    MANIFEST_NAME,
    ExampleDecode,
    FeatureSpec,
    decode_examples,
    decode_image,
    parse_manifest,
    read_labels,
)
from modelyard.errors import ModelyardError
from modelyard.serving.config import read_text_proto
from modelyard.serving.servables import release_memory
from modelyard.wire import frame_record, read_records, serving_pb2, tensor_to_array, tensorflow_pb2
from tests.contract.test_rest_abuse import CASES as SMALL_BODIES
from tests.contract.test_rest_abuse import post
from tests.support.forms import mutated
from tests.support.models import publish_affine

_WORDS = [b"[" * 5000, b'{"a":' * 3000, b"9" * 5000, b"\\ud800", b"\0", b"\xff\xfe", b"-1", b"1e999", b"null", b'"']


#: Good content, and what reads it: it may refuse with an error of ours, and raise nothing else.
Reader = tuple[list[bytes], Callable[[bytes], Any]]


def broken(scratch: Scratch, seeds: list[bytes], read: Callable[[bytes], Any]) -> Result:
    """Breaks seeds for a while; a reader may refuse with an error of ours, within a second, and keeps nothing."""
    rng, count, refused, slowest = random.Random(25), 0, Counter[str](), 0.0
    # As a server does: glibc keeps freed megabytes, more of them in a process that did other things before.
    gc.collect()
    release_memory()
    before = psutil.Process().memory_info().rss
    end = time.monotonic() + scratch.count(8, 0) + 0.1
    while time.monotonic() < end:
        content = mutated(rng, rng.choice(seeds), _WORDS)
        started = time.thread_time()
        try:
            read(content)
        except ModelyardError as exc:
            refused[type(exc).__name__] += 1
        except Exception as exc:
            expect(False, f"{type(exc).__name__}: {exc} for {content[:300]!r}")
        took = time.thread_time() - started
        slowest = max(slowest, took)
        expect(took < 1, f"{took:.1f} s of the processor for {content[:300]!r}")
        count += 1
    gc.collect()
    release_memory()
    growth = (psutil.Process().memory_info().rss - before) / 1e6
    expect(growth < MAX_GROWTH_MB, f"{growth:.0f} MB stay")
    text = ", ".join(f"{name}: {number:,}" for name, number in refused.most_common())
    return Result(inputs=count, text=text, figures={"slowest_ms": 1e3 * slowest})


def manifests(folder: Path) -> Reader:
    """Of a version that is served; and without its checksum, for whatever is broken there is read."""
    seed = (publish_affine(folder / "m", slope=2.0, intercept=1.0).path / MANIFEST_NAME).read_bytes()
    document = json.loads(seed)
    del document["sha256"]
    return [seed, json.dumps(document).encode()], lambda data: parse_manifest(data, Path("m"))


def labels(folder: Path) -> Reader:
    """A small file beside the versions."""

    def read(content: bytes) -> None:
        (folder / LABELS_NAME).write_bytes(content)
        read_labels(folder)

    return [b'{"stable": 3, "canary": 12}'], read


def text_protos(folder: Path) -> Reader:
    """Protobuf's text format."""
    seed = b"""model_config_list { config { name: "a" base_path: "/m" model_platform: "tensorflow"
      model_version_policy { specific { versions: 1 versions: 2 } } version_labels { key: "stable" value: 1 } } }"""
    path = folder / "models.config"

    def read(content: bytes) -> None:
        path.write_bytes(content)
        read_text_proto(path, serving_pb2.ModelServerConfig(), flag="--model_config_file")

    return [seed], read


def records(folder: Path) -> Reader:
    """TFRecords, whose lengths and checksums are wrong."""
    path = folder / "records"
    seed = frame_record(b"abc" * 30) + frame_record(b"")

    def read(content: bytes) -> None:
        path.write_bytes(content)
        list(read_records(path))

    return [seed], read


def examples(folder: Path) -> Reader:
    """Messages with a feature of each kind."""
    example = tensorflow_pb2.Example()
    example.features.feature["x"].float_list.value.extend([1, 2, 3])
    example.features.feature["n"].int64_list.value.append(-5)
    example.features.feature["s"].bytes_list.value.append(b"abc")
    specs = [("x", "float32", (3,)), ("n", "int64", ()), ("s", "string", ())]
    features = [FeatureSpec(name=name, dtype=dtype, shape=shape) for name, dtype, shape in specs]
    decode = ExampleDecode(input="inputs", features=tuple(features))
    return [example.SerializeToString()], lambda data: decode_examples([data, data], decode)


def tensors(folder: Path) -> Reader:
    """Its rules of shapes, contents and values."""
    seeds = []
    contents = {dtype: b"\1" * 3 * size for dtype, size in {1: 4, 2: 8, 3: 4, 4: 1, 9: 8, 10: 1, 14: 2, 19: 2}.items()}
    for dtype, content in {**contents, 7: b"\1\1\1abc"}.items():
        tensor = tensorflow_pb2.TensorProto(tensor_content=content)
        tensor.ParseFromString(tensor.SerializeToString() + bytes([8, dtype]))
        tensor.tensor_shape.dim.add(size=3)
        tensor.tensor_shape.dim.add(size=1)
        seeds.append(tensor.SerializeToString())

    def read(content: bytes) -> None:
        try:
            tensor = tensorflow_pb2.TensorProto.FromString(content)
        except Exception:
            # Protobuf's own reader refuses it.
            return
        tensor_to_array(tensor)

    return seeds, read


def _png(width: int, height: int, pixels: bytes) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    parts = [(b"IHDR", head), (b"IDAT", zlib.compress(pixels)), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(kind, data) for kind, data in parts)


def images(folder: Path) -> Reader:
    """Five formats, broken; and a tiny file that claims 63 million pixels."""
    seeds = [_png(9000, 7000, b"\0" * 100)]
    for kind in ("JPEG", "PNG", "BMP", "GIF", "WEBP"):
        file = io.BytesIO()
        Image.fromarray(np.arange(1200, dtype=np.uint8).reshape(20, 20, 3)).save(file, kind)
        seeds.append(file.getvalue())
    return seeds, lambda data: decode_image(data, 3)


#: By what is read, what makes a reader, given a folder for its files.
READERS: Mapping[str, Callable[[Path], Reader]] = {
    "manifest.json": manifests,
    "labels.json": labels,
    "model config files": text_protos,
    "warm-up files": records,
    "tf.Example": examples,
    "TensorProto": tensors,
    "images": images,
}


def _break(make: Callable[[Path], Reader], scratch: Scratch) -> Result:
    return broken(scratch, *make(scratch.folder))


for _name, _make in READERS.items():
    case("malformed", f"{_name}, in process", own=True)(functools.partial(_break, _make))


@case("malformed", "small bodies that once held everybody up", transports=("native", "python"), short=False)
def small_bodies(target: Target) -> Result:
    """Those of tests/contract/test_rest_abuse.py, with an honest client beside them."""
    for name, (path, body, headers, status, _) in SMALL_BODIES.items():
        received, _ = post(target.server, path.replace("affine", "victim"), body, headers)
        expect(received == status, f"{name}: {received}")
    return Result(inputs=len(SMALL_BODIES))
