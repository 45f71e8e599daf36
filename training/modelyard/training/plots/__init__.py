"""Plots of a training run: grids of images, curves, scatter plots; without windows or global state."""

from modelyard.training.plots._charts import save_curves, save_embedding, save_fit, save_scatter
from modelyard.training.plots._grid import image_grid, save_image, to_uint8

__all__ = ["image_grid", "save_curves", "save_embedding", "save_fit", "save_image", "save_scatter", "to_uint8"]
