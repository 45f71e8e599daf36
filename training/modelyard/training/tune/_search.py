"""A search: trials in parallel processes, on a study that outlives all of them."""

from __future__ import annotations

import itertools
import json
import os
import queue
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from optuna.trial import TrialState

from modelyard.errors import ConfigurationError, TrainingError
from modelyard.training.tune._plot import draw_trials
from modelyard.training.tune._study import (
    CONTINUES,
    FOLDER,
    TuneOptions,
    counted,
    discard,
    locked,
    open_study,
    requeue,
    requeue_lost,
    trial_folder,
)

Progress = Callable[[str], None]
_TRIES = 3


@dataclass(frozen=True, kw_only=True)
class SearchResult:
    """The outcome of a search: the best trial, how many trials came to which end, and a plot of all."""

    number: int
    value: float
    values: dict[str, Any]
    model_dir: Path
    complete: int
    pruned: int
    failed: int
    plot: Path


def search(options: TuneOptions, progress: Progress = lambda line: None) -> SearchResult:
    """Searches until ``options.trials`` trials have come to an end; ``progress`` is called with a line for each event.

    A search that was killed goes on: what had ended counts, and what was running goes on from its checkpoints.

    Raises:
        ConfigurationError: The folder is in use or of another search, the task is unknown, or it has no such
            hyperparameter or metric.
        TrainingError: A trial failed for a reason that is not its values, or none went to the end.
        KeyboardInterrupt: Ctrl-C was pressed; the same search goes on.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    with locked(options):
        study = open_study(options)
        for number in requeue_lost(study):
            progress(f"trial {number} was lost with its process; it goes on from its last checkpoint")
        missing = options.trials - len(counted(study))
        if missing > 0:
            progress(f"{missing} trials to go, {min(options.jobs, missing)} at a time; in {options.study_dir}")
            order = len(study.get_trials(deepcopy=False))
            try:
                with closing(_Pool(options, min(options.jobs, missing), order)) as workers:
                    _Search(options, study, workers, progress).run()
            except ConfigurationError:
                if not counted(study):
                    # Nothing is lost, and the corrected command may use the same folder.
                    discard(options)
                raise
        return _result(options, study)


@dataclass(eq=False)
class _Worker:
    index: int
    process: subprocess.Popen[str]
    log: Path
    #: The trial that it runs; None where it is idle, -1 where it has not said which.
    trial: int | None = None
    done: bool = field(default=False)


class _Search:
    def __init__(self, options: TuneOptions, study: optuna.Study, workers: _Pool, progress: Progress) -> None:
        self._options = options
        self._study = study
        self._workers = workers
        self._progress = progress

    def run(self) -> None:
        """Starts trials until there are enough."""
        while True:
            running = [worker for worker in self._workers.alive if worker.trial is not None]
            missing = self._options.trials - len(counted(self._study)) - len(running)
            for worker in [worker for worker in self._workers.alive if worker.trial is None][: max(missing, 0)]:
                self._workers.order(worker)
                running.append(worker)
            if not running:
                return
            worker, message = self._workers.messages.get()
            if message is None:
                self._died(worker)
            else:
                self._take(worker, message)

    def _take(self, worker: _Worker, message: dict[str, Any]) -> None:
        kind = message["kind"]
        if kind == "fatal":
            error = ConfigurationError if message["usage"] else TrainingError
            raise error(f"{message['error']}" if message["usage"] else f"{message['error']} See {worker.log}.")
        number = message["number"]
        if kind == "start":
            worker.trial = number
            values = ", ".join(f"{name} {_short(value)}" for name, value in sorted(message["values"].items()))
            before = "" if message["continues"] is None else f", going on with trial {message['continues']}"
            self._progress(f"trial {number} starts: {values}{before}")
        elif kind == "epoch":
            self._progress(
                f"trial {number} epoch {message['epoch']}/{self._options.epochs}: "
                f"{self._options.metric} {message['value']:.4f}"
            )
        else:
            worker.trial = None
            value = "" if message["value"] is None else f", {self._options.metric} {message['value']:.4f}"
            ended = len(counted(self._study))
            self._progress(
                f"trial {number} {message['state']}{value}, {message['seconds']:.1f} s; "
                f"{ended} of {self._options.trials}"
            )

    def _died(self, worker: _Worker) -> None:
        code = worker.process.wait()
        lost, worker.trial = worker.trial, None
        self._workers.replace(worker)
        if lost is None or lost < 0:
            raise TrainingError(f"A process of the search ended with code {code} before its trial. See {worker.log}.")
        trials = self._study.get_trials(deepcopy=False)
        tries, number = 1, lost
        while CONTINUES in trials[number].user_attrs:
            tries, number = tries + 1, trials[number].user_attrs[CONTINUES]
        if tries < _TRIES:
            requeue(self._study, trials[lost])
            self._progress(f"trial {lost} lost its process (code {code}); it goes on from its last checkpoint")
        else:
            self._study.tell(lost, state=TrialState.FAIL)
            self._progress(f"trial {lost} lost its process (code {code}) for the {tries}th time and fails")


class _Pool:
    """The processes of a search, and what they say."""

    def __init__(self, options: TuneOptions, count: int, first_order: int) -> None:
        self._options = options
        self._count = count
        self._orders = itertools.count(first_order)
        self.messages: queue.Queue[tuple[_Worker, dict[str, Any] | None]] = queue.Queue()
        self.alive = [self._start(index) for index in range(count)]

    def order(self, worker: _Worker) -> None:
        """Lets a worker run a trial."""
        worker.trial = -1
        try:
            self._input(worker).write(f"{next(self._orders)}\n")
            self._input(worker).flush()
        except BrokenPipeError:
            # It died a moment ago; its end is in the queue.
            return

    def replace(self, worker: _Worker) -> None:
        """Puts a new process in the place of one that died."""
        self._input(worker).close()
        self.alive[self.alive.index(worker)] = self._start(worker.index)

    def close(self) -> None:
        """Ends all processes, and what they are doing."""
        for worker in self.alive:
            self._input(worker).close()
        for worker in self.alive:
            try:
                worker.process.wait(10)
            except subprocess.TimeoutExpired:
                worker.process.kill()
                worker.process.wait()

    def _input(self, worker: _Worker) -> Any:
        return worker.process.stdin

    def _start(self, index: int) -> _Worker:
        log = self._options.study_dir / f"worker-{index}.log"
        threads = str(max(1, (os.cpu_count() or 1) // self._count))
        limits = {name: threads for name in ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")}
        paths = [path for path in (str(Path.cwd()), os.environ.get("PYTHONPATH", "")) if path]
        with log.open("a") as errors:
            process = subprocess.Popen(
                [sys.executable, "-m", "modelyard.training.tune._worker", str(self._options.study_dir)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**limits, **os.environ, "PYTHONPATH": os.pathsep.join(paths)},
                # Ctrl-C is for the parent, which ends them.
                start_new_session=True,
            )
        worker = _Worker(index=index, process=process, log=log)
        threading.Thread(target=self._listen, args=(worker,), daemon=True).start()
        return worker

    def _listen(self, worker: _Worker) -> None:
        output = worker.process.stdout
        if output is not None:
            with output:
                for line in output:
                    self.messages.put((worker, json.loads(line)))
        self.messages.put((worker, None))


def _result(options: TuneOptions, study: optuna.Study) -> SearchResult:
    trials = counted(study)
    by_state = {state: [trial for trial in trials if trial.state == state] for state in TrialState}
    complete = by_state[TrialState.COMPLETE]
    plot = options.study_dir / "trials.png"
    draw_trials(trials, plot, metric=options.metric, maximize=options.direction == "maximize")
    if not complete:
        reasons = {trial.user_attrs.get("error", "") for trial in by_state[TrialState.FAIL]} - {""}
        raise TrainingError(
            f"None of the {len(trials)} trials went to the end. {next(iter(sorted(reasons)), '')} "
            "Search smaller ranges, or give another folder and --pruner none."
        )
    best = study.best_trial
    result = SearchResult(
        number=best.number,
        value=float(best.value or 0.0),
        values=dict(best.user_attrs["values"]),
        model_dir=options.study_dir / "trials" / best.user_attrs.get(FOLDER, trial_folder(best.number)),
        complete=len(complete),
        pruned=len(by_state[TrialState.PRUNED]),
        failed=len(by_state[TrialState.FAIL]),
        plot=plot,
    )
    summary = {
        "trial": result.number,
        options.metric: result.value,
        "values": result.values,
        "model_dir": str(result.model_dir),
    }
    (options.study_dir / "best.json").write_text(json.dumps(summary, indent=2) + "\n", "utf-8")
    return result


def _short(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)
