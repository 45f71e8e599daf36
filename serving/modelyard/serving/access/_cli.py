"""``modelyard keys``: makes keys for callers of a server."""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import math
import secrets
import sys

from modelyard.console import make_command
from modelyard.errors import ConfigurationError
from modelyard.serving.access._principals import SCOPES, grants_of, is_name

_DESCRIPTION = """\
Makes a key for callers of a server. The key itself goes to the standard error,
once: nothing keeps it. What the server needs goes to the standard output: the
key's hash and what its bearer may do, as an entry of --access_file.
"""
_EXAMPLES = """\
examples:
  modelyard keys new shop --scope 'predict:fashion*' --scope metadata >> access.toml
  modelyard keys new ci --scope admin --requests-per-second 5 >> access.toml
  modelyard serve --model_repository=/models --rest_api_port=8501 --access_file=access.toml
  curl -H "Authorization: Bearer $KEY" -d '{"instances": [...]}' http://localhost:8501/v1/models/fashion:predict
"""
#: By it, scanners for secrets find keys that were published by accident.
_PREFIX = "myd_"
_BYTES = 32


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    if not is_name(args.name):
        raise ConfigurationError(f"The name is {args.name!r}; expected a text that can be printed, such as shop.")
    if wrong := [scope for scope in args.scope if not scope.isprintable()]:
        raise ConfigurationError(f"--scope is {wrong[0]!r}; expected a text that can be printed.")
    try:
        grants_of(args.scope, "the key")
    except ValueError as exc:
        raise ConfigurationError(f"--scope: {exc}") from exc
    key = _PREFIX + secrets.token_urlsafe(_BYTES)
    entry = {"name": args.name, "keys": [f"sha256:{hashlib.sha256(key.encode()).hexdigest()}"], "scopes": args.scope}
    limits = ("requests_per_second", "rows_per_second", "max_in_flight")
    entry |= {name: getattr(args, name) for name in limits if getattr(args, name)}
    lines = [f"{name} = {_toml(value)}" for name, value in entry.items()]
    sys.stdout.write("\n".join(["", "[[principal]]", *lines, ""]))
    sys.stderr.write(f"The key of {args.name}, shown this once:\n{key}\n")
    return 0


def _toml(value: object) -> str:
    """Texts, numbers and lists of JSON are TOML's, too, but for how it escapes what is beyond ASCII's letters."""
    text = json.dumps(value, ensure_ascii=False)
    return "".join(letter if letter.isascii() and letter != "\x7f" else f"\\U{ord(letter):08x}" for letter in text)


def _rate(text: str) -> float:
    with contextlib.suppress(ValueError):
        if 0 < (value := float(text)) < math.inf:
            return value
    raise argparse.ArgumentTypeError(f"received {text!r}; expected a number above 0")


def _count(text: str) -> int:
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"received {text!r}; expected a whole number above 0")
    return int(text)


def _parser() -> argparse.ArgumentParser:
    parser = make_command("modelyard keys", _DESCRIPTION, _EXAMPLES)
    new = parser.add_subparsers(required=True, metavar="new").add_parser(
        "new", help="make a key", description=_DESCRIPTION, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    new.add_argument("name", help="whose key it is, as logs will say")
    new.add_argument(
        "--scope",
        action="append",
        required=True,
        metavar="SCOPE[:PATTERN]",
        help=f"what it may do: {', '.join(SCOPES)}; for all models, or those of a pattern: predict:fashion*; may be "
        "given more than once",
    )
    new.add_argument("--requests-per-second", type=_rate, metavar="N", help="its requests (default: any number)")
    new.add_argument("--rows-per-second", type=_rate, metavar="N", help="rows of its predictions (default: any number)")
    new.add_argument("--max-in-flight", type=_count, metavar="N", help="its unanswered requests (default: any number)")
    return parser
