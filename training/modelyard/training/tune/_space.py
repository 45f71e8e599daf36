"""What a search varies: hyperparameters with their ranges, from flags or from the task."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, get_args

from modelyard.errors import ConfigurationError
from modelyard.training.user import Task

if TYPE_CHECKING:
    import optuna

Kind = Literal["float", "int", "choice"]


@dataclass(frozen=True, kw_only=True)
class Parameter:
    """One hyperparameter.

    Attributes:
        name: An argument of the task's constructor, or a field of ``TrainerOptions``.
        kind: What it is.
        low: Least value of a number.
        high: Greatest value of a number.
        log: Whether to search on a logarithmic scale.
        choices: The values of a choice: numbers, booleans or text.

    Raises:
        ConfigurationError: The kind is unknown, there are no choices, or the range is empty or does not fit a
            logarithmic scale.
    """

    name: str
    kind: Kind
    low: float = 0.0
    high: float = 0.0
    log: bool = False
    choices: tuple[bool | int | float | str, ...] = ()

    def __post_init__(self) -> None:
        kinds = get_args(Kind)
        if self.kind not in kinds:
            raise ConfigurationError(f"The kind of {self.name!r} is {self.kind!r}; expected one of {', '.join(kinds)}.")
        if self.kind == "choice":
            if not self.choices:
                raise ConfigurationError(f"The choice {self.name!r} has no values.")
        elif not self.low < self.high:
            raise ConfigurationError(f"The range of {self.name!r} is {self.low} to {self.high}; expected low < high.")
        elif self.log and self.low <= 0:
            raise ConfigurationError(
                f"The range of {self.name!r} starts at {self.low}; expected a number above 0 on a logarithmic scale."
            )

    def suggest(self, trial: optuna.Trial) -> Any:
        """Lets a trial choose a value."""
        if self.kind == "float":
            return trial.suggest_float(self.name, self.low, self.high, log=self.log)
        if self.kind == "int":
            return trial.suggest_int(self.name, int(self.low), int(self.high), log=self.log)
        return trial.suggest_categorical(self.name, list(self.choices))


def parse_parameter(kind: Kind, text: str) -> Parameter:
    """Reads one hyperparameter from a flag: ``name=low:high[:log]`` for numbers, ``name=a,b,c`` for a choice.

    Raises:
        ConfigurationError: The text has another form.
    """
    name, equals, rest = text.partition("=")
    form = "name=a,b,c" if kind == "choice" else "name=low:high or name=low:high:log"
    wrong = ConfigurationError(f"Received --{kind} {text}; expected {form}.")
    if not (name and equals and rest):
        raise wrong
    if kind == "choice":
        return Parameter(name=name, kind=kind, choices=tuple(_value(part) for part in rest.split(",")))
    parts = rest.split(":")
    if len(parts) not in (2, 3) or parts[2:] not in ([], ["log"]):
        raise wrong
    try:
        low, high = (float(part) if kind == "float" else int(part) for part in parts[:2])
    except ValueError as exc:
        raise wrong from exc
    return Parameter(name=name, kind=kind, low=low, high=high, log=len(parts) == 3)


def suggest(task: type[Task], space: Sequence[Parameter], trial: optuna.Trial) -> dict[str, Any]:
    """Lets a trial choose every value."""
    if space:
        return {parameter.name: parameter.suggest(trial) for parameter in space}
    chosen = dict(task.search_space(trial))
    if not chosen:
        raise ConfigurationError(
            f"The task {task.name!r} declares no search space; name what to search, such as "
            "--float learning_rate=1e-4:1e-1:log, or define Task.search_space."
        )
    return chosen


def _value(text: str) -> bool | int | float | str:
    try:
        value = json.loads(text)
    except ValueError:
        return text
    return value if isinstance(value, (bool, int, float, str)) else text
