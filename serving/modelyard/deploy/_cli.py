"""``modelyard deploy``."""

from __future__ import annotations

import argparse
import json
import sys
from dataclasses import fields
from pathlib import Path

from modelyard.deploy._aws import AwsOptions, render_aws, send_aws
from modelyard.deploy._azure import AzureOptions, render_azure
from modelyard.deploy._google import GoogleOptions, render_google
from modelyard.deploy._options import CommonOptions, Documents
from modelyard.errors import ConfigurationError

_DESCRIPTION = """\
Renders what a managed cloud needs to train a task and to serve the model: bodies of API calls, or
files of the provider's command line. Nothing is sent unless --send says so.
"""
_EXAMPLES = """\
examples:
  modelyard deploy google --dry-run --project my-project --region europe-west4 --bucket gs://my-bucket \\
      --name fashion --task fashion --image europe-docker.pkg.dev/my-project/ml/serving:0.1.0 \\
      --training-image europe-docker.pkg.dev/my-project/ml/training:0.1.0
  modelyard deploy aws --role arn:aws:iam::123456789012:role/sagemaker --bucket s3://my-bucket ... --output aws/
  modelyard deploy aws ... --send train          sends the training job; credentials as boto3 finds them
  modelyard deploy azure --compute cpu-cluster ... --output azure/
  modelyard deploy aws ... --task transfer --data folder=s3://my-bucket/photos --nodes 4

deploy/google, deploy/aws and deploy/azure of the source tree say how to send the files.
"""


def main(argv: list[str]) -> int:
    args = _parser().parse_args(argv)
    values = {each.name: getattr(args, each.name) for each in fields(CommonOptions)}
    common = CommonOptions(**{**values, "max_replicas": args.max_replicas or args.min_replicas})
    step = getattr(args, "send", None)
    if args.dry_run and step is not None:
        raise ConfigurationError("--dry-run and --send were both given; expected one of them.")
    documents = _render(args, common)
    if args.output is not None:
        _write(documents, args.output)
    if step is not None:
        for name, arn in send_aws(documents, step=step, region=args.region).items():
            sys.stdout.write(f"{name}: {arn}\n")
    elif args.output is None:
        sys.stdout.write(json.dumps(documents, indent=2) + "\n")
    return 0


def _render(args: argparse.Namespace, common: CommonOptions) -> Documents:
    if args.provider == "google":
        return render_google(common, GoogleOptions(project=args.project, region=args.region, bucket=args.bucket))
    if args.provider == "aws":
        return render_aws(common, AwsOptions(role=args.role, bucket=args.bucket))
    return render_azure(common, AzureOptions(compute=args.compute))


def _write(documents: Documents, folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, document in documents.items():
            (folder / name).write_text(json.dumps(document, indent=2) + "\n")
    except OSError as exc:
        raise ConfigurationError(f"--output: {folder} cannot be written: {exc.strerror or exc}.") from exc
    sys.stderr.write(f"wrote {', '.join(documents)} to {folder}\n")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="modelyard deploy",
        description=_DESCRIPTION,
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    providers = parser.add_subparsers(dest="provider", required=True, metavar="PROVIDER")
    google = _provider(providers, "google", "Vertex AI: custom job, model and endpoint")
    google.add_argument("--project", required=True, help="id of the Google Cloud project")
    google.add_argument("--region", required=True, help="such as europe-west4")
    google.add_argument("--bucket", required=True, metavar="gs://...", help="folder for the model repository")
    aws = _provider(providers, "aws", "SageMaker: training job, model and endpoint")
    aws.add_argument("--role", required=True, metavar="ARN", help="the role that job and endpoint run as")
    aws.add_argument("--bucket", required=True, metavar="s3://...", help="folder for checkpoints and models")
    aws.add_argument("--region", help="with --send: the region (default: the environment's)")
    aws.add_argument(
        "--send", choices=("train", "serve"), help="send the training job, or model, configuration and endpoint"
    )
    azure = _provider(providers, "azure", "Azure Machine Learning: command job and online deployment")
    azure.add_argument("--compute", required=True, help="name of the compute cluster to train on")
    return parser


def _provider(
    providers: argparse._SubParsersAction[argparse.ArgumentParser], name: str, summary: str
) -> argparse.ArgumentParser:
    parser = providers.add_parser(
        name, help=summary, description=summary, epilog=_EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--name", required=True, help="name of the model, and of everything made for it")
    parser.add_argument(
        "--task", required=True, help="the task to train, such as fashion, or module:Class of the training image"
    )
    parser.add_argument("--image", required=True, help="the serving image, in a registry that the cloud reads")
    parser.add_argument("--training-image", required=True, help="the training image")
    parser.add_argument("--epochs", type=int, default=10, help="passes over the data (default: %(default)s)")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="NAME=VALUE",
        help="argument of the task; may be given more than once",
    )
    parser.add_argument(
        "--data",
        action="append",
        default=[],
        metavar="NAME=URL",
        help="argument of the task that is a folder, and which folder of the cloud's object store it is, such as "
        "data=gs://my-bucket/photos; may be given more than once",
    )
    parser.add_argument(
        "--nodes", type=int, default=1, help="machines that train together, each step on all (default: %(default)s)"
    )
    parser.add_argument("--run", default="1", help="tells one training from the next (default: %(default)s)")
    parser.add_argument("--machine", default="", help="machine type to serve on")
    parser.add_argument("--training-machine", default="", help="machine type to train on")
    parser.add_argument("--min-replicas", type=int, default=1, help="machines that serve (default: %(default)s)")
    parser.add_argument("--max-replicas", type=int, default=0, help="at most, where the cloud scales")
    parser.add_argument("--output", type=Path, metavar="DIR", help="write the files there (default: print them)")
    parser.add_argument("--dry-run", action="store_true", help="send nothing; so it is without --send too")
    return parser
