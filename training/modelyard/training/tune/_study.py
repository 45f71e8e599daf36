"""The folder of a search: its options, its SQLite storage, and its trials."""

from __future__ import annotations

import fcntl
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import optuna
from optuna.trial import FrozenTrial, TrialState

from modelyard.errors import ConfigurationError
from modelyard.training.run import replace_file, seed_number, whole_number
from modelyard.training.tune._space import Parameter

CONTINUES = "continues"
FOLDER = "folder"
_NAME = "search"
_OPTIONS = "search.json"
_STORAGE = "study.db"
#: A search may go on with other values of these.
_FREE = frozenset({"trials", "jobs"})


@dataclass(frozen=True, kw_only=True)
class TuneOptions:
    """What a search does.

    Attributes:
        task: Name of the task, as for :func:`find_task`.
        study_dir: Folder of the search: options, storage, trials, plot.
        trials: Trials in all, those of earlier runs of the search included.
        jobs: Trials that run at the same time, each in a process of its own.
        epochs: Epochs of each trial that is not pruned.
        metric: What to optimize: a name in ``TrainResult.metrics``, such as ``test_accuracy``, after each epoch.
        direction: Whether more of it is better.
        pruner: ``median`` ends a trial whose metric is worse after an epoch than the median of earlier trials after
            that epoch; ``hyperband`` runs many trials for few epochs and few trials for all; ``none`` ends none.
        startup_trials: Trials that choose at random and are not pruned, to compare others with.
        seed: Of the search and of each trial's training.
        space: What to search; empty for the task's own search space.
        assignments: ``argument=value`` for arguments of the task that stay the same.

    Raises:
        ConfigurationError: A number is out of its range, a direction or pruner is unknown, or a parameter comes twice.
    """

    task: str
    study_dir: Path
    trials: int = 20
    jobs: int = 1
    epochs: int = 5
    metric: str = "test_accuracy"
    direction: Literal["maximize", "minimize"] = "maximize"
    pruner: Literal["median", "hyperband", "none"] = "median"
    startup_trials: int = 4
    seed: int = 0
    space: tuple[Parameter, ...] = ()
    assignments: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "study_dir", Path(self.study_dir))
        for name in ("trials", "jobs", "epochs", "startup_trials"):
            object.__setattr__(self, name, whole_number(name, getattr(self, name), 1))
        object.__setattr__(self, "seed", seed_number(self.seed))
        for name, known in (("direction", ("maximize", "minimize")), ("pruner", ("median", "hyperband", "none"))):
            if getattr(self, name) not in known:
                raise ConfigurationError(f"{name} is {getattr(self, name)!r}; expected one of {', '.join(known)}.")
        names = [parameter.name for parameter in self.space]
        if len(set(names)) < len(names):
            raise ConfigurationError(f"The search space is {', '.join(names)}; expected each name once.")

    def to_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {**asdict(self), "study_dir": str(self.study_dir)}

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TuneOptions:
        """From :meth:`to_json`."""
        changed = {
            "study_dir": Path(values["study_dir"]),
            "space": tuple(Parameter(**{**each, "choices": tuple(each["choices"])}) for each in values["space"]),
            "assignments": tuple(values["assignments"]),
        }
        return cls(**{**values, **changed})


@contextmanager
def locked(options: TuneOptions) -> Iterator[None]:
    """Holds a search's folder: two searches at once would take each other's trials for dead."""
    options.study_dir.mkdir(parents=True, exist_ok=True)
    with (options.study_dir / ".lock").open("w") as lock:
        try:
            # The system releases it when the process ends, however it ends.
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as exc:
            raise ConfigurationError(
                f"A search is running in {options.study_dir}; wait for it, or choose another folder."
            ) from exc
        _save(options)
        yield


def _save(options: TuneOptions) -> None:
    path = options.study_dir / _OPTIONS
    if path.exists():
        before = load_options(options.study_dir)
        for field in fields(TuneOptions):
            old, new = getattr(before, field.name), getattr(options, field.name)
            if field.name not in _FREE | {"study_dir"} and old != new:
                raise ConfigurationError(
                    f"The search in {options.study_dir} has {field.name} {old!r}; this one has {new!r}. Use the same "
                    "value to go on with it, or another folder to start anew."
                )
    replace_file(path, json.dumps(options.to_json(), indent=2) + "\n", error=ConfigurationError)


def load_options(study_dir: Path) -> TuneOptions:
    """The options of the search in a folder.

    Raises:
        ConfigurationError: There is no search.
    """
    try:
        return TuneOptions.from_json(json.loads((study_dir / _OPTIONS).read_text("utf-8")))
    except (OSError, ValueError, KeyError, TypeError) as exc:
        raise ConfigurationError(f"{study_dir} is not the folder of a search: {exc}.") from exc


def open_study(options: TuneOptions, *, order: int = 0) -> optuna.Study:
    """Opens the study in a search's folder; makes it where there is none."""
    storage = optuna.storages.RDBStorage(
        f"sqlite:///{(options.study_dir / _STORAGE).resolve()}", engine_kwargs={"connect_args": {"timeout": 60}}
    )
    pruners: dict[str, optuna.pruners.BasePruner] = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=options.startup_trials),
        "hyperband": optuna.pruners.HyperbandPruner(max_resource=options.epochs),
        "none": optuna.pruners.NopPruner(),
    }
    return optuna.create_study(
        storage=storage,
        study_name=_NAME,
        load_if_exists=True,
        direction=options.direction,
        sampler=optuna.samplers.TPESampler(
            seed=(options.seed + order) % (1 << 32), constant_liar=True, n_startup_trials=options.startup_trials
        ),
        pruner=pruners[options.pruner],
    )


def counted(study: optuna.Study) -> list[FrozenTrial]:
    """The trials that have come to an end of their own: a killed one goes on as another."""
    trials = study.get_trials(deepcopy=False)
    gone_on = {trial.user_attrs[CONTINUES] for trial in trials if CONTINUES in trial.user_attrs}
    return [trial for trial in trials if trial.state.is_finished() and trial.number not in gone_on]


def discard(options: TuneOptions) -> None:
    """Removes a search of which no trial has come to an end: options, storage, checkpoints."""
    for name in (_OPTIONS, _STORAGE):
        (options.study_dir / name).unlink(missing_ok=True)
    shutil.rmtree(options.study_dir / "trials", ignore_errors=True)


def requeue_lost(study: optuna.Study) -> list[int]:
    """Queues trials again that a killed search has left running; each goes on from its last checkpoint.

    Call it only while holding the lock, when no trial can be running.
    """
    lost = [trial for trial in study.get_trials(deepcopy=False) if trial.state == TrialState.RUNNING]
    for trial in lost:
        requeue(study, trial)
    return [trial.number for trial in lost]


def requeue(study: optuna.Study, trial: FrozenTrial) -> None:
    """Ends a trial whose process died, and queues one with the same values that goes on with its checkpoints."""
    # Queued first and ended then: a search that is killed in between loses nothing.
    waiting = study.get_trials(deepcopy=False, states=(TrialState.WAITING,))
    if all(other.user_attrs.get(CONTINUES) != trial.number for other in waiting):
        folder = trial.user_attrs.get(FOLDER, trial_folder(trial.number))
        study.enqueue_trial(dict(trial.params), user_attrs={CONTINUES: trial.number, FOLDER: folder})
    study.tell(trial.number, state=TrialState.FAIL)


def trial_folder(number: int) -> str:
    """Name of a trial's folder below ``trials``."""
    return f"{number:05}"
