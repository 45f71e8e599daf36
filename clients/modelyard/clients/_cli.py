"""``modelyard predict``: classifies image files with a served model."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from modelyard.clients._client import Client, connect
from modelyard.clients._options import ClientOptions
from modelyard.clients._results import Prediction, SignatureInfo
from modelyard.errors import ImageDecodeError, InvalidRequestError, SignatureNotFoundError

_DESCRIPTION = """\
Sends image files, as they are, to a served model and prints one line per file:
its path, the label and the probability of the predicted class, separated by tabs.
"""
_EXAMPLES = """\
examples:
  modelyard predict fashion shirt.png shoe.jpg --server grpc://localhost:8500
  modelyard predict fashion shirt.png --server http://localhost:8501 --version 3
"""


def main(argv: list[str]) -> int:
    """Runs ``modelyard predict``.

    Args:
        argv: Arguments without the program's name.

    Returns:
        0, or 1 where a file could not be read or classified; the other files
        are classified all the same.

    Raises:
        ModelyardError: Nothing can be classified: the server cannot be
            reached, or has no such model or signature.
    """
    args = _parser().parse_args(argv)
    failed = 0
    with connect(args.server, ClientOptions(timeout_s=args.timeout)) as client:
        metadata = client.metadata(args.model, version=args.version, label=args.version_label)
        if args.signature not in metadata.signatures:
            raise SignatureNotFoundError(
                f"Model {args.model!r} has no signature {args.signature!r}; it has "
                f"{', '.join(sorted(metadata.signatures))}. Choose one with --signature."
            )
        signature = metadata.signatures[args.signature]
        name = _image_input(signature)
        for path in args.images:
            try:
                label, probability = _classify(client, args, name, path)
            except (OSError, ImageDecodeError) as exc:
                sys.stderr.write(f"modelyard predict: {path}: {exc}\n")
                failed += 1
                continue
            sys.stdout.write(f"{path}\t{label}\t{probability:.4f}\n")
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="modelyard predict",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", help="name of the model on the server")
    parser.add_argument("images", nargs="+", type=Path, metavar="image", help="PNG or JPEG file")
    parser.add_argument(
        "--server",
        default="grpc://localhost:8500",
        metavar="URL",
        help="where the model is served (default %(default)s)",
    )
    parser.add_argument(
        "--signature", default="image_bytes", help="signature with one input of image files (default %(default)s)"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--version", type=int, help="version of the model (default: the newest)")
    which.add_argument("--version-label", metavar="LABEL", help="label of a version")
    parser.add_argument(
        "--timeout", type=float, default=60.0, metavar="SECONDS", help="deadline of each call (default 60)"
    )
    return parser


def _image_input(signature: SignatureInfo) -> str:
    inputs = tuple(signature.inputs.values())
    if len(inputs) != 1 or inputs[0].dtype != "string":
        found = ", ".join(f"{info.name} ({info.dtype})" for info in inputs)
        raise InvalidRequestError(
            f"Signature {signature.name!r} takes {found}; expected one string input for the bytes of images. "
            "Choose another with --signature."
        )
    return inputs[0].name


def _classify(client: Client, args: argparse.Namespace, name: str, path: Path) -> tuple[str, float]:
    prediction = client.predict(
        args.model,
        {name: [path.read_bytes()]},
        version=args.version,
        label=args.version_label,
        signature=args.signature,
    )
    return _label(prediction)


def _label(prediction: Prediction) -> tuple[str, float]:
    missing = [output for output in ("class_id", "probabilities") if output not in prediction]
    if missing:
        raise InvalidRequestError(
            f"Signature {prediction.signature!r} returns {', '.join(sorted(prediction))}; "
            f"a classifier also returns {' and '.join(missing)}."
        )
    index = int(prediction["class_id"][0])
    label = prediction["label"][0].decode("utf-8", "replace") if "label" in prediction else str(index)
    return label, float(prediction["probabilities"][0, index])
