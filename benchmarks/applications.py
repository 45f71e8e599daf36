"""Exports the architectures of keras.applications, beside what plain one-line converters make of the same models.

Each architecture runs in processes of its own, one for our export and one for
the plain converters, with a limit on memory. Every result is a line of JSON in
a file, so that a run that was stopped goes on where it was; the table is made
from that file.

    python -m benchmarks.applications [--results FILE] [--only NAME ...] [--seconds S] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.pages import write_section

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "what-can-be-exported.md"
START, END = "<!-- breadth-table: written by benchmarks/applications.py -->", "<!-- breadth-table: end -->"
EXAMPLES = 64
CLASSES = 1000
#: Of the spread. Networks that never learned amplify rounding, the deep ones most: a change of 1e-7 of the input of
#: EfficientNetV2B0 is 1e-5 of what its outputs spread over, in TensorFlow alone.
TOLERANCE = 1e-4
FORMATS = ("saved_model", "onnx", "tflite")
ROUTES = ("ours", "plain")
#: Height and width of the input. Small, but for VGG, which keeps its own 224: its first dense layer of 103 million
#: weights is what converters run out of memory on. With 32, which most take, too, EfficientNetB1 amplifies rounding ten
#: times as much as with 64: there, TensorFlow's own answers to one image and to sixteen are 1.5e-4 of the spread apart.
SIZES: Mapping[str, int] = {
    "ConvNeXtTiny": 64,
    "DenseNet121": 64,
    "DenseNet169": 64,
    "EfficientNetB0": 64,
    "EfficientNetB1": 64,
    "EfficientNetB3": 64,
    "EfficientNetV2B0": 64,
    "EfficientNetV2B1": 64,
    "InceptionV3": 75,
    "MobileNet": 64,
    "MobileNetV2": 64,
    "MobileNetV3Large": 64,
    "MobileNetV3Small": 64,
    "NASNetMobile": 64,
    "ResNet101": 64,
    "ResNet101V2": 64,
    "ResNet50": 64,
    "ResNet50V2": 64,
    "VGG16": 224,
    "Xception": 71,
}


def main() -> int:
    """Measures what is not yet in the file of results, prints the table, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--results", type=Path, default=ROOT / "demo" / "bench_applications.jsonl", help="lines of JSON"
    )
    parser.add_argument("--only", nargs="+", choices=sorted(SIZES), default=sorted(SIZES), metavar="NAME")
    parser.add_argument("--routes", nargs="+", choices=ROUTES, default=ROUTES, help="default: %(default)s")
    parser.add_argument("--again", action="store_true", help="measure again what is in the file")
    parser.add_argument("--seconds", type=float, default=float("inf"), help="start nothing new after so many seconds")
    parser.add_argument("--memory-gb", type=float, default=12.0, help="limit of each process (default %(default)s)")
    parser.add_argument("--write", action="store_true", help="write the table into docs/what-can-be-exported.md")
    parser.add_argument("--worker", nargs=2, metavar=("NAME", "ROUTE"), help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        return _work(*args.worker)
    args.results.parent.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    for name in args.only:
        for route in args.routes:
            known = (name, route) in _read(args.results)
            if (known and not args.again) or time.monotonic() - started > args.seconds:
                continue
            line = _measure(name, route, limit_bytes=int(args.memory_gb * 1e9))
            with args.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{name} {route}: {_brief(line)}", flush=True)
    results = _read(args.results)
    table = make_table(results)
    print(table)
    left = [name for name in SIZES if (name, "ours") not in results or (name, "plain") not in results]
    if left:
        print(f"not yet measured: {', '.join(left)}")
    elif args.write:
        write_section(PAGE, START, END, table)
    return 1 if left else 0


def _read(results: Path) -> dict[tuple[str, str], dict[str, Any]]:
    lines = results.read_text("utf-8").splitlines() if results.is_file() else []
    return {(line["name"], line["route"]): line for line in map(json.loads, lines) if line["name"] in SIZES}


def _brief(line: Mapping[str, Any]) -> str:
    parts = [f"{each} {line['formats'].get(each, {}).get('verdict', '?')}" for each in FORMATS]
    return f"{', '.join(parts)}; {line['seconds']:.0f} s, {line['peak_gb']:.1f} GB"


def _measure(name: str, route: str, *, limit_bytes: int) -> dict[str, Any]:
    """Runs one worker; what it said before it died counts."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "CUDA_VISIBLE_DEVICES": "-1", "PYTHONPATH": str(ROOT)}
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        out = Path(folder) / "out"
        with log.open("w") as errors, out.open("w") as lines:
            started = time.monotonic()
            process = subprocess.Popen(
                [sys.executable, "-m", "benchmarks.applications", "--worker", name, route],
                stdout=lines, stderr=errors, cwd=folder, env=environment, text=True,
            )  # fmt: skip
            peak, killed = _watch(process, limit_bytes)
            seconds = time.monotonic() - started
        said = [json.loads(line) for line in out.read_text().splitlines() if line.startswith("{")]
        formats = {each["format"]: each for each in said}
        tail = log.read_text(errors="replace").strip().splitlines()[-1:]
    reason = f"killed at {limit_bytes / 1e9:g} GB" if killed else f"exit code {process.returncode}: {' '.join(tail)}"
    for each in FORMATS:
        formats.setdefault(each, {"format": each, "verdict": "fail", "why": reason})
    return {"name": name, "route": route, "seconds": seconds, "peak_gb": peak / 1e9, "formats": formats}


def _watch(process: subprocess.Popen[str], limit_bytes: int) -> tuple[int, bool]:
    peak = 0
    while process.poll() is None:
        try:
            status = Path(f"/proc/{process.pid}/status").read_text()
        except OSError:
            # Gone between two looks.
            continue
        resident = next((int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmRSS")), 0)
        peak = max(peak, resident)
        if resident > limit_bytes:
            process.kill()
            process.wait()
            return peak, True
        time.sleep(0.1)
    return peak, False


def _work(name: str, route: str) -> int:
    model, images = make_model(name)
    for line in _ours(model, images) if route == "ours" else _plain(model, images):
        print(json.dumps(line), flush=True)
    return 0


def make_model(name: str, *, size: int | None = None, examples: int = EXAMPLES) -> tuple[Any, npt.NDArray[np.float32]]:
    """A model with random weights and batch-norm statistics, and images for it.

    It ends in logits: a softmax over a thousand classes of a model that never
    learned is one number for every image, which would hide any error.
    """
    import keras

    keras.utils.set_random_seed(0)
    size = size or SIZES[name]
    model = getattr(keras.applications, name)(
        weights=None, input_shape=(size, size, 3), classes=CLASSES, classifier_activation=None
    )
    rng = np.random.default_rng(0)
    scalers = (keras.layers.Rescaling, keras.layers.Normalization)
    # Colours and contrasts differ, for the answers to differ.
    colours = rng.random((examples, 1, 1, 3), np.float32)
    images = colours + rng.random((examples, 1, 1, 1), np.float32) * rng.normal(0.0, 0.5, (examples, size, size, 3))
    images = np.clip(images, 0.0, 1.0)
    scales_itself = any(isinstance(layer, scalers) for layer in model.layers)
    inputs = np.asarray(images * 255.0 if scales_itself else images * 2.0 - 1.0, np.float32)
    _randomise(model, inputs[:EXAMPLES], rng)
    return model, inputs


def _randomise(model: Any, images: npt.NDArray[np.float32], rng: np.random.Generator) -> None:
    """Statistics of batch norms that the images have, as after training, behind random offsets.

    Any other numbers let what tells images apart fade from layer to layer: at
    the end of MobileNet nothing is left of it.
    """
    import keras

    layers = [layer for layer in _layers(model) if isinstance(layer, keras.layers.BatchNormalization)]
    dropouts = [layer for layer in _layers(model) if isinstance(layer, keras.layers.Dropout)]
    for layer in layers:
        if layer.center:
            # Without these a ReLU may be zero for every image.
            layer.beta.assign(rng.normal(0.0, 0.3, layer.beta.shape))
    # Whole branches fall out in EfficientNet's training, and its statistics would be those of another network.
    with _zeroed(layers, "momentum"), _zeroed(dropouts, "rate"):
        if layers:
            model(images, training=True)


@contextmanager
def _zeroed(layers: Sequence[Any], attribute: str) -> Iterator[None]:
    before = [getattr(layer, attribute) for layer in layers]
    for layer in layers:
        setattr(layer, attribute, 0.0)
    try:
        yield
    finally:
        for layer, value in zip(layers, before, strict=True):
            setattr(layer, attribute, value)


def _layers(model: Any) -> Iterator[Any]:
    for layer in model.layers:
        yield layer
        if hasattr(layer, "layers"):
            yield from _layers(layer)


def _ours(model: Any, images: npt.NDArray[np.float32]) -> Iterator[dict[str, Any]]:
    from modelyard.errors import ExportError
    from modelyard.export import ExportOptions, export

    options = ExportOptions(
        optional=("onnx", "tflite"), min_examples=EXAMPLES, latency_calls=10, max_abs_error=TOLERANCE
    )
    with tempfile.TemporaryDirectory() as folder:
        try:
            report = export(
                model,
                Path(folder) / "model",
                data={_only([each.name for each in model.inputs]): images},
                options=options,
            )
        except ExportError as exc:
            for each in FORMATS:
                yield {"format": each, "verdict": "refused", "why": exc.message}
            return
        for each in FORMATS:
            if each in report.skipped:
                yield {"format": each, "verdict": "refused", "why": report.skipped[each]}
            else:
                figures = report.checks[each].report
                yield {"format": each, "verdict": "verified", "error": figures.max_abs_error}


def _plain(model: Any, images: npt.NDArray[np.float32]) -> Iterator[dict[str, Any]]:
    want = np.concatenate([np.asarray(model(images[start : start + 8])) for start in range(0, len(images), 8)])
    routes: Mapping[str, Callable[[Any, Path, npt.NDArray[np.float32]], npt.NDArray[np.float32]]] = {
        "saved_model": _plain_saved_model, "tflite": _plain_tflite, "onnx": _plain_onnx,
    }  # fmt: skip
    for each, route in routes.items():
        with tempfile.TemporaryDirectory() as folder:
            try:
                got = route(model, Path(folder), images)
            # Whatever a converter or a runtime raises is the result.
            except Exception as exc:
                yield {"format": each, "verdict": "fail", "why": f"{type(exc).__name__}: {exc}"}
                continue
        error, spread = float(np.max(np.abs(got - want))), float(want.max() - want.min())
        good = np.isfinite(error) and error <= _tolerance(spread, float(np.abs(want).max()))
        why = "" if good else f"{error:.1e} off where outputs spread over {spread:.1e}"
        verdict = "right" if good else "fail"
        yield {"format": each, "verdict": verdict, "error": error, "spread": spread, "why": why}


def _tolerance(spread: float, largest: float) -> float:
    from modelyard.export import ExportOptions

    options = ExportOptions(max_abs_error=TOLERANCE)
    rounding = 32 * float(np.spacing(np.float32(largest)))
    return min(options.max_abs_error * max(1.0, spread), max(options.max_spread_error * spread, rounding))


def _only(names: list[str]) -> str:
    (name,) = names
    return name


def _plain_saved_model(model: Any, folder: Path, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    import tensorflow as tf

    model.export(folder / "model", verbose=False)
    # Its variables live as long as it does.
    loaded = tf.saved_model.load(str(folder / "model"))
    return np.asarray(loaded.serve(images))


def _plain_tflite(model: Any, folder: Path, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    import tensorflow as tf
    from ai_edge_litert.interpreter import Interpreter

    content = tf.lite.TFLiteConverter.from_keras_model(model).convert()
    run = Interpreter(model_content=content).get_signature_runner()
    key = _only(list(run.get_input_details()))
    return np.concatenate([next(iter(run(**{key: image[np.newaxis]}).values())) for image in images])


def _plain_onnx(model: Any, folder: Path, images: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    import onnxruntime

    model.export(folder / "model.onnx", format="onnx", verbose=False)
    session = onnxruntime.InferenceSession(folder / "model.onnx", providers=["CPUExecutionProvider"])
    inputs = session.get_inputs()
    if len(inputs) != 1:
        raise ValueError(f"{len(inputs) - 1} stray required inputs: {', '.join(each.name for each in inputs[1:])}")
    return np.concatenate([session.run(None, {inputs[0].name: images[i : i + 8]})[0] for i in range(0, len(images), 8)])


def make_table(results: Mapping[tuple[str, str], Mapping[str, Any]]) -> str:
    """The table in Markdown, with a sentence that counts and a list of what failed.

    Args:
        results: Lines of the file of results by architecture and route.
    """
    lines = [
        "| architecture | input | SavedModel | ONNX | TFLite | plain SavedModel | plain ONNX | plain TFLite |",
        "|---|---|---|---|---|---|---|---|",
    ]
    reasons: list[str] = []
    for name in sorted(SIZES):
        cells = []
        for route in ("ours", "plain"):
            formats = results.get((name, route), {}).get("formats", {})
            for each in FORMATS:
                cells.append(_cell(formats.get(each)))
                if formats.get(each, {}).get("why"):
                    label = "" if route == "ours" else "plain "
                    reasons.append(f"- {name}, {label}{each}: {_short(formats[each]['why'])}")
        lines.append(f"| {name} | {SIZES[name]} x {SIZES[name]} | {' | '.join(cells)} |")
    return "\n".join([*_counts(results), "", *lines, "", "What did not work:", "", *(reasons or ["- nothing"])])


def _counts(results: Mapping[tuple[str, str], Mapping[str, Any]]) -> list[str]:
    counts: dict[str, int] = {}
    for (_, route), line in results.items():
        for each in line["formats"].values():
            key = f"{route} {each['verdict']}"
            counts[key] = counts.get(key, 0) + 1
    ours = sum(count for key, count in counts.items() if key.startswith("ours"))
    plain = sum(count for key, count in counts.items() if key.startswith("plain"))
    return [
        f"Of {ours} artefacts of ours {counts.get('ours verified', 0)} are verified, "
        f"{counts.get('ours refused', 0)} refused and {counts.get('ours fail', 0)} not made; of {plain} plain ones "
        f"{counts.get('plain right', 0)} are right. Right is what differs by {TOLERANCE:g} of the outputs' spread at "
        "most."
    ]


def _cell(entry: Mapping[str, Any] | None) -> str:
    if entry is None:
        return "?"
    return entry["verdict"] if entry.get("error") is None else f"{entry['verdict']}, {entry['error']:.0e}"


def _short(text: str) -> str:
    line = " ".join(text.split()).replace("|", "/")
    return line if len(line) <= 240 else f"{line[:237]}..."


if __name__ == "__main__":
    raise SystemExit(main())
