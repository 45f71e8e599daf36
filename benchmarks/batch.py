"""Measures batch prediction on its engines beside the bare runtime, and writes the table of docs/batch.md.

MobileNetV2 (224x224, untrained) is exported. Each engine runs in a process of its own and answers some images, then
many, with one thread of onnxruntime in each worker. What counts is the processor time of the engine's whole tree of
processes; the difference of the two passes leaves out what every pass begins with, such as loading the model. Ray Data
starts a worker in each pass, and the time of one that has ended is in no process's account: of Ray the middle half of
the long pass counts, in which the worker lives. The bare runtime is onnxruntime called in a loop with batches of the
same size, which are made before, in float32. Rounds go through all of them in turns.

    pip install 'modelyard[beam,ray,spark]'
    python -m benchmarks.batch [--write] [--rounds N] [--images N] [--prism FILE]
"""

# Beam says that it is typed, and leaves most of its functions without types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import argparse
import contextlib
import ctypes
import importlib.util
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.load import machine
from benchmarks.models import MODEL, ROOT, SIZE
from benchmarks.pages import write_section

PAGE = ROOT / "docs" / "batch.md"
MARK = "batch-table"
BATCH = 16
#: Rows of a block of Ray's, each of which is a task; by itself, Ray makes blocks of 128 MB, which are 850 images.
BLOCK = 8 * BATCH
_PR_SET_CHILD_SUBREAPER = 36
BARE = "onnxruntime, called in a loop"

Array = npt.NDArray[Any]
EXPORT = """
import sys
sys.path.insert(0, {root!r})
from benchmarks.applications import make_model
from modelyard.export import ExportOptions, export
model, images = make_model("MobileNetV2", size={size}, examples=256)
export(model, sys.argv[1], data=images, options=ExportOptions(formats=("onnx",)))
"""
#: Answers so many images, and returns how many were answered; from Ray, also the processor time of one.
Pass = Callable[[int], int | tuple[int, float]]


def images_of(ids: Sequence[int] | Array) -> Array:
    """An image for each number, as decoders give them: one of a batch, as reading them is not what is measured."""
    return _pool()[np.asarray(ids) % BATCH]


def _pool(made: list[Array] = []) -> Array:  # noqa: B006 # made once in each process
    if not made:
        made.append(np.random.default_rng(0).integers(0, 256, (BATCH, SIZE, SIZE, 3), np.uint8))
    return made[0]


def bare(model: str) -> Iterator[Pass]:
    """The runtime and nothing else."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    (path,) = Path(model).glob("*/onnx/serving_default.onnx")
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feed = {session.get_inputs()[0].name: images_of(range(BATCH)).astype(np.float32)}

    def run(count: int) -> int:
        return sum(len(session.run(None, feed)[0]) for _ in range(count // BATCH))

    yield run


def loop(model: str) -> Iterator[Pass]:
    """``BatchModel`` in a loop, without an engine."""
    call = _model(model)
    (name,) = call.row_shapes()

    def run(count: int) -> int:
        return sum(
            len(next(iter(call({name: images_of(range(at, at + BATCH))}).values()))) for at in range(0, count, BATCH)
        )

    yield run


def beam(model: str, *runner: str) -> Iterator[Pass]:
    """``RunInference``."""
    from apache_beam import Create, Map, Pipeline, Reshuffle
    from apache_beam.metrics.metric import MetricsFilter
    from apache_beam.ml.inference.base import RunInference
    from apache_beam.options.pipeline_options import PipelineOptions

    from modelyard.batch import BeamModelHandler

    call = _model(model)
    (name,) = call.row_shapes()

    def run(count: int) -> int:
        handler = BeamModelHandler(call, min_batch_size=BATCH, max_batch_size=BATCH)
        pipeline = Pipeline(options=PipelineOptions([*runner]))
        _ = (
            pipeline
            | Create(range(count))
            | Reshuffle()
            | Map(partial(_element, name))
            | RunInference(handler)
            | Map(_drop)
        )
        result: Any = pipeline.run()
        result.wait_until_finish()
        (found,) = result.metrics().query(MetricsFilter().with_name("num_inferences"))["counters"]
        return int(found.committed)

    yield run


def _element(name: str, number: int) -> dict[str, Array]:
    return {name: images_of([number])[0]}


def _drop(result: Any) -> None:
    pass


def spark(model: str) -> Iterator[Pass]:
    """``mapInPandas``, in two workers."""
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["PYTHONPATH"] = str(ROOT)
    call = _model(model, keep=["id"])
    (name,) = call.row_shapes()
    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    session = builder.config("spark.sql.execution.arrow.maxRecordsPerBatch", str(BATCH)).getOrCreate()

    def run(count: int) -> int:
        frame = session.range(0, count, 1, 2).mapInPandas(partial(_frames, call, name), "id long")
        return len(frame.collect())

    try:
        yield run
    finally:
        session.stop()


def _frames(call: Any, name: str, frames: Iterator[Any]) -> Iterator[Any]:
    from modelyard.batch import map_in_pandas

    made = (frame.assign(**{name: list(images_of(frame["id"].to_numpy()))}) for frame in frames)
    yield from (answer[["id"]] for answer in map_in_pandas(call)(made))


def ray(model: str) -> Iterator[Pass]:
    """``map_batches``, in two processes that have the model each."""
    import ray as engine

    from modelyard.batch import BatchModel

    (name,) = _model(model).row_shapes()
    os.environ["PYTHONPATH"] = str(ROOT)
    # Two slots are the workers', and one is for tasks: where workers hold all, nothing is ever read.
    engine.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    engine.data.DataContext.get_current().enable_progress_bars = False

    def run(count: int) -> tuple[int, float]:
        numbers = engine.data.range(count, override_num_blocks=max(2, count // BLOCK))
        found = numbers.map_batches(partial(_batch, name), batch_size=BATCH).map_batches(
            BatchModel,
            fn_constructor_args=[model],
            fn_constructor_kwargs={"threads": 1, "keep": ["id"], "runtime": "onnxruntime"},
            batch_size=BATCH,
            concurrency=2,
        )
        # Workers compute ahead of what is read by as much at each of the two marks.
        marks, rows = [count // 4, count - count // 4], 0
        seen: list[tuple[int, float]] = []
        for batch in found.iter_batches(batch_size=None):
            rows += len(batch["id"])
            if len(seen) < len(marks) and rows >= marks[len(seen)]:
                seen.append((rows, _tree(os.getpid())))
        (before, began), (after, ended) = seen
        return rows, (ended - began) / (after - before)

    try:
        yield run
    finally:
        engine.shutdown()


def _batch(name: str, columns: dict[str, Array]) -> dict[str, Array]:
    return {"id": columns["id"], name: images_of(columns["id"])}


def _model(model: str, keep: Sequence[str] = ()) -> Any:
    from modelyard.batch import BatchModel

    return BatchModel(model, threads=1, keep=keep, runtime="onnxruntime")


PRISM = "Beam `RunInference`, Prism"
#: By what the table calls them: what starts it, and the module that it needs.
ENGINES: dict[str, tuple[Callable[..., Iterator[Pass]], str]] = {
    BARE: (bare, "onnxruntime"),
    "`BatchModel`, called in a loop": (loop, "onnxruntime"),
    "Beam `RunInference`, DirectRunner": (beam, "apache_beam"),
    PRISM: (beam, "apache_beam"),
    "Spark `mapInPandas`, local[2]": (spark, "pyspark"),
    "Ray Data `map_batches`": (ray, "ray"),
}


def main() -> int:
    """Measures, prints the table, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write the table into docs/batch.md")
    parser.add_argument("--rounds", type=int, default=3, help="rounds (default %(default)s)")
    parser.add_argument("--images", type=int, default=2048, help="images of the long pass (default %(default)s)")
    parser.add_argument("--prism", default=shutil.which("prism"), help="Beam's Prism (default: that of the PATH)")
    parser.add_argument("--repository", type=Path, help="where the model is, or is to be kept (default: nowhere)")
    args = parser.parse_args()
    missing = [name for name, (_, module) in ENGINES.items() if importlib.util.find_spec(module) is None]
    names = [name for name in ENGINES if name not in missing and (name != PRISM or args.prism)]
    with tempfile.TemporaryDirectory() as folder:
        model = (args.repository or Path(folder)).resolve() / MODEL
        if not model.exists():
            subprocess.run([sys.executable, "-c", EXPORT.format(root=str(ROOT), size=SIZE), str(model)], check=True)
        rounds = [
            {name: seconds(name, str(model), args.images, args.prism) for name in names} for _ in range(args.rounds)
        ]
    section = table(rounds, args.images)
    print(section)
    left = [name for name in ENGINES if name in missing]
    if left:
        print(f"not measured, for they are not installed: {', '.join(left)}")
    elif args.write:
        write_section(PAGE, f"<!-- {MARK}:begin -->", f"<!-- {MARK}:end -->", section)
    return 1 if left else 0


def table(rounds: Sequence[dict[str, float]], images: int) -> str:
    """Images a second of processor time, and the shares of the bare runtime's in the same round."""
    lines = []
    for name in rounds[0]:
        rate = statistics.median(1 / each[name] for each in rounds)
        shares = [each[BARE] / each[name] for each in rounds]
        lines.append(
            f"| {name} | {rate:,.1f} | {statistics.median(shares):.0%} | {min(shares):.0%} to {max(shares):.0%} |"
        )
    return "\n".join(
        [
            f"MobileNetV2, {SIZE}x{SIZE}, float32, untrained, images in uint8, {BATCH} images a batch, one thread in "
            f"each worker; {machine()}; {len(rounds)} rounds in turns. Processor time of all processes of the engine: "
            f"a pass of {images} images less one of {BATCH * 2}, in one session, so that neither starting the engine "
            "nor loading the model is in it; of Ray the middle half of the long pass.",
            "",
            "| engine | images/s per core | of the runtime's | rounds |",
            "|---|---:|---:|---:|",
            *lines,
        ]
    )


def seconds(name: str, model: str, images: int, prism: str | None) -> float:
    """Processor time of an image on an engine."""
    # Imported, so that workers find its functions by name.
    code = "import sys; from benchmarks.batch import serve; serve(*sys.argv[1:])"
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", code, name, model, prism or ""],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, cwd=ROOT,
        )  # fmt: skip
        used = []
        try:
            # The first pass starts what lives on: workers of Spark, compiled code.
            answer: list[str] | None = []
            for count in (2 * BATCH, 2 * BATCH, images):
                before = _tree(process.pid)
                process.stdin.write(f"{count}\n")  # type: ignore[union-attr]
                process.stdin.flush()  # type: ignore[union-attr]
                # Engines write to the output, too.
                lines: Iterator[str] = iter(process.stdout)  # type: ignore[arg-type]
                answer = next((line.split() for line in lines if line.startswith(f"answered {count} ")), None)
                if answer is None:
                    log.seek(0)
                    raise RuntimeError(f"{name} ended with {process.wait()}:\n{log.read()[-3000:]}")
                used.append(_tree(process.pid) - before)
        finally:
            process.stdin.close()  # type: ignore[union-attr]
            process.wait()
    found = float(answer[2]) if answer and answer[2:] else (used[2] - used[1]) / (images - 2 * BATCH)
    print(f"{name}: {found * 1e3:.2f} ms of processor time an image; passes {used}", file=sys.stderr, flush=True)
    return found


def serve(name: str, model: str, prism: str) -> None:
    """Makes passes of as many images as its input's lines say."""
    # What its processes start and leave stays below it, where its time is counted.
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    start, _ = ENGINES[name]
    options = ["--runner=PrismRunner", f"--prism_location={prism}"] if name == PRISM else []
    with contextlib.contextmanager(start)(model, *options) as run:
        for line in sys.stdin:
            done = run(int(line))
            print("answered", *(done if isinstance(done, tuple) else (done, "")), flush=True)


def _tree(root: int) -> float:
    """Processor time, in seconds, of a process and all below it, and of those of them that have ended."""
    found: dict[int, tuple[int, int]] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            cells = path.read_text().rpartition(")")[2].split()
            found[int(path.parent.name)] = int(cells[1]), sum(map(int, cells[11:15]))
    inside = {root}
    while more := {pid for pid, (parent, _) in found.items() if parent in inside} - inside:
        inside |= more
    return sum(found[pid][1] for pid in inside if pid in found) / os.sysconf("SC_CLK_TCK")


if __name__ == "__main__":
    raise SystemExit(main())
