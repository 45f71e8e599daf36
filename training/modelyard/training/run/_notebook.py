"""A run in a notebook: a bar and curves while it trains, and the curves of one that is held in a variable."""

from __future__ import annotations

import base64
import html
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from modelyard.training.run._results import EvalResult, Evaluated, Event, RunEnded, RunStarted, curve_panels

if TYPE_CHECKING:
    from modelyard.console import Shown


def in_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return hasattr(shell, "kernel")


class NotebookProgress:
    """Action that shows one output cell: a bar, the lines of evaluations, and curves of every number."""

    def __init__(self) -> None:
        self._handle: Any = None
        self._lines: list[str] = []
        self._bar = ""
        self._curves = ""
        self._name = ""
        self._history: list[EvalResult] = []

    def __call__(self, event: Event) -> None:
        """Shows one event."""
        if isinstance(event, RunStarted):
            self._handle, self._lines, self._name, self._history = None, [], event.task, list(event.history)
        if isinstance(event, Evaluated):
            self._history.append(event.result)
            self._curves = curves_html(self._name, self._history)
        shown = event.shown()
        self._lines += shown.lines
        if shown.stage or isinstance(event, RunEnded):
            self._bar = _bar_html(shown) if shown.stage else ""
        if shown.stage or shown.lines or isinstance(event, RunEnded):
            self._show()

    def _show(self) -> None:
        from IPython.display import HTML, display

        lines = "<br>".join(html.escape(line) for line in self._lines)
        content = HTML(f"<div>{self._bar}<div>{lines}</div>{self._curves}</div>")
        if self._handle is None:
            self._handle = display(content, display_id=True)
        else:
            self._handle.update(content)


def curves_html(title: str, history: Sequence[EvalResult]) -> str:
    """The curves of every number, as an ``<img>``; empty before the first evaluation."""
    from modelyard.training.plots import save_curves

    if not history:
        return ""
    with tempfile.TemporaryDirectory(prefix="modelyard-curves-") as folder:
        path = Path(folder) / "curves.png"
        save_curves(curve_panels(history), path, title=title, x_label="evaluation")
        data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img src="data:image/png;base64,{data}">'


def _bar_html(shown: Shown) -> str:
    text = html.escape(f"{shown.label}  {shown.done:,}/{shown.total:,}  {shown.note}")
    return f'<div><progress value="{shown.done}" max="{shown.total}"></progress> {text}</div>'
