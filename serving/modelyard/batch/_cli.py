"""``modelyard batch``: answers the rows of files, with Apache Beam."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import dataclass

from modelyard.batch._model import BatchModel
from modelyard.clients import ClientOptions
from modelyard.console import ProgressBar, Shown
from modelyard.errors import ConfigurationError
from modelyard.lazy import needs_extra

_DESCRIPTION = """\
Answers the rows of files: JSON lines, Parquet, TFRecords of tf.Example, and
images. Each file becomes one file of --output with the same name and the rows
in their order (images: one file for a thousand of them). It appears when it is
complete, and is left alone when the command is called again: a run that was
interrupted goes on. Several files are answered at a time as the runner has it.
"""
_EXAMPLES = """\
examples:
  modelyard batch repository/fashion 'parts/*.jsonl' --output answers --keep id
  modelyard batch repository/fashion photos --signature image_bytes --output answers --outputs label
  modelyard batch s3://models/fashion s3://data/parts --output s3://data/answers --threads 1
  modelyard batch fashion parts --server grpc://host:8500 --output answers
  modelyard batch m/fashion in --output out -- --direct_num_workers=2 --direct_running_mode=multi_processing
  modelyard batch /models/fashion /data/parts --output /data/answers -- --runner=FlinkRunner --flink_master=host:8081

environment:
  MODELYARD_TOKEN   a key or web token of --server's, sent as a bearer token; set it for the runner's workers, too
"""
_TOKEN = "MODELYARD_TOKEN"


def main(argv: list[str]) -> int:
    """Runs ``modelyard batch``."""
    end = argv.index("--") if "--" in argv else len(argv)
    args = make_parser().parse_args(argv[:end])
    # Beam logs to the root logger, from its import on, what a reader of this command cannot act on.
    root = logging.getLogger()
    level = root.level
    root.setLevel(logging.CRITICAL)
    try:
        return _predict(args, argv[end + 1 :])
    finally:
        root.setLevel(level)


def _predict(args: argparse.Namespace, runner: list[str]) -> int:
    with needs_extra("beam", "apache_beam", purpose="modelyard batch"):
        from modelyard.batch._run import FileOptions, predict_files
    model = BatchModel(
        model=args.model, server=args.server, version=args.version, signature=args.signature, outputs=args.outputs,
        keep=args.keep, runtime=args.runtime, threads=args.threads,
        client=ClientOptions(token=_token if os.environ.get(_TOKEN) else None),
    )  # fmt: skip
    options = FileOptions(
        model=model, inputs=args.input, output=args.output, form=args.format, batch_size=args.batch_size,
        runner=runner,
    )  # fmt: skip
    with ProgressBar() as bar:
        report = predict_files(options, progress=lambda done, total: bar(_Files(done, total)))
    rows = f", {report.rows:,} rows, {report.rows / max(report.seconds, 1e-9):,.0f} rows/s" if report.rows else ""
    kept = f"; {report.kept:,} were there already" if report.kept else ""
    files = f"{report.written:,} file{'s' * (report.written != 1)}"
    sys.stdout.write(f"{files} written to {args.output}{rows}, {report.seconds:.1f} s{kept}.\n")
    return 0


def _token() -> str:
    """Read where it is sent: the token itself is in no job that a runner keeps."""
    token = os.environ.get(_TOKEN)
    if not token:
        raise ConfigurationError(f"{_TOKEN} is set for modelyard batch and not for this worker of the runner's.")
    return token


@dataclass(frozen=True)
class _Files:
    done: int
    total: int

    def shown(self) -> Shown:
        return Shown(stage="files", label="files", done=self.done, total=self.total)


def make_parser() -> argparse.ArgumentParser:
    """The parser of ``modelyard batch``; what comes after ``--`` is Beam's."""
    parser = argparse.ArgumentParser(
        prog="modelyard batch",
        usage="modelyard batch MODEL INPUT [INPUT ...] --output FOLDER [options] [-- options of Beam]",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("model", metavar="MODEL", help="<repository>/<model>, or with --server the model's name there")
    parser.add_argument("input", nargs="+", metavar="INPUT", help="files, folders or patterns, also in object stores")
    parser.add_argument("--output", required=True, metavar="FOLDER", help="where the answers go")
    parser.add_argument(
        "--format",
        choices=("jsonl", "parquet", "tfrecord"),
        help="of the answers (default: the input's; of images jsonl); in jsonl NaN and infinity are null",
    )
    parser.add_argument("--signature", default="serving_default", help="which signature (default: %(default)s)")
    parser.add_argument("--outputs", nargs="+", metavar="NAME", help="outputs to write (default: all)")
    parser.add_argument("--keep", nargs="+", default=(), metavar="COLUMN", help="columns of the input to write, too")
    parser.add_argument("--version", type=int, metavar="N", help="version of the model (default: the newest)")
    parser.add_argument("--batch-size", type=int, default=64, metavar="N", help="rows of a call (default: %(default)s)")
    parser.add_argument("--server", metavar="URL", help="ask this server, such as grpc://host:8500")
    parser.add_argument("--runtime", metavar="NAME", help="runtime to compute in (default: the manifest's choice)")
    parser.add_argument(
        "--threads",
        type=int,
        metavar="N",
        help="threads of the runtime; 1 where the runner starts a process for each core",
    )
    return parser
