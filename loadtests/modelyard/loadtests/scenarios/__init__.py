"""Scenarios that ship."""

from modelyard.loadtests.scenarios._scenarios import SCENARIOS, run_scenario
from modelyard.loadtests.scenarios._stage import ScenarioOptions

__all__ = [
    "SCENARIOS",
    "ScenarioOptions",
    "run_scenario",
]
