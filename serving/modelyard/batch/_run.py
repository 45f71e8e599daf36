"""Files to files by Apache Beam: each input file becomes one output file, which appears when it is complete."""

# Beam says that it is typed, and leaves most of its functions without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import re
import shutil
import tempfile
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import apache_beam as beam
from apache_beam.io.filesystem import BeamIOError, CompressionTypes
from apache_beam.io.filesystems import FileSystems
from apache_beam.metrics.metric import Metrics, MetricsFilter
from apache_beam.options.pipeline_options import PipelineOptions

from modelyard.batch._files import IMAGES, PATH, Form, batched, form_of, read_columns, writing
from modelyard.batch._model import BatchModel
from modelyard.errors import ConfigurationError, IntegrityError, InvalidInputError, PredictionError

#: Images of one output file.
_IMAGES = 1000
_ROWS = Metrics.counter("modelyard", "rows")
_POLL_S = 1.0
#: What modelyard itself writes beside images and records: ``ImageFolder`` and ``modelyard data convert``.
_BESIDE = ("manifest.json", "vocabulary.txt")


@dataclass(frozen=True, kw_only=True)
class FileOptions:
    """What to predict.

    Attributes:
        model: What answers.
        inputs: Files, folders or patterns, on any file system that Beam knows.
        output: Folder of the answers.
        form: Of the answers: ``jsonl``, ``parquet`` or ``tfrecord``; None for that of the inputs, ``jsonl`` for images.
        batch_size: Rows of a call.
        runner: Beam's own options, such as ``--runner=FlinkRunner``.
    """

    model: BatchModel
    inputs: Sequence[str]
    output: str
    form: Form | None = None
    batch_size: int = 64
    runner: Sequence[str] = ()

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ConfigurationError(f"batch_size (--batch-size) is {self.batch_size}; expected 1 or more.")


@dataclass(frozen=True, kw_only=True)
class FileReport:
    """What was done: files that were written now, those that were there, rows that were answered now, and seconds."""

    written: int
    kept: int
    rows: int
    seconds: float


@dataclass(frozen=True)
class _Part:
    """The files that become one."""

    sources: tuple[str, ...]
    target: str
    form: str


def predict_files(options: FileOptions, *, progress: Callable[[int, int], object] | None = None) -> FileReport:
    """Answers the rows of files.

    An output file has its input's name and its rows in their order. It is written under another name and renamed when
    it is complete; those that are there are left alone, so a run that was interrupted goes on where it was.

    Args:
        options: What to predict.
        progress: Called now and then with the number of files that are there, and of all.

    Returns:
        What was done. Some runners do not tell the number of rows: it is 0 then.

    Raises:
        ConfigurationError: There is no such input, or its form is not known, or two would have the same output.
        PredictionError: The pipeline failed: a row was refused, or the runner gave up.
    """
    began = time.monotonic()
    runner = PipelineOptions(list(options.runner))
    # Object stores are asked here, too, before there is a pipeline that would do it.
    FileSystems.set_options(runner)
    parts = _parts(options)
    present = _present(options.output)
    missing = [part for part in parts if part.target not in present]
    rows = 0
    if missing:
        done = threading.Event()
        if progress is not None:
            threading.Thread(target=_watch, args=(parts, options.output, progress, done), daemon=True).start()
        try:
            rows = _run(options, runner, missing)
        finally:
            done.set()
    seconds = time.monotonic() - began
    return FileReport(written=len(missing), kept=len(parts) - len(missing), rows=rows, seconds=seconds)


def _run(options: FileOptions, runner: PipelineOptions, parts: Sequence[_Part]) -> int:
    if not FileSystems.exists(options.output):
        FileSystems.mkdirs(options.output)
    work = _Predict(options.model, options.batch_size, tuple(options.runner))
    try:
        pipeline = beam.Pipeline(options=runner)
    except ValueError as exc:
        raise ConfigurationError(f"Beam does not take the options {' '.join(options.runner)}: {exc}") from exc
    _ = pipeline | beam.Create(list(parts)) | beam.Reshuffle() | beam.ParDo(work)
    try:
        result: Any = pipeline.run()
        state = result.wait_until_finish()
    # Runners raise what they like, and put the worker's error into a text.
    except Exception as exc:
        raise PredictionError(
            f"The Beam pipeline failed: {_reason(exc)} Complete files stay: the same command goes on from there."
        ) from exc
    if str(state) not in ("DONE", "None"):
        raise PredictionError(f"The Beam pipeline ended as {state}; the same command goes on from there.")
    counters = result.metrics().query(MetricsFilter().with_name("rows"))["counters"]
    return sum(each.committed or each.attempted or 0 for each in counters)


def _reason(exc: Exception) -> str:
    lines = str(exc).strip().splitlines() or [type(exc).__name__]
    return re.sub(r"\.? *\[while running .*\]$", "", lines[-1]).rstrip(".") + "."


def _parts(options: FileOptions) -> list[_Part]:
    paths = [path for pattern in options.inputs for path in _match(pattern)]
    forms = {path: form_of(path) for path in paths}
    output = options.output.rstrip("/")
    parts = [
        _Part((path,), f"{output}/{_stem(path)}.{options.form or form}", form)
        for path, form in forms.items()
        if form != IMAGES
    ]
    groups = list(batched((path for path in paths if forms[path] == IMAGES), _IMAGES))
    parts += [
        _Part(group, f"{output}/images-{number:05}-of-{len(groups):05}.{options.form or 'jsonl'}", IMAGES)
        for number, group in enumerate(groups)
    ]
    twice = [target for target, count in Counter(part.target for part in parts).items() if count > 1]
    if twice or {part.target for part in parts} & set(paths):
        target = twice[0] if twice else output
        raise ConfigurationError(
            f"Several inputs would become {target}, or an input itself; choose another --output, or call once for each "
            "folder."
        )
    return parts


def _match(pattern: str) -> list[str]:
    """The files of a pattern, or all below a folder, in their order."""
    found = _files(pattern)
    if not found:
        found = [path for path in _files(f"{pattern.rstrip('/')}/**") if not _is_passed_over(path)]
    if not found:
        raise ConfigurationError(
            f"There is no file {pattern}; expected files, a folder or a pattern such as 'in/*.jsonl'."
        )
    return found


def _files(pattern: str) -> list[str]:
    try:
        (result,) = FileSystems.match([pattern])
    except (BeamIOError, ValueError) as exc:
        raise ConfigurationError(f"{pattern} cannot be read: {exc}") from exc
    return sorted({each.path for each in result.metadata_list if not each.path.endswith("/")} - _folders(pattern))


def _folders(pattern: str) -> set[str]:
    # Beam takes a local folder for a file.
    return {pattern} if Path(pattern).is_dir() else set()


def _is_passed_over(path: str) -> bool:
    name = path.rpartition("/")[2]
    return name.startswith((".", "_")) or name in _BESIDE


def _stem(path: str) -> str:
    name = path.rpartition("/")[2].removesuffix(".gz")
    stem, _, number = name.rpartition(f".{form_of(path)}")
    return stem + number


def _present(output: str) -> set[str]:
    return set(_files(f"{output.rstrip('/')}/*"))


def _watch(parts: Sequence[_Part], output: str, progress: Callable[[int, int], object], done: threading.Event) -> None:
    targets = {part.target for part in parts}
    while not done.wait(_POLL_S):
        progress(len(targets & _present(output)), len(targets))


class _Predict(beam.DoFn):
    """From the files of a part to its output."""

    def __init__(self, model: BatchModel, batch_size: int, runner: Sequence[str]) -> None:
        self._model = model
        self._batch_size = batch_size
        self._runner = runner

    def setup(self) -> None:
        # Not every runner tells its workers where an object store is.
        FileSystems.set_options(PipelineOptions(list(self._runner)))

    def process(self, element: _Part) -> None:
        with tempfile.TemporaryDirectory() as folder:
            answers = Path(folder, "answers")
            with writing(answers, element.target.rpartition(".")[2]) as write:
                try:
                    for columns in self._columns(element, Path(folder)):
                        kept = {PATH: columns[PATH]} if element.form == IMAGES else {}
                        write(kept | self._model(columns))
                        _ROWS.inc(len(next(iter(columns.values()))))
                except (InvalidInputError, IntegrityError) as exc:
                    raise type(exc)(f"{element.sources[0]}: {exc.message.replace(folder, '...')}") from exc
            if answers.exists():
                _put(answers, element.target)

    def _columns(self, part: _Part, folder: Path) -> Iterator[Any]:
        shapes = self._model.row_shapes()
        if part.form == IMAGES:
            if len(shapes) != 1:
                raise InvalidInputError(
                    f"Images go to a signature with one input; {self._model.signature!r} has {', '.join(shapes)}. "
                    "Choose another --signature."
                )
            (name,) = shapes
            for paths in batched(part.sources, self._batch_size):
                yield {PATH: list(paths), name: [_read(path) for path in paths]}
            return
        (source,) = part.sources
        copy = folder / "rows"
        with FileSystems.open(source) as remote, copy.open("wb") as local:
            shutil.copyfileobj(remote, local, 1 << 20)
        yield from read_columns(copy, part.form, self._batch_size, shapes)


def _read(path: str) -> bytes:
    with FileSystems.open(path) as file:
        content: bytes = file.read()
    return content


def _put(file: Path, target: str) -> None:
    folder, _, name = target.rpartition("/")
    staged = f"{folder}/.{name}.{uuid.uuid4().hex}"
    with file.open("rb") as local, FileSystems.create(staged, compression_type=CompressionTypes.UNCOMPRESSED) as remote:
        shutil.copyfileobj(local, remote, 1 << 20)
    FileSystems.rename([staged], [target])
