"""A process of a search: runs one trial after another, as its parent says, one for each line of the standard input.

When the parent dies, that ends, and with it the trial that runs, which goes on when the search does.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import optuna

from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.training.tune._study import load_options
from modelyard.training.tune._trial import run_trial


def main(argv: list[str]) -> int:
    """Serves one search."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Whatever libraries print belongs to the log, not between the messages.
    messages, sys.stdout = sys.stdout, sys.stderr

    def send(message: dict[str, Any]) -> None:
        messages.write(json.dumps(message) + "\n")
        messages.flush()

    options = load_options(Path(argv[0]))
    for order in _orders():
        try:
            run_trial(options, send, order=order)
        except Exception as exc:
            traceback.print_exc()
            text = exc.message if isinstance(exc, ModelyardError) else f"{type(exc).__name__}: {exc}"
            send({"kind": "fatal", "error": text, "usage": isinstance(exc, ConfigurationError)})
            return 1
    return 0


def _orders() -> Iterator[int]:
    """The number on each line of the standard input; the end of it ends the process, whatever that is doing."""
    lines: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            lines.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        yield int(lines.get())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
