"""Versions that are loaded."""

from modelyard.serving.servables._computing import Computing
from modelyard.serving.servables._loader import load_servable
from modelyard.serving.servables._memory import limit_heaps, release_memory, return_memory, settle_memory
from modelyard.serving.servables._plans import Plan, plan_of
from modelyard.serving.servables._servable import Servable

__all__ = [
    "Computing",
    "Plan",
    "Servable",
    "limit_heaps",
    "load_servable",
    "plan_of",
    "release_memory",
    "return_memory",
    "settle_memory",
]
