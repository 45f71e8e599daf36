"""The configuration of a run: options, limits, plans and shapes of load."""

from modelyard.loadtests.options._limits import (
    EXIT_BROKEN,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    Check,
    Limits,
    Measured,
    broken_limits,
    check_limits,
    exit_code,
    interruption,
)
from modelyard.loadtests.options._options import (
    RANDOM,
    TOKEN,
    LoadTestOptions,
    add_arguments,
    duration,
    fraction,
    natural,
    options_from,
    positive,
    token,
    whole,
    whole_duration,
)
from modelyard.loadtests.options._plan import read_plan
from modelyard.loadtests.options._repository import model_dir, warmup_file
from modelyard.loadtests.options._shapes import Segment, Shape, constant

__all__ = [
    "Check",
    "EXIT_BROKEN",
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "Limits",
    "LoadTestOptions",
    "Measured",
    "RANDOM",
    "Segment",
    "Shape",
    "TOKEN",
    "add_arguments",
    "broken_limits",
    "check_limits",
    "constant",
    "duration",
    "exit_code",
    "fraction",
    "interruption",
    "model_dir",
    "natural",
    "options_from",
    "positive",
    "read_plan",
    "token",
    "warmup_file",
    "whole",
    "whole_duration",
]
