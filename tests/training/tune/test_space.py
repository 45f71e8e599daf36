from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from modelyard.errors import ConfigurationError
from modelyard.training.tune import Parameter, TuneOptions, load_options, parse_parameter
from modelyard.training.tune._space import suggest
from tests.training.toy_task import ToyTask


@pytest.fixture
def trial() -> optuna.Trial:
    return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=1)).ask()


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        ("float", "rate=1e-4:1e-1:log", Parameter(name="rate", kind="float", low=1e-4, high=0.1, log=True)),
        ("float", "rate=-1:1", Parameter(name="rate", kind="float", low=-1.0, high=1.0)),
        ("int", "units=1:8", Parameter(name="units", kind="int", low=1, high=8)),
        ("choice", "size=32,0.5,true,adam", Parameter(name="size", kind="choice", choices=(32, 0.5, True, "adam"))),
    ],
)
def test_flags_are_read(kind: Any, text: str, expected: Parameter, trial: optuna.Trial) -> None:
    parameter = parse_parameter(kind, text)
    options = TuneOptions(task="fashion", study_dir=Path("folder"), space=(parameter,))
    assert TuneOptions.from_json(json.loads(json.dumps(options.to_json()))) == options
    assert parameter == expected
    value = parameter.suggest(trial)
    assert value in parameter.choices if kind == "choice" else parameter.low <= value <= parameter.high
    assert type(value) is {"float": float, "int": int, "choice": type(value)}[kind]


@pytest.mark.parametrize(
    ("kind", "text", "message"),
    [
        ("float", "rate", "expected name=low:high"),
        ("float", "=1:2", "expected name=low:high"),
        ("float", "rate=1:2:linear", "expected name=low:high"),
        ("int", "units=1:2.5", "expected name=low:high"),
        ("choice", "size=", "expected name=a,b,c"),
        ("float", "rate=2:1", "expected low < high"),
        ("float", "rate=0:1:log", "above 0 on a logarithmic scale"),
    ],
)
def test_other_flags_are_an_error(kind: Any, text: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        parse_parameter(kind, text)


def test_an_empty_choice_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="has no values"):
        Parameter(name="size", kind="choice")


def test_the_space_is_the_given_one_or_the_tasks_own(trial: optuna.Trial) -> None:
    class WithSpace(ToyTask):
        @classmethod
        def search_space(cls, trial: Any) -> dict[str, Any]:
            return {"units": trial.suggest_int("units", 3, 5)}

    assert suggest(WithSpace, (), trial)["units"] in (3, 4, 5)
    given = (Parameter(name="layers", kind="int", low=1, high=2),)
    assert set(suggest(WithSpace, given, trial)) == {"layers"}
    with pytest.raises(ConfigurationError, match="task 'toy' declares no search space"):
        suggest(ToyTask, (), trial)


def test_an_unknown_kind_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="The kind of 'a' is 'bool'; expected one of float, int, choice"):
        Parameter(name="a", kind="bool", choices=(True, False))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trials": 0}, "trials is 0"),
        ({"jobs": 0}, "jobs is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"seed": 1 << 32}, r"seed is 4294967296; expected a number below 2\*\*32"),
        ({"trials": 1.5}, "trials is 1.5; expected a whole number >= 1"),
        ({"epochs": float("nan")}, "epochs is nan; expected a whole number >= 1"),
        ({"startup_trials": "4"}, "startup_trials is '4'; expected a whole number >= 1"),
        ({"direction": "max"}, "direction is 'max'; expected one of maximize, minimize"),
        ({"pruner": "None"}, "pruner is 'None'; expected one of median, hyperband, none"),
        ({"space": (Parameter(name="a", kind="int", low=1, high=2),) * 2}, "expected each name once"),
    ],
)
def test_impossible_options_are_an_error(options: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=message):
        TuneOptions(**{"task": "toy", "study_dir": tmp_path, **options})


def test_numbers_of_numpy_become_pythons(tmp_path: Path) -> None:
    options = TuneOptions(task="toy", study_dir=tmp_path, trials=np.int64(3), epochs=2e0)  # type: ignore[arg-type]
    assert json.dumps(options.to_json()["trials"]) == "3"
    assert (options.epochs, type(options.epochs)) == (2, int)


def test_options_survive_the_file_and_another_folder_is_an_error(tmp_path: Path) -> None:
    space = (Parameter(name="a", kind="choice", choices=(1, "b")),)
    options = TuneOptions(task="toy", study_dir=tmp_path, space=space, assignments=("units=4",))
    assert TuneOptions.from_json(options.to_json()) == options
    with pytest.raises(ConfigurationError, match="is not the folder of a search"):
        load_options(tmp_path)
