"""``modelyard predict``: sends the rows of files to a served model."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from modelyard.clients.api import ManyOptions, ProgressBar, connect
from modelyard.clients.cli._sinks import done_rows, open_sink
from modelyard.clients.transport import ClientOptions
from modelyard.clients.values import IMAGES, count_rows, image_input, is_image_file, read_rows
from modelyard.console import make_command
from modelyard.errors import ConfigurationError, SignatureNotFoundError

_DESCRIPTION = """\
Sends every row of the files to a served model, in batches, several at a time.
Images go as they are and print a line each: path, label and probability. Other
files (.npy, .npz, .jsonl, .csv, .tfrecord) hold a row per example, and print
JSON lines. Rows that fail are reported and do not stop the others.
"""
_EXAMPLES = """\
examples:
  modelyard predict fashion shirt.png shoe.jpg --server grpc://localhost:8500
  modelyard predict fashion shirt.png --server http://localhost:8501 --version 3
  modelyard predict fashion images/*.png --output out.csv
  modelyard predict half rows.jsonl --output out.jsonl --resume

environment:
  MODELYARD_TOKEN   a key or web token of the server's, sent as a bearer token; only grpcs and https encrypt
                    it on its way
"""
_TOKEN = "MODELYARD_TOKEN"


def main(argv: list[str]) -> int:
    """Runs ``modelyard predict``.

    Returns 0, or 1 where a row failed; the other rows are answered all the same.

    Raises:
        ModelyardError: Nothing could be sent, or the output cannot be written.
    """
    args = _parser().parse_args(argv)
    images = all(is_image_file(path) for path in args.files)
    name = args.signature or ("image_bytes" if images else "serving_default")
    if not images and args.output is None:
        args.output = "jsonl"
    if args.resume and args.output is None:
        raise ConfigurationError("--resume goes on with the file that --output names; received no --output.")
    # Not an argument: everybody on the machine can read those.
    token = os.environ.get(_TOKEN) or None
    with connect(args.server, ClientOptions(timeout_s=args.timeout, token=token)) as client:
        metadata = client.metadata(args.model, version=args.version, label=args.version_label)
        signatures = metadata.callable_signatures
        if name not in signatures:
            known = ", ".join(sorted(signatures))
            if "+v2://" in args.server:
                raise SignatureNotFoundError(
                    f"The Open Inference Protocol describes {known} of model {args.model!r}, and no signature "
                    f"{name!r}. Ask a server that speaks TensorFlow Serving's API by a URL without +v2."
                )
            raise SignatureNotFoundError(
                f"Model {args.model!r} has no signature {name!r}; it has {known}. Choose one with --signature."
            )
        signature = signatures[name]
        if any(is_image_file(path) for path in args.files):
            image_input(signature)
        skip = done_rows(args.output) if args.resume else frozenset[int]()
        total = count_rows(args.files) if sys.stderr.isatty() else None
        bar = ProgressBar(None if total is None else max(0, total - len(skip)))
        options = ManyOptions(
            batch_size=args.batch_size,
            concurrency=args.concurrency,
            skip=skip,
            progress=bar,
        )
        names: dict[int, str] = {}

        def rows() -> Iterator[Any]:
            for index, row in enumerate(read_rows(args.files, signature)):
                if index not in options.skip:
                    names[index] = row.name
                yield row.inputs if row.error is None else row.error

        failed = 0
        with bar, open_sink(args.output, resume=args.resume) as sink:
            for result in client.predict_many(
                args.model,
                rows(),
                options,
                version=args.version,
                label=args.version_label,
                signature=name,
                outputs=args.outputs,
            ):
                row_name = names.pop(result.index)
                if result.error is not None:
                    failed += 1
                    bar.write(f"modelyard predict: {row_name}: {result.error.message}")
                sink.write(row_name, result)
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = make_command("modelyard predict", _DESCRIPTION, _EXAMPLES)
    parser.add_argument("model", help="name of the model on the server")
    endings = ", ".join(IMAGES)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="file", help=f"images ({endings}), .npy, .npz, .jsonl, .csv or .tfrecord"
    )
    parser.add_argument(
        "--server",
        default="grpc://localhost:8500",
        metavar="URL",
        help="where the model is served (default %(default)s); +v2 after the scheme for the Open Inference Protocol, "
        "whose metadata describe the signature serving_default alone",
    )
    parser.add_argument("--signature", help="signature (default image_bytes for images, else serving_default)")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=int, help="version of the model (default: the newest)")
    which.add_argument("--version-label", metavar="LABEL", help="label of a version")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="deadline of each call (default 60)"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="csv or jsonl, or a file that ends in .csv, .jsonl (NaN and infinity are null) or .npz",
    )
    parser.add_argument("--outputs", nargs="+", metavar="NAME", help="outputs to write (default: all)")
    parser.add_argument("--batch-size", type=int, default=32, metavar="N", help="rows in a call (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=4, metavar="N", help="calls at a time (default %(default)s)")
    parser.add_argument("--resume", action="store_true", help="send only what the file of --output has no answer for")
    return parser
