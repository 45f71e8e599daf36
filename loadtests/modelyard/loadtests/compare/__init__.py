"""What several runs say: capacity, and which of two servers is faster."""

from modelyard.loadtests.compare._capacity import Capacity, CapacityOptions, find_capacity
from modelyard.loadtests.compare._compare import CompareOptions, Comparison, compare
from modelyard.loadtests.compare._statistics import Interval

__all__ = [
    "Capacity",
    "CapacityOptions",
    "CompareOptions",
    "Comparison",
    "Interval",
    "compare",
    "find_capacity",
]
