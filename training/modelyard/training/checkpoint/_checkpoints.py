"""Checkpoints: everything a run needs to go on as if it had never stopped.

::

    <model_dir>/checkpoints/step-000000937/    put in place by one rename
        variables.index  variables.data-*      models, optimizers, random state (TensorFlow's format)
        state.json                             position in the input, sums of the epoch, history
    <model_dir>/checkpoints/.staging-*/        work in progress; left behind only by a killed process
"""

from __future__ import annotations

import json
import math
import shutil
import tempfile
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

from modelyard.artifact import flush
from modelyard.errors import CheckpointError
from modelyard.training.checkpoint._mirror import Mirror
from modelyard.training.loop import Totals
from modelyard.training.run import EvalResult, Goal, first_line

STATE_VERSION = 1
_PREFIX = "step-"
_STAGING = ".staging-"
_STATE = "state.json"
_VARIABLES = "variables"


@dataclass(frozen=True, kw_only=True)
class RunState:
    """Where a run is, apart from its variables: epochs are numbered from 0, totals and seconds are of the current one.

    ``config`` has the options that decide the numbers; a run may only go on with the same.
    """

    task: str
    config: Mapping[str, Any]
    step: int
    epoch: int
    epoch_step: int
    totals: Totals
    seconds: float
    history: tuple[EvalResult, ...]

    def to_json(self) -> str:
        """The text of ``state.json``; floats keep every bit."""
        return json.dumps({"version": STATE_VERSION, **asdict(self)}, indent=1) + "\n"

    @classmethod
    def from_json(cls, text: str) -> RunState:
        """Parses ``state.json``."""
        document = json.loads(text)
        version = document.pop("version")
        if version != STATE_VERSION:
            raise ValueError(f"version {version}, where this modelyard reads {STATE_VERSION}")
        totals = document.pop("totals")
        sums = {str(name): (float(total), float(count)) for name, (total, count) in totals["sums"].items()}
        history = tuple(EvalResult(**entry) for entry in document.pop("history"))
        return cls(totals=Totals(sums=sums, examples=int(totals["examples"])), history=history, **document)


class Checkpoints:
    """The checkpoints of one run."""

    def __init__(
        self,
        folder: Path,
        trackables: Mapping[str, object],
        *,
        keep: int,
        goal: Goal | None = None,
        background: bool = False,
    ) -> None:
        self._folder = folder
        self._keep = keep
        self._goal = goal
        self._background = background
        self._mirror: Mirror | None = None
        self._names: set[str] = set()
        self._pending: Future[Path] | None = None
        # TensorFlow finds nothing in a metric.
        tracked = {
            name: list(item.variables) if isinstance(item, keras.metrics.Metric) else item
            for name, item in trackables.items()
        }
        # The view holds its root only weakly.
        root = tf.train.Checkpoint(objects=tracked)
        found = {id(node) for node in tf.train.TrackableView(root).descendants()}
        listed = {id(value): value for item in tracked.values() for value in list_variables(item)}
        unfound = [value for identity, value in listed.items() if identity not in found]
        random = tf.random.get_global_generator()
        self._checkpoint = tf.train.Checkpoint(objects=tracked, unfound=unfound, random=random)

    def clean(self) -> None:
        """Removes what killed processes have left behind."""
        for path in self._folder.glob(f"{_STAGING}*"):
            shutil.rmtree(path)

    def save(self, state: RunState, beside: Mapping[str, bytes] | None = None) -> Path:
        """Writes a checkpoint, then removes the oldest ones beyond the number to keep.

        In the background only the copy is made before it returns; see :meth:`finished`.
        """
        self.wait()
        target = self._folder / f"{_PREFIX}{state.step:09d}"
        if not self._background or not self._names:
            # The first one is written in the foreground: its names are what later copies must have.
            self._write(self._checkpoint.write, state, target, beside or {})
            if self._background:
                self._names = _names(target / _VARIABLES)
            done: Future[Path] = Future()
            done.set_result(target)
            self._pending = done
            return target
        mirror = self._mirror = self._mirror or Mirror(self._checkpoint)
        mirror.copy()
        executor = ThreadPoolExecutor(1, thread_name_prefix="checkpoint")
        self._pending = executor.submit(self._write, mirror.write, state, target, beside or {})
        executor.shutdown(wait=False)
        return target

    def finished(self) -> Path | None:
        """The checkpoint that is in place since the last call; None where there is none."""
        return self.wait() if self._pending is not None and self._pending.done() else None

    def wait(self) -> Path | None:
        """Waits for what is being written, and returns as :meth:`finished`."""
        pending, self._pending = self._pending, None
        return None if pending is None else pending.result()

    def _write(
        self, write: Callable[[str], object], state: RunState, target: Path, beside: Mapping[str, bytes]
    ) -> Path:
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            staged = Path(tempfile.mkdtemp(prefix=_STAGING, dir=self._folder))
            try:
                write(str(staged / _VARIABLES))
                if self._names and _names(staged / _VARIABLES) != self._names:
                    raise CheckpointError(
                        "The task's models hold more than variables, which cannot be written in the background. "
                        "Use async_checkpoints=False."
                    )
                for name, content in beside.items():
                    (staged / name).write_bytes(content)
                (staged / _STATE).write_text(state.to_json(), "utf-8")
                flush(*staged.iterdir(), staged)
                staged.rename(target)
                flush(self._folder)
            finally:
                if staged.exists():
                    shutil.rmtree(staged)
            self._remove_old(state)
        except (OSError, tf.errors.OpError) as exc:
            raise CheckpointError(f"The checkpoint {target} cannot be written: {exc}") from exc
        return target

    def _remove_old(self, state: RunState) -> None:
        best = self._goal.best(state.history).step if self._goal and state.history else None
        for old in list_checkpoints(self._folder)[: -self._keep]:
            if checkpoint_step(old) != best:
                shutil.rmtree(old)

    def restore(self, path: Path) -> RunState:
        """Reads a checkpoint back into the variables."""
        self.wait()
        state = read_state(path)
        try:
            # Both checks, before a step can run on variables that were not restored.
            self._checkpoint.read(str(path / _VARIABLES)).assert_consumed()
        except (AssertionError, ValueError) as exc:
            raise CheckpointError(
                f"The checkpoint {path} does not fit the task: {first_line(exc)} It was made with other models, "
                "optimizers or metrics. Use the code that made it, or another model_dir."
            ) from exc
        except (tf.errors.OpError, IndexError, RuntimeError) as exc:
            # TensorFlow's reader raises the last two for files that are cut short.
            raise _damaged(path, first_line(exc)) from exc
        return state


def list_variables(trackable: object) -> list[tf.Variable]:
    """Every variable of a model, an optimizer or a module, with the random state in them."""
    if isinstance(trackable, tf.Variable):
        return [trackable]
    return list(getattr(trackable, "variables", ()))


def list_weights(trackables: Mapping[str, object]) -> list[tf.Variable]:
    """Every variable of floats that is trained, in all of a task's models, each once.

    A counter is no weight, though TensorFlow takes every variable for trainable unless told otherwise.
    """
    models = _models(trackables)
    listed = [value for item in models.values() for value in getattr(item, "trainable_variables", ())]
    # A tf.Module lists no variables of Keras layers in it, and a variable lists none.
    root = tf.train.Checkpoint(objects=models)
    nodes = tf.train.TrackableView(root).descendants()
    found = [node for node in nodes if isinstance(node, tf.Variable | keras.Variable) and node.trainable]
    weights = {id(value): value for value in (*listed, *found)}
    return [value for value in weights.values() if tf.as_dtype(value.dtype).is_floating]


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    if not folder.is_dir():
        return []
    found = [path for path in folder.iterdir() if path.name.startswith(_PREFIX) and path.name[5:].isdecimal()]
    return sorted(found, key=lambda path: int(path.name[5:]))


def checkpoint_step(path: Path) -> int:
    """The training step of a checkpoint."""
    return int(path.name[len(_PREFIX) :])


def find_checkpoint(path: Path, *, goal: Goal | None = None) -> Path:
    """The checkpoint that a path means."""
    if (path / _STATE).is_file():
        return path
    found = list_checkpoints(path / "checkpoints")
    if not found:
        raise CheckpointError(f"{path} has no checkpoint; train the task with this model_dir first.")
    if goal is None:
        return found[-1]
    history = read_state(found[-1]).history
    if not history:
        raise CheckpointError(f"The run in {path} has not been evaluated yet, so that no checkpoint is its best.")
    best = goal.best(history)
    if math.isnan(goal.value(best)):
        raise CheckpointError(
            f"{goal.metric} is NaN in every evaluation of the run in {path}, so that no checkpoint is its best. Take "
            "the newest, or another goal (goal=, --best)."
        )
    for candidate in found:
        if checkpoint_step(candidate) == best.step:
            return candidate
    raise CheckpointError(
        f"The best checkpoint of {path} was that of step {best.step}, which was not kept. "
        "Train with TrainerOptions(keep_best=...), or take the newest."
    )


def restore_models(path: Path, trackables: Mapping[str, object]) -> RunState:
    """Reads the values of everything but optimizers and metrics: for another run, or another precision."""
    state = read_state(path)
    try:
        reader = tf.train.Checkpoint(objects=_models(trackables)).read(str(path / _VARIABLES))
        reader.assert_existing_objects_matched().expect_partial()
    except (AssertionError, ValueError) as exc:
        raise CheckpointError(
            f"The checkpoint {path} does not fit the models of the task: {first_line(exc)} "
            "Their layers and shapes must be the same."
        ) from exc
    except (tf.errors.OpError, IndexError, RuntimeError) as exc:
        raise _damaged(path, first_line(exc)) from exc
    return state


def read_state(path: Path) -> RunState:
    """Reads ``state.json`` of a checkpoint."""
    try:
        return RunState.from_json((path / _STATE).read_text("utf-8"))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as exc:
        raise _damaged(path, f"{_STATE}: {type(exc).__name__}: {exc}") from exc


def _models(trackables: Mapping[str, object]) -> dict[str, object]:
    others = (keras.optimizers.Optimizer, keras.metrics.Metric)
    return {name: item for name, item in trackables.items() if not isinstance(item, others)}


def _names(prefix: Path) -> set[str]:
    return set(tf.train.load_checkpoint(str(prefix)).get_variable_to_shape_map())


def _damaged(path: Path, reason: str) -> CheckpointError:
    others = [other.name for other in list_checkpoints(path.parent) if other != path]
    advice = f"Remove its folder to go on from {others[-1]}." if others else "Remove its folder to start again."
    return CheckpointError(f"The checkpoint {path} is damaged: {reason} {advice}")
