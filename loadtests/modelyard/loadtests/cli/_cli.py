"""``modelyard loadtest``: Locust without its web page, in the place of this process."""

from __future__ import annotations

import argparse
import importlib.util
import math
import os
import signal
import sys
from pathlib import Path
from typing import NoReturn

from modelyard.console import make_command, write_error
from modelyard.errors import MissingDependencyError, ModelyardError
from modelyard.loadtests.cli._commands import COMMANDS, command
from modelyard.loadtests.options import EXIT_FAILED, add_arguments, duration, options_from

_DESCRIPTION = """\
Loads a served model over gRPC and REST, checks every answer, and ends with exit code 1 where a limit was
broken, 2 where nothing could be measured, 130 where it was interrupted.
It sends --data; else the requests that warm a version of --repository up; else test images to the demo's
model, and random values of its signature to any other.
Without a command Locust's users do it, each of whom waits for an answer before the next request.
"""
_EXAMPLES = """\
examples:
  modelyard loadtest --host-grpc localhost:8500 --host-rest localhost:8501 -u 4 -t 10s
  modelyard loadtest --host-rest http://localhost:8501 -u 16 -t 1m --max-p95-ms 20 --max-error-rate 0.001
  modelyard loadtest --host-grpc localhost:8500 --model prices --data rows.jsonl --rows 8

Every other argument goes to Locust, such as --html report.html or --csv prefix.
"""
_LOCUSTFILE = Path(__file__).with_name("_locustfile.py")
#: Locust's messages begin with the name of the program.
_LOCUST = """\
import signal, sys
# Until Locust has a handler of its own.
signal.signal(signal.SIGTERM, signal.default_int_handler)
sys.argv[0] = "modelyard loadtest"
try:
    from locust.main import main
    main()
except KeyboardInterrupt:
    sys.stderr.write("modelyard loadtest: interrupted\\n")
    sys.exit(130)
"""


def main(argv: list[str]) -> int:
    """Run ``modelyard loadtest``; returns a command's exit code, and does not return where Locust takes over."""
    try:
        return command(argv[0], argv[1:]) if argv and argv[0] in COMMANDS else _locust(argv)
    except ModelyardError as exc:
        write_error("loadtest", exc.message)
        return EXIT_FAILED


def _locust(argv: list[str]) -> NoReturn:
    commands = "\n".join(f"  {name:<9} {each[0]}" for name, each in COMMANDS.items())
    examples = f"commands, each with --help:\n{commands}\n\n{_EXAMPLES}"
    parser = make_command("modelyard loadtest", _DESCRIPTION, examples, allow_abbrev=False)
    parser.add_argument("-u", "--users", type=int, default=4, help="users at the same time (default 4)")
    parser.add_argument("-r", "--spawn-rate", type=float, help="users started per second (default: all at once)")
    parser.add_argument("-t", "--run-time", type=duration, default=10.0, help="such as 10s, 1m30s or 1h (default 10s)")
    add_arguments(parser)
    args, _ = parser.parse_known_args(argv)
    options_from(args)
    if importlib.util.find_spec("locust") is None:
        raise MissingDependencyError(package="locust", extra="loadtests", purpose="modelyard loadtest")
    # Locust reads a duration its own way, and takes whole seconds.
    lengths = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    lengths.add_argument("-t", "--run-time")
    locust = [
        sys.executable, "-c", _LOCUST, "--locustfile", str(_LOCUSTFILE), "--headless", "--only-summary",
        "--users", str(args.users), "--spawn-rate", f"{args.spawn_rate or args.users:g}",
        "--run-time", f"{math.ceil(args.run_time)}s", *lengths.parse_known_args(argv)[1],
    ]  # fmt: skip
    # A shell's background jobs ignore SIGINT, and so would Locust.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    # No child: whoever gets a signal, Locust does, and once.
    sys.stdout.flush()
    os.execv(sys.executable, locust)
