"""From an image folder or a known data set to sharded TFRecords, with Apache Beam."""

# Beam says that it is typed, and leaves most of its functions without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import json
import posixpath
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import numpy as np
from apache_beam.io.filesystem import BeamIOError
from apache_beam.io.filesystems import FileSystems
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from modelyard.artifact import decode_image
from modelyard.errors import ConfigurationError, ImageDecodeError, RequestTooLargeError, TrainingError
from modelyard.training.data._entries import Entry, list_entries
from modelyard.training.data._folder import SPLITS
from modelyard.training.data._records import IMAGE_KEY, LABEL_KEY, MANIFEST_FILE, SCHEMA
from modelyard.training.data._vocabulary import VOCABULARY_FILE
from modelyard.training.run import first_line
from modelyard.wire import tensorflow_pb2

_BAD, _FACTS = "bad", "facts"
_WORK = ".work"


@dataclass(frozen=True, kw_only=True)
class ConvertOptions:
    """What to convert: an image folder, of any file system that Beam knows, or ``fashion-mnist`` or ``mnist``.

    ``test_share`` is for folders that do not say it, ``seed`` of the order of the images in the files; without
    ``class_names`` the labels are numbered in alphabetical order.
    """

    source: str
    output: str
    shards: int = 8
    test_share: float = 0.1
    seed: int = 0
    class_names: tuple[str, ...] | None = None
    runner_arguments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.shards < 1 or self.seed < 0 or not 0 <= self.test_share < 1:
            raise ConfigurationError(
                f"Received shards {self.shards}, seed {self.seed} and test_share {self.test_share}; expected shards "
                ">= 1, seed >= 0, and a share from 0, below 1."
            )


def convert(options: ConvertOptions) -> dict[str, Any]:
    """Converts a data set; images that cannot be read are left out and listed.

    An image goes into the files as it is, byte for byte, once it has been decoded. ``manifest.json`` is written last: a
    folder without it is not complete.
    """
    # A pipeline first: it tells Beam's file systems where an object store is, and they are asked before it runs.
    pipeline = _pipeline(options.runner_arguments)
    try:
        return _convert(pipeline, options)
    except BeamIOError as exc:
        raise TrainingError(
            f"The source {options.source} or the output {options.output} cannot be reached: {first_line(exc)}"
        ) from exc


def _convert(pipeline: beam.Pipeline, options: ConvertOptions) -> dict[str, Any]:
    output = options.output.rstrip("/")
    if _match(f"{output}/**"):
        raise ConfigurationError(f"The output {output} is not empty; choose another folder, or remove it.")
    entries, class_names = list_entries(options.source, options.test_share, options.class_names)
    order = np.random.default_rng(options.seed).permutation(len(entries))
    _run(pipeline, options, output, [entries[index] for index in order])
    facts = _read_lines(f"{output}/{_WORK}/{_FACTS}*")
    skipped = sorted(_read_lines(f"{output}/{_WORK}/{_BAD}*"), key=lambda line: line["path"])
    # Object stores know a folder by the slash, and forget one that is empty; a disk does not.
    FileSystems.delete([f"{output}/{_WORK}/"])
    if FileSystems.exists(f"{output}/{_WORK}"):
        FileSystems.delete([f"{output}/{_WORK}"])
    splits = {
        split: _describe(output, split, [fact for fact in facts if fact["split"] == split], class_names)
        for split in SPLITS
        if any(entry.split == split for entry in entries)
    }
    manifest = {
        "schema": SCHEMA,
        "source": options.source,
        "features": {IMAGE_KEY: "encoded image", LABEL_KEY: "int64, number of the class"},
        "class_names": list(class_names),
        "splits": splits,
        "skipped": skipped,
        "apache_beam": beam.__version__,
    }
    _write(f"{output}/{VOCABULARY_FILE}", "\n".join(class_names) + "\n")
    _write(f"{output}/{MANIFEST_FILE}", json.dumps(manifest, indent=2) + "\n")
    return manifest


class _ToExample(beam.DoFn):
    """From an entry to a serialized Example, under the tag of its split; or to a line about what is wrong."""

    def __init__(self, runner: Sequence[str]) -> None:
        self._runner = tuple(runner)

    def setup(self) -> None:
        # Not every runner tells its workers where an object store is.
        FileSystems.set_options(PipelineOptions(list(self._runner)))

    def process(self, element: Entry) -> Iterator[Any]:
        try:
            data = element.read()
            height, width, _ = decode_image(data, 3).shape
        except (OSError, ImageDecodeError, RequestTooLargeError) as exc:
            yield beam.pvalue.TaggedOutput(_BAD, json.dumps({"path": element.name, "reason": str(exc)}))
            return
        example = tensorflow_pb2.Example()
        features = example.features.feature
        features[IMAGE_KEY].bytes_list.value.append(data)
        features[LABEL_KEY].int64_list.value.append(element.label)
        yield beam.pvalue.TaggedOutput(element.split, example.SerializeToString())
        yield beam.pvalue.TaggedOutput(_FACTS, ((element.split, element.label, height, width), 1))


def _run(pipeline: beam.Pipeline, options: ConvertOptions, output: str, entries: Sequence[Entry]) -> None:
    parts = (
        pipeline
        | "List" >> beam.Create(list(entries), reshuffle=True)
        | "Read" >> beam.ParDo(_ToExample(options.runner_arguments)).with_outputs(*SPLITS, _BAD, _FACTS)
    )
    for split in SPLITS:
        if any(entry.split == split for entry in entries):
            _ = parts[split] | f"Write {split}" >> beam.io.WriteToTFRecord(
                f"{output}/{split}", file_name_suffix=".tfrecord", num_shards=options.shards
            )
    _ = (
        parts[_FACTS]
        | "Count" >> beam.CombinePerKey(sum)
        | "Describe" >> beam.Map(_fact_line)
        | "Write counts" >> beam.io.WriteToText(f"{output}/{_WORK}/{_FACTS}")
    )
    # Beam cannot write an object without a byte.
    _ = parts[_BAD] | "Write skipped" >> beam.io.WriteToText(f"{output}/{_WORK}/{_BAD}", skip_if_empty=True)
    try:
        state = pipeline.run().wait_until_finish()
    except Exception as exc:
        # Runners raise what they like; the user must know that it is the pipeline that failed, and what is left.
        raise TrainingError(
            f"The Beam pipeline failed: {first_line(exc)}. What {output} holds is not complete; remove it."
        ) from exc
    if str(state) not in ("DONE", "None"):
        raise TrainingError(f"The Beam pipeline ended as {state}. What {output} holds is not complete; remove it.")


def _pipeline(arguments: Sequence[str]) -> beam.Pipeline:
    """A pipeline with options that Beam knows; by itself it drops what it does not know."""
    wrong: Exception | str = ""
    try:
        options = PipelineOptions(list(arguments))
        known = options.get_all_options(drop_default=True)
        unknown = set(options.get_all_options(drop_default=True, retain_unknown_options=True)) - set(known)
        # Other runners have options that only they know.
        if unknown and options.view_as(StandardOptions).runner in (None, "DirectRunner"):
            wrong = f"unknown are {', '.join(sorted(unknown))}"
        elif arguments and not arguments[0].startswith("-"):
            wrong = f"{arguments[0]!r} is no option"
        else:
            return beam.Pipeline(options=options)
    except SystemExit as exc:
        wrong = f"exit code {exc.code}"
    except ValueError as exc:
        wrong = exc
    raise ConfigurationError(
        f"Beam does not accept the options {' '.join(arguments)}: {str(wrong).rstrip('.')}. "
        "See modelyard data convert --help, and Beam's documentation for runners and their options."
    ) from (wrong if isinstance(wrong, Exception) else None)


def _fact_line(fact: tuple[tuple[str, int, int, int], int]) -> str:
    (split, label, height, width), count = fact
    return json.dumps({"split": split, "label": label, "height": height, "width": width, "count": count})


def _describe(
    output: str, split: str, facts: Sequence[Mapping[str, Any]], class_names: Sequence[str]
) -> dict[str, Any]:
    files = [
        {"name": posixpath.basename(found.path), "records": _count(found.path), "bytes": found.size_in_bytes}
        for found in sorted(_match(f"{output}/{split}-*"), key=lambda found: found.path)
    ]
    by_class: Counter[int] = Counter()
    for fact in facts:
        by_class[fact["label"]] += fact["count"]
    written = sum(file["records"] for file in files)
    if written != by_class.total():
        raise TrainingError(
            f"The pipeline read {by_class.total()} images of the split {split!r}, and {written} records are in the "
            f"files of {output}; they must be equal. Remove the folder and try again."
        )
    heights, widths = ({fact[side] for fact in facts} for side in ("height", "width"))
    same = len(heights) == len(widths) == 1
    return {
        "examples": written,
        "classes": {name: by_class[number] for number, name in enumerate(class_names)},
        "image_size": {"height": min(heights), "width": min(widths)} if same else None,
        "image_size_range": {
            "height": [min(heights), max(heights)] if heights else None,
            "width": [min(widths), max(widths)] if widths else None,
        },
        "files": files,
    }


def _count(path: str) -> int:
    """Counts the records of a finished file, on any file system."""
    count = 0
    with FileSystems.open(path, compression_type=beam.io.filesystem.CompressionTypes.UNCOMPRESSED) as file:
        while header := file.read(8):
            file.seek(int.from_bytes(header, "little") + 8, 1)
            count += 1
    return count


def _match(pattern: str) -> list[Any]:
    return list(FileSystems.match([pattern])[0].metadata_list)


def _read_lines(pattern: str) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    for found in _match(pattern):
        with FileSystems.open(found.path) as file:
            lines += [json.loads(line) for line in file.read().decode().splitlines()]
    return lines


def _write(path: str, text: str) -> None:
    with FileSystems.create(path) as file:
        file.write(text.encode())
