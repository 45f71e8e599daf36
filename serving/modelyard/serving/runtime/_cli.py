"""``modelyard serve`` and ``python -m modelyard.serving``."""

from __future__ import annotations

import logging
import os
import sys

from modelyard.console import quiet_libraries, take_verbose
from modelyard.errors import ConfigurationError, ModelyardError
from modelyard.serving.config import parse_flags
from modelyard.serving.runtime._autotune import run_autotune
from modelyard.serving.runtime._server import run


def main(argv: list[str]) -> int:
    """Runs a server.

    Args:
        argv: Arguments without the program's name.

    Returns:
        The process's exit code: 0 after a clean stop, 1 on an error, 2 on
        flags that make no sense.
    """
    argv = take_verbose(argv)
    quiet_libraries()
    # A thread that comes back from a runtime must not wait 5 ms, the default, for the event loop's turn to end.
    sys.setswitchinterval(0.0005)
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format="%(asctime)s %(levelname).1s %(name)s: %(message)s"
    )
    # Their chatter says nothing about the models served; warnings that matter come as errors of ours.
    for chatty, level in (("tensorflow", logging.ERROR), ("absl", logging.ERROR)):
        logging.getLogger(chatty).setLevel(level)
    try:
        options = parse_flags(argv, os.environ)
    except ConfigurationError as exc:
        sys.stderr.write(f"modelyard serve: {exc.message}\n")
        return 2
    try:
        if options.autotune_file:
            run_autotune(options)
            return 0
        run(options)
    except ModelyardError as exc:
        sys.stderr.write(f"modelyard serve: {exc.message}\n")
        return 1
    return 0
