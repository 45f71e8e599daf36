"""What lower precision costs and gains, on three trained networks, and writes the table of docs/export.md.

The networks of the other benches: the Fashion-MNIST CNN (`make bench NAME=serving`),
MobileNetV2 (`NAME=models`) and ResNet50 (`NAME=exporting`), all trained on
Fashion-MNIST, the larger two briefly and on 32 x 32 pixels. Each is exported with
every variant and the default budget, verified on 2,000 test images; accuracy is
also counted on the 8,000 others, which decided nothing. Times are of one image
on one thread, float32 and variant in turns.

    python -m benchmarks.quantize [--work DIR] [--only NAME ...] [--write]
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.pages import processor, write_section

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "export.md"
START, END = "<!-- precision-table: written by benchmarks/quantize.py -->", "<!-- precision-table: end -->"
#: Training images and epochs.
NETWORKS = {"CNN": (60_000, 3), "MobileNetV2": (20_000, 4), "ResNet50": (12_000, 3)}
VERIFIED = 2_000
ROUNDS, CALLS = 15, 40
BATCH = 128


def main() -> int:
    """Trains and exports what is not yet in the folder, prints the table, and writes it where that is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, default=ROOT / "demo" / "quantize", help="keeps networks and results")
    parser.add_argument("--only", nargs="+", choices=sorted(NETWORKS), default=list(NETWORKS), metavar="NAME")
    parser.add_argument("--again", action="store_true", help="export again what is in the folder")
    parser.add_argument("--write", action="store_true", help="write the table into docs/export.md")
    args = parser.parse_args()
    args.work.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        result = args.work / f"{name}.json"
        if args.again or not result.is_file():
            result.write_text(json.dumps(measure(name, args.work)), "utf-8")
    results = {
        name: json.loads((args.work / f"{name}.json").read_text("utf-8"))
        for name in NETWORKS
        if (args.work / f"{name}.json").is_file()
    }
    table = make_table(results)
    print(table)
    if args.write and len(results) == len(NETWORKS):
        write_section(PAGE, START, END, table)
    return 0


def load(name: str, work: Path) -> Any:
    """A network that was trained, now or earlier."""
    import keras

    path = work / f"{name}.keras"
    if not path.is_file():
        train(name).save(path)
    return keras.models.load_model(path)


def train(name: str) -> Any:
    """A network from images to logits, trained on Fashion-MNIST."""
    import keras

    from modelyard.training.data import load_fashion_mnist

    keras.utils.set_random_seed(0)
    count, epochs = NETWORKS[name]
    data = load_fashion_mnist()
    images, labels = pictures(name, data.train_images[:count]), data.train_labels[:count]
    layers = keras.layers
    if name == "CNN":
        # That of the task fashion.
        model = keras.Sequential(
            [
                keras.Input((28, 28, 1), name="image"),
                layers.Conv2D(32, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Conv2D(64, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(64, activation="relu"),
                layers.Dense(10),
            ]
        )
    else:
        architecture = getattr(keras.applications, name)
        model = architecture(weights=None, input_shape=(32, 32, 3), classes=10, classifier_activation=None)
    rate = keras.optimizers.schedules.CosineDecay(1e-3, epochs * count // BATCH)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss, metrics=["accuracy"])
    model.fit(images, labels, batch_size=BATCH, epochs=epochs, verbose=2)
    # A brief training leaves the statistics of batch norms behind the weights.
    norms = [layer for layer in model.layers if isinstance(layer, layers.BatchNormalization)]
    for turn in range(16 if norms else 0):
        for layer in norms:
            layer.momentum = turn / (turn + 1)
        model(images[turn * 2 * BATCH : (turn + 1) * 2 * BATCH], training=True)
    return model


def pictures(name: str, images: npt.NDArray[np.uint8]) -> npt.NDArray[np.float32]:
    """Images as a network takes them."""
    if name == "CNN":
        return (images[..., np.newaxis] / 255.0).astype(np.float32)
    padded = np.pad(images, ((0, 0), (2, 2), (2, 2)))[..., np.newaxis]
    return np.repeat(padded, 3, -1).astype(np.float32) / np.float32(127.5) - 1


def measure(name: str, work: Path) -> dict[str, Any]:
    """Exports a network in every precision, and measures each variant beside float32.

    Args:
        name: Of the network.
        work: Folder for it.
    """
    from modelyard.export import ExportOptions, export
    from modelyard.training.data import load_fashion_mnist

    model, data = load(name, work), load_fashion_mnist()
    images, labels = pictures(name, data.test_images), data.test_labels.astype(np.int64)
    key, examples = model.inputs[0].name, work / f"{name}.npz"
    arrays: dict[str, Any] = {"labels": labels[:VERIFIED], key: images[:VERIFIED]}
    np.savez(examples, **arrays)
    started = time.monotonic()
    report = export(
        model,
        work / "repository" / name.lower(),
        data=examples,
        examples=VERIFIED,
        formats=("onnx", "tflite"),
        precision=("float32", "float16", "int8_dynamic", "int8"),
        options=ExportOptions(batch_sizes=(1, 32), max_abs_error=1e-4, measure_seconds=2.0),
        progress=_Told(),
    )
    (output,) = report.manifest.signatures["serving_default"].outputs
    result: dict[str, Any] = {"seconds": time.monotonic() - started, "variants": {}, "refused": []}
    result["refused"] = [each.reason for each in report.manifest.refused]
    path = report.version.path
    exact: dict[str, float] = {}
    for variant, entry in report.manifest.formats.items():
        format, _, precision = variant.partition(".")
        others = _other_accuracy(path, format, precision or "float32", key, output.name, images, labels)
        # A format in float32 comes before its variants.
        exact.setdefault(format, others)
        result["variants"][variant] = {
            "bytes": report.sizes[variant],
            "before": entry.verify.metric_before,
            "after": entry.verify.metric_after,
            "others_before": exact[format],
            "others_after": others,
            "kept": [each.layer for each in entry.kept_float32],
            "times": _times_as_fast(path, format, precision, key, images) if precision else 1.0,
        }
    return result


def _other_accuracy(
    path: Path, format: str, precision: str, key: str, output: str, images: npt.NDArray[Any], labels: npt.NDArray[Any]
) -> float:
    from modelyard.export.runtimes import load_runtime

    runtime = load_runtime(format, path, precision=precision)
    right = 0
    for start in range(VERIFIED, len(images), 50):
        answer = runtime.run("serving_default", {key: images[start : start + 50]})[output]
        right += int((np.argmax(answer, -1) == labels[start : start + 50]).sum())
    return right / (len(images) - VERIFIED)


def _times_as_fast(path: Path, format: str, precision: str, key: str, images: npt.NDArray[Any]) -> float:
    """Median, over rounds, of the time in float32 divided by the variant's right after it."""
    from modelyard.export.runtimes import load_runtime

    pair = [load_runtime(format, path, precision=each) for each in ("float32", precision)]
    ratios = []
    for turn in range(ROUNDS + 1):
        seconds = []
        for runtime in pair:
            started = time.perf_counter()
            for index in range(CALLS):
                runtime.run("serving_default", {key: images[index : index + 1]})
            seconds.append(time.perf_counter() - started)
        if turn:
            ratios.append(seconds[0] / seconds[1])
    return statistics.median(ratios)


class _Told:
    """Says which stage it is."""

    def __init__(self) -> None:
        self._last = ""

    def __call__(self, event: Any) -> None:
        if event.stage != self._last:
            self._last = event.stage
            print(f"{time.strftime('%H:%M:%S')} {event.stage}", flush=True)


def make_table(results: Mapping[str, Mapping[str, Any]]) -> str:
    """The table in Markdown.

    Args:
        results: By network.
    """
    lines = [
        f"{processor()}, one thread, one image. Accuracy on the {VERIFIED:,} test images that verified, and on the "
        f"{10_000 - VERIFIED:,} that nothing was decided on.",
        "",
        "| network | variant | size | accuracy | of the others | layers in float32 | times as fast as float32 |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, result in results.items():
        for variant, each in result["variants"].items():
            plain = "." not in variant
            change = "" if plain else f" ({100 * (each['after'] - each['before']):+.2f})"
            others = "" if plain else f" ({100 * (each['others_after'] - each['others_before']):+.2f})"
            lines.append(
                f"| {name} | `{variant}` | {each['bytes'] / 1e6:.2f} MB | {each['after']:.2%}{change} | "
                f"{each['others_after']:.2%}{others} | {len(each['kept']) or ''} | "
                f"{'' if plain else format(each['times'], '.2f')} |"
            )
    refused = [f"- {name}: {reason}" for name, result in results.items() for reason in result["refused"]]
    return "\n".join([*lines, *(["", "Refused:", "", *refused] if refused else [])])


if __name__ == "__main__":
    raise SystemExit(main())
