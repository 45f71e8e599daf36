"""AWS: a SageMaker training job and a real-time endpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass

from modelyard.deploy._options import TRAIN_AND_EXPORT, CommonOptions, Documents, check
from modelyard.errors import DeploymentError
from modelyard.lazy import needs_extra

_BUCKET = re.compile(r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9](?:/[^/\s]+)*")
_FOLDER = "s3://BUCKET or s3://BUCKET/FOLDER, with no slash at the end"
_ROLE = re.compile(r"arn:aws[a-z-]*:iam::[0-9]{12}:role/[\w+=,.@/-]+")
_DAY_S = 86_400
#: Where SageMaker says which machines there are.
_HOSTS = "/opt/ml/input/config/resourceconfig.json"
_TF_CONFIG = ["python", "/opt/tf_config.py", f"--hosts-file={_HOSTS}", "--"]


@dataclass(frozen=True, kw_only=True)
class AwsOptions:
    """Role ARN of jobs and endpoints, and the ``s3://`` folder of checkpoints and models.

    Raises:
        ConfigurationError: A value that the provider does not accept.
    """

    role: str
    bucket: str

    def __post_init__(self) -> None:
        check("role", self.role, _ROLE, "the ARN of a role, such as arn:aws:iam::123456789012:role/sagemaker")
        check("bucket", self.bucket, _BUCKET, _FOLDER)


def render_aws(common: CommonOptions, aws: AwsOptions) -> Documents:
    """The requests of four calls of the SageMaker API.

    What the job leaves in ``/opt/ml/model`` is what the endpoint unpacks there.

    Returns:
        Requests of CreateTrainingJob, CreateModel, CreateEndpointConfig and CreateEndpoint, by file name.
    """
    output = f"{aws.bucket}/output"
    folders = common.folders(_BUCKET, _FOLDER)
    training: dict[str, object] = {
        "TrainingJobName": common.job,
        "AlgorithmSpecification": {
            "TrainingImage": common.training_image,
            "TrainingInputMode": "File",
            "ContainerEntrypoint": [*(_TF_CONFIG if common.nodes > 1 else ()), "sh", "-c", TRAIN_AND_EXPORT],
            "ContainerArguments": [
                common.task, str(common.epochs), "/opt/ml/checkpoints", "/opt/ml/model", common.name,
                *common.settings({name: f"/opt/ml/input/data/{name}" for name in folders}),
            ],
        },
        "RoleArn": aws.role,
        "OutputDataConfig": {"S3OutputPath": output},
        # A job that was interrupted goes on from here.
        "CheckpointConfig": {"S3Uri": f"{aws.bucket}/checkpoints/{common.job}", "LocalPath": "/opt/ml/checkpoints"},
        "ResourceConfig": {
            "InstanceType": common.training_machine or "ml.c5.2xlarge",
            "InstanceCount": common.nodes,
            "VolumeSizeInGB": 30,
        },
        "StoppingCondition": {"MaxRuntimeInSeconds": _DAY_S},
    }  # fmt: skip
    if folders:
        training["InputDataConfig"] = [
            {
                "ChannelName": name,
                "DataSource": {
                    "S3DataSource": {
                        "S3DataType": "S3Prefix", "S3Uri": url, "S3DataDistributionType": "FullyReplicated",
                    },
                },
            }
            for name, url in folders.items()
        ]  # fmt: skip
    model = {
        "ModelName": common.job,
        "PrimaryContainer": {
            "Image": common.image,
            "ModelDataUrl": f"{output}/{common.job}/output/model.tar.gz",
            "Environment": {"MODEL_NAME": common.name},
        },
        "ExecutionRoleArn": aws.role,
    }
    config = {
        "EndpointConfigName": common.job,
        "ProductionVariants": [
            {
                "VariantName": "all",
                "ModelName": common.job,
                "InstanceType": common.machine or "ml.c5.xlarge",
                "InitialInstanceCount": common.min_replicas,
            }
        ],
    }
    return {
        "create-training-job.json": training,
        "create-model.json": model,
        "create-endpoint-config.json": config,
        "create-endpoint.json": {"EndpointName": common.name, "EndpointConfigName": common.job},
    }


def send_aws(documents: Documents, *, step: str, region: str | None = None) -> dict[str, str]:
    """Sends requests to SageMaker, with credentials from the environment as boto3 finds them.

    Args:
        documents: What :func:`render_aws` returned.
        step: ``train`` for the training job; ``serve`` for model, configuration and endpoint.
        region: Such as ``eu-central-1``; None for the environment's.

    Returns:
        The ARN of each resource, by file name.

    Raises:
        MissingDependencyError: boto3 is not installed.
        DeploymentError: There are no credentials, the service cannot be
            reached, or it refused a request. What was made before stays.
    """
    with needs_extra("aws", "boto3", "botocore", purpose="Sending to AWS"):
        import boto3
        from botocore.exceptions import BotoCoreError, ClientError
    names = [name for name in documents if (name == "create-training-job.json") == (step == "train")]
    made: dict[str, str] = {}
    try:
        client = boto3.client("sagemaker", region_name=region)
        for name in names:
            operation = name.removesuffix(".json").replace("-", "_")
            answer = getattr(client, operation)(**documents[name])
            made[name] = next(value for key, value in answer.items() if key.endswith("Arn"))
    except (BotoCoreError, ClientError) as exc:
        missing = names[len(made)] if len(made) < len(names) else names[-1]
        raise DeploymentError(
            f"AWS did not take {missing}: {exc}. Made before it: {', '.join(made.values()) or 'nothing'}."
        ) from exc
    return made
