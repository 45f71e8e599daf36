"""Kinds of model that people bring: each a few lines that build one, and a sampler of examples for it."""

from __future__ import annotations

import importlib

from benchmarks.zoo._kind import Kind, Rng, kind, registered

THEMES = (
    "layers",
    "tables",
    "text",
    "sequences",
    "attention",
    "images",
    "detection",
    "signals",
    "arithmetic",
    "graphs",
    "shapes",
    "state",
    "names",
    "files",
    "generative",
    "hub",
)

__all__ = ["Kind", "Rng", "THEMES", "all_kinds", "kind"]


def all_kinds() -> dict[str, Kind]:
    """Every kind by name, theme by theme. Imports TensorFlow."""
    for theme in THEMES:
        importlib.import_module(f"benchmarks.zoo.{theme}")
    return registered()
