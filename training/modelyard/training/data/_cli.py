"""``modelyard data``: convert images to TFRecords, and measure what an input function delivers."""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelyard.console import make_command, quiet_libraries, run_command
from modelyard.errors import ConfigurationError
from modelyard.lazy import needs_extra
from modelyard.training.cli import add_flags, note
from modelyard.training.data._vocabulary import read_vocabulary

if TYPE_CHECKING:
    import tensorflow as tf

EXIT_SKIPPED = 3
_SHOWN = 20
_EXAMPLES = """\
examples:
  modelyard data convert photos records
      photos/<label>/*.jpeg to records/train-00000-of-00008.tfrecord and so on.
  modelyard data convert fashion-mnist records --shards 4
  modelyard data convert gs://mine/photos gs://mine/records --runner=DataflowRunner --project=mine
      What modelyard does not know is passed on to Beam.
  modelyard data bench fashion
  modelyard data bench records --size 160x160 --augment --step fashion
      Is the input or the training step the limit?
"""


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard data``."""
    description = "Convert images to TFRecords, and measure what an input function delivers."
    parser = make_command("modelyard data", description, _EXAMPLES)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_convert(commands)
    _add_bench(commands)
    return parser


def _add_convert(commands: Any) -> None:
    parser = commands.add_parser(
        "convert",
        help="an image folder, Fashion-MNIST or MNIST to sharded TFRecords, with Apache Beam",
        description="Write sharded TFRecords with image/encoded and image/class/label, a manifest and the vocabulary. "
        "Images that cannot be decoded are left out, and listed in the output and in the manifest. Options that are "
        "not listed here go to Beam: --runner=..., --direct_num_workers=..., and so on.",
        epilog="exit code: 0 all images were converted; 1 an error; 2 wrong usage; 3 converted, but more images than "
        "--allow-bad were left out; 130 interrupted.",
        allow_abbrev=False,
    )
    parser.add_argument("source", metavar="SOURCE", help="an image folder, or fashion-mnist, or mnist")
    parser.add_argument("output", metavar="OUTPUT", help="folder for the files, new or empty")
    add_flags(
        parser,
        (
            ("--shards", int, "N", "files of each split (default: %(default)s)"),
            (
                "--test-share",
                float,
                "SHARE",
                "share of the images in the test split, unless there are folders train and test (default: %(default)s)",
            ),
            ("--seed", int, None, "of the order of the images (default: %(default)s)"),
            (
                "--vocabulary",
                Path,
                "FILE",
                "class names, one on each line (default: vocabulary.txt in SOURCE, else the folders' names)",
            ),
            ("--allow-bad", int, "N", "images that may be left out without an exit code of 3 (default: %(default)s)"),
        ),
    )
    parser.set_defaults(shards=8, test_share=0.1, seed=0, allow_bad=0)


def _add_bench(commands: Any) -> None:
    parser = commands.add_parser(
        "bench",
        help="examples/s, MB/s and time per batch of one input function",
        description="Measure one input function on its own, and with --step beside the training step of a task.",
    )
    parser.add_argument(
        "input", metavar="INPUT", help="fashion, mnist, an image folder, or a folder of TFRecords; or task:NAME"
    )
    parser.add_argument("--channels", type=int, choices=(1, 3), default=3, help="(default: %(default)s)")
    add_flags(
        parser,
        (
            ("--split", str, None, "(default: %(default)s)"),
            ("--batch-size", int, "N", "(default: %(default)s)"),
            ("--size", str, "HxW", "size of the network's input (default: that of the images, else 224x224)"),
            ("--crop", float, "SHARE", "share of each side that the network sees"),
            ("--augment", None, None, "random crop, flip, brightness and contrast"),
            ("--cache", str, "DIR", "keep decoded images of an image folder there, or in 'memory'"),
            ("--step", str, "TASK", "measure the training step of this task as well"),
            ("--seconds", float, None, "how long to measure, of each (default: %(default)s)"),
            ("--rounds", int, None, "in how many rounds (default: %(default)s)"),
            ("--json", str, "FILE", "write the numbers there, or to the standard output for -"),
        ),
    )
    parser.set_defaults(split="train", batch_size=64, crop=1.0, seconds=5.0, rounds=5)


def main(argv: list[str]) -> int:
    """Runs one command."""
    quiet_libraries()
    arguments, rest = make_parser().parse_known_args(argv)
    work = _convert if arguments.command == "convert" else _bench
    return run_command(f"data {arguments.command}", lambda: work(arguments, rest))


def _convert(arguments: argparse.Namespace, rest: list[str]) -> int:
    # Beam logs to the root logger, from its import on, what a reader of this command cannot act on.
    logging.getLogger().setLevel(logging.ERROR)
    with needs_extra("beam", "apache_beam", purpose="modelyard data convert"):
        from modelyard.training.data._convert import ConvertOptions, convert
    names = None if arguments.vocabulary is None else read_vocabulary(arguments.vocabulary)
    options = ConvertOptions(
        source=arguments.source,
        output=arguments.output,
        shards=arguments.shards,
        test_share=arguments.test_share,
        seed=arguments.seed,
        class_names=names,
        runner_arguments=tuple(rest),
    )
    sys.stderr.write(f"Converting {options.source} to {options.output} with Apache Beam ...\n")
    began = time.perf_counter()
    manifest = convert(options)
    sys.stdout.write(_summary(manifest, options.output, time.perf_counter() - began))
    skipped = manifest["skipped"]
    for bad in skipped[:_SHOWN]:
        sys.stderr.write(f"skipped {bad['path']}: {bad['reason']}\n")
    if len(skipped) > _SHOWN:
        sys.stderr.write(f"and {len(skipped) - _SHOWN} more; all are in the manifest.\n")
    return EXIT_SKIPPED if len(skipped) > arguments.allow_bad else 0


def _summary(manifest: Mapping[str, Any], output: str, seconds: float) -> str:
    splits = manifest["splits"]
    total = sum(split["examples"] for split in splits.values())
    rows: list[tuple[str, list[int]]] = [
        (name, [split["classes"][name] for split in splits.values()]) for name in manifest["class_names"]
    ]
    rows.append(("all", [split["examples"] for split in splits.values()]))
    lines = [f"{'class':<24}" + "".join(f"  {name:>9}" for name in splits)]
    lines += [f"{name:<24}" + "".join(f"  {count:>9,}" for count in counts) for name, counts in rows]
    files = sum(len(split["files"]) for split in splits.values())
    size = sum(file["bytes"] for split in splits.values() for file in split["files"]) / 1e6
    written = f"{files} file{'s' * (files != 1)}"
    lines.append(
        f"{total:,} images in {written}, {size:,.1f} MB, {seconds:.1f} s; {len(manifest['skipped'])} skipped. "
        f"Manifest: {output.rstrip('/')}/manifest.json"
    )
    return "\n".join(lines) + "\n"


def _bench(arguments: argparse.Namespace, rest: list[str]) -> int:
    if rest:
        raise ConfigurationError(f"Unknown arguments {' '.join(rest)}; see modelyard data bench --help.")
    with needs_extra("training", "keras", "tensorflow", purpose="modelyard data bench"):
        from modelyard.training.data._bench import bench_input
        from modelyard.training.tasks import find_task
    name, make = _input(arguments)
    report = bench_input(
        make,
        name=name,
        seconds=arguments.seconds,
        rounds=arguments.rounds,
        task=None if arguments.step is None else find_task(arguments.step)(),
        batch_size=arguments.batch_size,
        progress=note,
    )
    text = json.dumps(asdict(report), indent=2) + "\n"
    if arguments.json == "-":
        sys.stdout.write(text)
        return 0
    sys.stdout.write(report.table() + "\n")
    if arguments.json is not None:
        try:
            Path(arguments.json).write_text(text, "utf-8")
        except OSError as exc:
            raise ConfigurationError(f"The numbers cannot be written to {arguments.json}: {exc}.") from exc
    return 0


def _input(arguments: argparse.Namespace) -> tuple[str, Callable[[], tf.data.Dataset]]:
    """What to measure, and how to make it."""
    from modelyard.training.data import (
        Augmentation,
        ImageCache,
        ImageOptions,
        image_folder_dataset,
        load_fashion_mnist,
        load_mnist,
        memory_images,
        open_records,
        scan_images,
        tfrecord_dataset,
    )
    from modelyard.training.tasks import find_task
    from modelyard.training.user import InputRequest, build

    name, split, size = arguments.input, arguments.split, arguments.batch_size
    if name in ("fashion", "mnist"):
        source = memory_images(load_fashion_mnist() if name == "fashion" else load_mnist(), split)
        return name, lambda: source.batches(InputRequest(batch_size=size))
    if name.startswith("task:"):
        task = find_task(name.removeprefix("task:"))()
        # Its data may take the size of the images from the model.
        build(task)
        return name, lambda: task.train_dataset(InputRequest(batch_size=size))
    augmentation = Augmentation() if arguments.augment else None
    root = Path(name)
    if any(root.glob("*-of-*")):
        records = open_records(root)
        natural = records.split(split).size
        image = ImageOptions(**_size(arguments.size, natural), channels=arguments.channels, crop=arguments.crop)
        return name, lambda: tfrecord_dataset(
            split, records=records, image=image, batch_size=size, seed=0, augmentation=augmentation
        )
    folder = scan_images(root, save=False)
    image = ImageOptions(**_size(arguments.size, None), channels=arguments.channels, crop=arguments.crop)
    cache = None
    if arguments.cache is not None:
        cache = ImageCache(None if arguments.cache == "memory" else Path(arguments.cache))
    return name, lambda: image_folder_dataset(
        split, folder=folder, image=image, batch_size=size, seed=0, augmentation=augmentation, cache=cache
    )


def _size(text: str | None, natural: tuple[int, int] | None) -> dict[str, int]:
    if text is None:
        height, width = natural or (224, 224)
        return {"height": height, "width": width}
    height_text, _, width_text = text.partition("x")
    if not (height_text.isdecimal() and width_text.isdecimal()):
        raise ConfigurationError(f"--size is {text!r}; expected height x width, such as 224x224.")
    return {"height": int(height_text), "width": int(width_text)}
