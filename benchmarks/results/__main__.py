"""Writes docs/results.md: what every task has shown here, beside what it must show.

Run as ``python -m benchmarks.results TASK ...`` where the extra ``training`` and
the full data set are installed. It trains each task that is named for real, some
minutes at most on two cores, puts its row into docs/results.json, and writes the
page; the rows of other tasks stay as they are. Without names it runs them all.

``fashion`` has a section of its own: ten epochs, beside the tutorial that it
reproduces, once for each of the seeds 0, 1, 2, ..., every one of them reported:
after ten epochs the accuracy still moves by half a percent from epoch to epoch,
so one seed alone shows luck. The same again with ``--ema-decay 0.999``.

``--full-times`` times some steps of the training of each task's source instead, and
``--full-runs FOLDER`` runs it to the end, below that folder: stopped, it goes on.

It ends with exit code 1 where a task that it ran does not show what it must.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import statistics
import sys
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.pages import processor
from benchmarks.results.full_recipes import full_table, time_full
from benchmarks.results.full_runs import PUBLISHED, full_runs_table, run_full
from benchmarks.results.task_results import RECIPES, measure
from modelyard.training import EvalResult, ProgressBar, Trainer, TrainerOptions, TrainResult
from modelyard.training.data import FashionMnist, load_fashion_mnist
from modelyard.training.tasks import FashionTask, tasks

# What TensorFlow's tutorial "Custom training with tf.distribute.Strategy" prints, epochs 1 to 10.
TUTORIAL_ACCURACY = (85.79, 86.77, 89.04, 89.47, 90.41, 90.48, 90.90, 90.96, 91.02, 90.93)
TUTORIAL_LOSS = (0.511, 0.336, 0.293, 0.261, 0.236, 0.219, 0.200, 0.184, 0.170, 0.158)
TARGET = 90.5
BATCH_SIZE = 64
EMA_DECAY = 0.999
START, END = "<!-- fashion -->", "<!-- end of fashion -->"


def main(argv: list[str]) -> int:
    """Trains, writes the page, and checks the targets."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tasks", nargs="*", metavar="TASK", help=f"any of {', '.join(tasks())} (default: all)")
    parser.add_argument(
        "--runs", type=int, default=5, help="seeds of fashion from 0 on, all of them reported (default: %(default)s)"
    )
    parser.add_argument(
        "--full-times", action="store_true", help="time some steps of the full recipes; leaves the rows as they are"
    )
    parser.add_argument(
        "--full-runs", type=Path, metavar="FOLDER", help=f"run the full recipes of {', '.join(PUBLISHED)} to their end"
    )
    parser.add_argument("--epochs", type=int, help="end --full-runs after this many; called again, it goes on")
    parser.add_argument("--output", type=Path, default=Path(__file__).parents[2].joinpath("docs", "results.md"))
    parser.add_argument("--rows", type=Path, default=Path(__file__).parents[2].joinpath("docs", "results.json"))
    parser.add_argument(
        "--machine-note", default="", help="what the page shall add about the machine, such as its load"
    )
    arguments = parser.parse_args(argv)
    known = PUBLISHED if arguments.full_runs else tasks()
    names = arguments.tasks or list(known)
    unknown = set(names) - set(known)
    if unknown:
        parser.error(f"unknown task {', '.join(sorted(unknown))}; expected any of {', '.join(known)}")
    missed = []
    for name in names:
        print(name, flush=True)
        section = None
        found: dict[str, Any]
        if arguments.full_times:
            found = {"full": time_full(name)}
        elif arguments.full_runs:
            found = {"full_run": run_full(name, arguments.full_runs, arguments.epochs)}
        elif name == "fashion":
            data = load_fashion_mnist(allow_subset=False)
            results = [_train(data, seed) for seed in range(arguments.runs)]
            averaged = [_averaged_run(data, seed) for seed in range(arguments.runs)]
            section = page(results, arguments.machine_note)
            found = fashion_row(results) | {"averaged": averaged}
        else:
            found = measure(name)
        own_row = "run" in found
        if own_row:
            found["machine"] = machine(arguments.machine_note)
        # After each task: a later one that fails or is stopped takes no earlier row with it. And read only now:
        # another run may have written meanwhile.
        rows = json.loads(arguments.rows.read_text("utf-8")) if arguments.rows.exists() else {}
        rows[name] = rows.get(name, {}) | found
        write(arguments, rows, fashion_section(arguments.output) if section is None else section)
        if not own_row:
            continue
        print(f"{name}: {rows[name]['measured']}; {rows[name]['seconds']:.0f} s", flush=True)
        if not rows[name]["reached"]:
            missed.append(name)
    if missed:
        print(f"NOT shown: {', '.join(missed)}")
    return 1 if missed else 0


def write(arguments: argparse.Namespace, rows: dict[str, Any], section: str) -> None:
    """Writes the rows and the page.

    Args:
        arguments: Where they go.
        rows: By task.
        section: The part about the runs of ``fashion``.
    """
    arguments.rows.write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n", "utf-8")
    parts = [
        table(rows),
        f"\n{START}\n{section}{END}\n",
        averaged_section(rows),
        full_runs_table(rows),
        full_table(rows),
    ]
    arguments.output.write_text("".join(parts), "utf-8")


def table(rows: dict[str, Any]) -> str:
    """The first part of results.md.

    Args:
        rows: By task, as :func:`.task_results.measure` makes them.
    """
    lines = []
    for name in tasks():
        must = RECIPES[name].must_show if name in RECIPES else FASHION_MUST
        # A task whose full recipe alone was timed has no row yet.
        if "run" in rows.get(name, {}):
            row = rows[name]
            verdict = "yes" if row["reached"] else "**no**"
            measured = "; ".join([row["measured"], *averaged_summary(row)])
            lines.append(f"| `{name}` | {row['run']} | {must} | {measured} | {verdict} | {row['seconds']:,.0f} |")
        else:
            lines.append(f"| `{name}` | | {must} | not measured yet | | |")
    machines = sorted({row["machine"] for row in rows.values() if "machine" in row})
    return f"""\
# Results of the tasks

<!-- Written by benchmarks/results; do not edit. -->

Each row is one run of `python -m benchmarks.results TASK`, with seed 0 where nothing else is said. The seconds are
those of the whole run, with tracing, evaluation and pictures. Runs are short: `modelyard train TASK --full` is the
training of a task's source.

| Task | Run | Must show | Measured | Shown | s |
|---|---|---|---|---|---:|
{chr(10).join(lines)}

Machine: {"; ".join(machines)}.
"""


FASHION_MUST = f"mean test accuracy after 10 epochs at least {TARGET} %"


def fashion_section(path: Path) -> str:
    """The part about ``fashion`` of the page as it is; empty where there is none.

    Args:
        path: Of the page.
    """
    if not path.exists():
        return ""
    found = re.search(f"{START}\n(.*){END}", path.read_text("utf-8"), re.DOTALL)
    return found[1] if found else ""


def fashion_row(results: Sequence[TrainResult]) -> dict[str, Any]:
    """The row of ``fashion``.

    Args:
        results: Of all seeds.
    """
    finals = [_final(result) for result in results]
    seconds = [sum(epoch.seconds + epoch.eval_seconds for epoch in result.history) for result in results]
    first = results[0]
    return {
        "run": f"{len(finals)} seeds; {len(first.history)} epochs, {first.step:,} steps of "
        f"{first.config['batch_size']}; {first.data}",
        "measured": f"mean {statistics.fmean(finals):.2f} %, seeds {min(finals):.2f} to {max(finals):.2f}",
        "reached": statistics.fmean(finals) >= TARGET,
        "seconds": statistics.fmean(seconds),
    }


def averaged_summary(row: dict[str, Any]) -> list[str]:
    """What the row of ``fashion`` adds about averaged weights; nothing for other rows.

    Args:
        row: Of any task.
    """
    if "averaged" not in row:
        return []
    finals = [run["accuracy"][-1] for run in row["averaged"]]
    return [
        f"with `--ema-decay {EMA_DECAY}` mean {statistics.fmean(finals):.2f} %, "
        f"seeds {min(finals):.2f} to {max(finals):.2f}"
    ]


def averaged_section(rows: dict[str, Any]) -> str:
    """The part of the page about ``fashion`` with averaged weights; empty where it was not run.

    Args:
        rows: By task.
    """
    runs = rows.get("fashion", {}).get("averaged", [])
    if not runs:
        return ""
    finals = [run["accuracy"][-1] for run in runs]
    reached = sum(final >= TARGET for final in finals)
    mean = statistics.fmean(finals)
    epochs = len(runs[0]["accuracy"])
    heads = " | ".join(str(number) for number in range(1, epochs + 1))
    lines = "\n".join(f"| {run['seed']} | {' | '.join(f'{value:.2f}' for value in run['accuracy'])} |" for run in runs)
    return f"""
## `fashion` with averaged weights

The same training, evaluated with an average of the weights over about the last thousand steps, which is also what
is exported: `modelyard train fashion --ema-decay {EMA_DECAY}`. After epoch {epochs} the mean is {mean:.2f} %; of the
{len(finals)} seeds, {reached} reach {TARGET} % on their own. No seed was left out. Test accuracy in percent, by epoch:

| Seed | {heads} |
|---:|{"---:|" * epochs}
{lines}
"""


def machine(note: str) -> str:
    """What it ran on.

    Args:
        note: To be added.
    """
    text = f"{processor()}, {os.cpu_count()} logical cores, {platform.system()} {platform.machine()}"
    return f"{text}; {note}" if note else text


def page(results: Sequence[TrainResult], machine_note: str = "") -> str:
    """The section on ``fashion``."""
    finals = [_final(result) for result in results]
    mean = statistics.fmean(finals)
    verdict = "reached" if mean >= TARGET else "NOT reached"
    reached = sum(final >= TARGET for final in finals)
    epochs = list(zip(*(result.history for result in results), strict=True))
    rows = "\n".join(
        f"| {number} | {statistics.fmean(accuracy(epoch) for epoch in same):.2f} | {min(map(accuracy, same)):.2f} "
        f"to {max(map(accuracy, same)):.2f} | {theirs:.2f} | {statistics.fmean(e.train['loss'] for e in same):.3f} "
        f"| {loss:.3f} |"
        for number, (same, theirs, loss) in enumerate(zip(epochs, TUTORIAL_ACCURACY, TUTORIAL_LOSS, strict=True), 1)
    )
    seeds = "\n".join(
        f"| {result.config['seed']} | {' | '.join(f'{accuracy(epoch):.2f}' for epoch in result.history)} "
        f"| {sum(epoch.seconds + epoch.eval_seconds for epoch in result.history):.0f} "
        f"| {statistics.median(epoch.examples_per_second for epoch in result.history):,.0f} |"
        for result in results
    )
    heads = " | ".join(str(number) for number in range(1, len(epochs) + 1))
    first = results[0]
    return f"""\
## `fashion` beside its tutorial

The network and the training are those of TensorFlow's tutorial "Custom training with tf.distribute.Strategy"; its
columns hold the numbers of its published run. Mean test accuracy after epoch {len(epochs)}, over the seeds 0 to
{len(results) - 1}: {mean:.2f} %; the target is {TARGET} %, {verdict} by the mean.
Of the {len(results)} seeds, {reached} reached it on their own. No seed was left out.

| Epoch | Test accuracy, %, mean | Lowest to highest seed | Tutorial | Training loss, mean | Tutorial |
|---:|---:|---:|---:|---:|---:|
{rows}

Test accuracy of every seed, in percent, by epoch; the time of the whole run with its evaluations, in seconds; and
the median over the epochs of training images per second:

| Seed | {heads} | s | Images/s |
|---:|{"---:|" * (len(epochs) + 2)}
{seeds}

| | |
|---|---|
| Each run | {first.step:,} steps of {first.config["batch_size"]} images, Adam, learning rate 0.001 |
| Data | {first.data} |
| Machine | {machine(machine_note)} |
| Software | Python {platform.python_version()}, TensorFlow {version("tensorflow")}, Keras {version("keras")} |

Made with `python -m benchmarks.results fashion`; the same seed gives the same accuracies and losses again on the same
machine and software, and slightly different ones on others.
"""


def accuracy(epoch: EvalResult) -> float:
    """Test accuracy after an epoch, in percent."""
    return 100 * epoch.evaluation["accuracy"]


def _final(result: TrainResult) -> float:
    return accuracy(result.history[-1])


def _averaged_run(data: FashionMnist, seed: int) -> dict[str, Any]:
    result = _train(data, seed, EMA_DECAY)
    return {
        "seed": seed,
        "accuracy": [round(accuracy(epoch), 2) for epoch in result.history],
    }


def _train(data: FashionMnist, seed: int, ema_decay: float | None = None) -> TrainResult:
    options = TrainerOptions(epochs=len(TUTORIAL_ACCURACY), batch_size=BATCH_SIZE, seed=seed, ema_decay=ema_decay)
    print(f"Seed {seed}", flush=True)
    return Trainer(FashionTask(data=data), options, [ProgressBar()]).run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
