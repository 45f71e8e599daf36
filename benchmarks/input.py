"""Measures input functions beside a training step, and writes its table of docs/performance.md.

The step is that of the task ``fashion``, batch 64, on one batch that stays in
memory: the fastest that it can consume. Inputs and step take turns (A B C ... A
B C ...), each for a second, so that whatever else the machine does meets all of
them; a ratio is that of one round, and the table has the median over the rounds.

    python -m benchmarks.input [--write] [--rounds N] [--seconds S]
"""

from __future__ import annotations

import argparse
import io
import os
import platform
import statistics
import sys
import tempfile
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.pages import write_section

PAGE = Path(__file__).parents[1].joinpath("docs", "performance.md")
START, END = "<!-- input:begin -->", "<!-- input:end -->"
BATCH_SIZE = 64
RECORDS = 20_000
PHOTOS = 2_000
FILES = 8
TARGET = 3.0


def main() -> int:
    """Measures, prints the section, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/performance.md")
    parser.add_argument("--rounds", type=int, default=7, help="turns of each contender (default: %(default)s)")
    parser.add_argument("--seconds", type=float, default=1.0, help="length of a turn (default: %(default)s)")
    arguments = parser.parse_args()
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    with tempfile.TemporaryDirectory() as folder:
        text, reached = measure(Path(folder), arguments.rounds, arguments.seconds)
    print(text)
    if arguments.write:
        write_section(PAGE, START, END, text)
    return 0 if reached else 1


def measure(folder: Path, rounds: int, seconds: float) -> tuple[str, bool]:
    """The section, and whether the target was reached."""
    from modelyard.training.data._bench import Source, Step
    from modelyard.training.tasks import FashionTask

    sources = {name: Source(make) for name, make in inputs(folder).items()}
    step = Step(FashionTask(), BATCH_SIZE)
    rates: dict[str, list[float]] = {name: [] for name in sources}
    consumed: list[float] = []
    for _ in range(rounds):
        for name, source in sources.items():
            rates[name].append(source.round(seconds))
        consumed.append(step.round(seconds))
    rows = []
    reached = True
    for name, source in sources.items():
        speed = source.speed(name, statistics.median(rates[name]))
        ratios = sorted(one / other for one, other in zip(rates[name], consumed, strict=True))
        ratio = statistics.median(ratios)
        if name.startswith("TFRecord, PNG"):
            reached = ratio >= TARGET
        rows.append(
            f"| {name} | {speed.examples_per_second:,.0f} | {speed.megabytes_per_second:,.0f} | {speed.p50_ms:.2f} | "
            f"{speed.p95_ms:.2f} | **{ratio:.1f}** | {ratios[0]:.1f} to {ratios[-1]:.1f} |"
        )
    head = (
        "| input, batch 64 | images/s | MB/s | p50 ms per batch | p95 ms | times what the step consumes | "
        "lowest to highest |\n|---|---|---|---|---|---|---|"
    )
    place = f"{os.cpu_count()} cores, {platform.machine()}, Python {platform.python_version()}"
    foot = (
        f"The training step of `fashion` consumed {statistics.median(consumed):,.0f} images/s. Median of {rounds} "
        f"rounds of {seconds:g} s; {place}, TensorFlow {version('tensorflow')}. Target: TFRecord without augmentation "
        f"at least {TARGET:g}: {'reached' if reached else 'not reached'}."
    )
    return "\n".join([head, *rows, "", foot]), reached


def inputs(folder: Path) -> dict[str, Callable[[], Any]]:
    """The input functions by name, on files of Fashion-MNIST."""
    from modelyard.training import InputRequest
    from modelyard.training.data import (
        Augmentation,
        ImageCache,
        ImageOptions,
        image_folder_dataset,
        load_fashion_mnist,
        memory_images,
        open_records,
        scan_images,
        tfrecord_dataset,
    )

    data = load_fashion_mnist()
    # The subset that ships with modelyard, several times over: speed does not depend on what is in the images.
    chosen = np.resize(np.arange(len(data.train_images)), RECORDS)
    write_records(folder / "records", data.train_images[chosen], data.train_labels[chosen])
    write_photos(folder / "photos", data.train_images[:PHOTOS], data.train_labels[:PHOTOS])
    records, photos = open_records(folder / "records"), scan_images(folder / "photos", test_share=0)
    image = ImageOptions(height=28, width=28, channels=1)
    # Files of 28 x 28, enlarged to 32 x 32, of which the network sees 28 x 28.
    cropped = ImageOptions(height=28, width=28, channels=1, crop=0.875)
    shared: dict[str, Any] = {"batch_size": BATCH_SIZE, "seed": 0}
    cache, source = ImageCache(), memory_images(data, "train")
    return {
        "Fashion-MNIST in memory": lambda: source.batches(InputRequest(**shared)),
        "TFRecord, PNG": lambda: tfrecord_dataset("train", records=records, image=image, **shared),
        "TFRecord, resized, random crop, flip, brightness, contrast": lambda: tfrecord_dataset(
            "train", records=records, image=cropped, augmentation=Augmentation(), **shared
        ),
        "image folder, JPEG": lambda: image_folder_dataset("train", folder=photos, image=image, **shared),
        "image folder, JPEG, cached": lambda: image_folder_dataset(
            "train", folder=photos, image=image, cache=cache, **shared
        ),
    }


def write_records(folder: Path, images: Any, labels: Any) -> None:
    """The files that ``modelyard data convert fashion-mnist`` would write, without starting Beam."""
    import json

    import tensorflow as tf

    from modelyard.wire import tensorflow_pb2

    folder.mkdir()
    files = []
    for index in range(FILES):
        path = folder / f"train-{index:05}-of-{FILES:05}.tfrecord"
        with tf.io.TFRecordWriter(str(path)) as writer:
            for pixels, label in zip(images[index::FILES], labels[index::FILES], strict=True):
                message = tensorflow_pb2.Example()
                message.features.feature["image/encoded"].bytes_list.value.append(_encoded(pixels, "PNG"))
                message.features.feature["image/class/label"].int64_list.value.append(int(label))
                writer.write(message.SerializeToString())
        files.append({"name": path.name, "records": len(images[index::FILES]), "bytes": path.stat().st_size})
    split = {"files": files, "image_size": {"height": 28, "width": 28}}
    (folder / "manifest.json").write_text(json.dumps({"schema": 1, "class_names": [], "splits": {"train": split}}))


def write_photos(folder: Path, images: Any, labels: Any) -> None:
    """JPEG files in folders by class."""
    for index, (pixels, label) in enumerate(zip(images, labels, strict=True)):
        (folder / str(label)).mkdir(parents=True, exist_ok=True)
        (folder / str(label) / f"{index}.jpeg").write_bytes(_encoded(pixels, "JPEG"))


def _encoded(pixels: Any, kind: str) -> bytes:
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


if __name__ == "__main__":
    sys.exit(main())
