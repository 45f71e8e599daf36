"""Tasks that modelyard brings along, by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

from modelyard.lazy import attach
from modelyard.training.tasks._arguments import make_task
from modelyard.training.tasks._pictures import PictureLog, draw_run
from modelyard.training.tasks._registry import MODULES, find_task, tasks

if TYPE_CHECKING:
    from modelyard.training.tasks._capsnet import CapsnetTask
    from modelyard.training.tasks._cyclegan import CycleganTask
    from modelyard.training.tasks._dcgan import DcganTask
    from modelyard.training.tasks._fashion import FashionTask
    from modelyard.training.tasks._gan import GanTask
    from modelyard.training.tasks._ladder import LadderTask
    from modelyard.training.tasks._linear import LinearTask
    from modelyard.training.tasks._maml import MamlTask
    from modelyard.training.tasks._mlp import MlpTask
    from modelyard.training.tasks._nas import NasTask
    from modelyard.training.tasks._siamese import SiameseTask
    from modelyard.training.tasks._siamese_text import SiameseTextTask
    from modelyard.training.tasks._transfer import TransferTask
    from modelyard.training.tasks._vae import VaeTask

__all__ = [
    "CapsnetTask",
    "CycleganTask",
    "DcganTask",
    "FashionTask",
    "GanTask",
    "LadderTask",
    "LinearTask",
    "MamlTask",
    "MlpTask",
    "NasTask",
    "PictureLog",
    "SiameseTask",
    "SiameseTextTask",
    "TransferTask",
    "VaeTask",
    "draw_run",
    "find_task",
    "make_task",
    "tasks",
]

__getattr__, __dir__ = attach(__name__, MODULES, extra="training")
