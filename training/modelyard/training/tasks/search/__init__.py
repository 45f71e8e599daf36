"""What the task ``nas`` is made of: the networks to choose among, and the controller that chooses."""

from modelyard.training.tasks.search._cells import CellSpace, ChildPlan
from modelyard.training.tasks.search._controller import Controller, SearchLog

__all__ = ["CellSpace", "ChildPlan", "Controller", "SearchLog"]
