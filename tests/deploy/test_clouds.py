"""What ``modelyard deploy`` renders is what the providers' own libraries take."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from modelyard.cli import main
from modelyard.deploy import (
    AwsOptions,
    AzureOptions,
    CommonOptions,
    GoogleOptions,
    render_aws,
    render_azure,
    render_google,
    send_aws,
)
from modelyard.errors import ConfigurationError, DeploymentError, MissingDependencyError

ROOT = Path(__file__).resolve().parents[2]
ROLE = "arn:aws:iam::123456789012:role/sagemaker"
COMMON = CommonOptions(
    name="fashion",
    task="fashion",
    image="registry.example/modelyard/serving:0.1.0",
    training_image="registry.example/modelyard/training:0.1.0",
)
AWS = AwsOptions(role=ROLE, bucket="s3://my-bucket/modelyard")
GOOGLE = GoogleOptions(project="my-project", region="europe-west4", bucket="gs://my-bucket/modelyard")
FLAGS = [
    "--name", "fashion", "--task", "fashion", "--image", COMMON.image, "--training-image", COMMON.training_image,
]  # fmt: skip
OWN_FLAGS = {
    "google": ["--project", "my-project", "--region", "europe-west4", "--bucket", "gs://my-bucket/modelyard"],
    "aws": ["--role", ROLE, "--bucket", "s3://my-bucket/modelyard"],
    "azure": ["--compute", "cpu-cluster"],
}


@pytest.mark.parametrize("provider", sorted(OWN_FLAGS))
def test_the_files_in_the_source_tree_are_what_the_command_writes(provider: str, tmp_path: Path) -> None:
    assert main(["deploy", provider, "--dry-run", *FLAGS, *OWN_FLAGS[provider], "--output", str(tmp_path)]) == 0
    written = {path.name: path.read_text() for path in tmp_path.iterdir()}
    assert written
    assert written == {path.name: path.read_text() for path in (ROOT / "deploy" / provider).glob("*.json")}


def test_without_a_folder_they_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "aws", *FLAGS, *OWN_FLAGS["aws"]]) == 0
    assert json.loads(capsys.readouterr().out) == render_aws(COMMON, AWS)


# ---- Google -----------------------------------------------------------------------------------------------------


def test_google_s_library_knows_every_field() -> None:
    from google.cloud import aiplatform_v1
    from google.protobuf.json_format import ParseError

    documents = render_google(COMMON, GOOGLE)
    kinds = {
        "custom-job.json": aiplatform_v1.CustomJob,
        "upload-model.json": aiplatform_v1.UploadModelRequest,
        "endpoint.json": aiplatform_v1.Endpoint,
        "deploy-model.json": aiplatform_v1.DeployModelRequest,
    }
    assert set(documents) == set(kinds)
    parsed: dict[str, Any] = {
        name: kinds[name].from_json(json.dumps(body), ignore_unknown_fields=False) for name, body in documents.items()
    }
    container = parsed["upload-model.json"].model.container_spec
    assert container.predict_route == "/v1/models/fashion:predict"
    assert [port.container_port for port in container.ports] == [8501]
    assert parsed["custom-job.json"].job_spec.worker_pool_specs[0].container_spec.args[0] == "fashion"
    with pytest.raises(ParseError):
        aiplatform_v1.CustomJob.from_json('{"displayname_": "x"}', ignore_unknown_fields=False)


# ---- AWS --------------------------------------------------------------------------------------------------------


@pytest.fixture
def aws_account(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    import boto3
    from moto import mock_aws

    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "eu-central-1")
    # An object store of other tests may be set.
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.client("sagemaker")


def test_aws_s_own_model_of_its_api_accepts_every_request() -> None:
    import boto3
    from botocore.validate import ParamValidator

    operations = boto3.client("sagemaker", region_name="eu-central-1").meta.service_model
    for name, request in render_aws(COMMON, AWS).items():
        operation = "".join(part.title() for part in name.removesuffix(".json").split("-"))
        report = ParamValidator().validate(request, operations.operation_model(operation).input_shape)
        assert not report.has_errors(), report.generate_report()


def test_what_is_sent_to_aws_exists_there(aws_account: Any, capsys: pytest.CaptureFixture[str]) -> None:
    common = [*FLAGS, *OWN_FLAGS["aws"]]
    assert main(["deploy", "aws", *common, "--send", "train"]) == 0
    assert aws_account.list_models()["Models"] == []
    assert main(["deploy", "aws", *common, "--send", "serve"]) == 0
    job = aws_account.describe_training_job(TrainingJobName="fashion-1")
    assert job["AlgorithmSpecification"]["TrainingImage"] == COMMON.training_image
    model = aws_account.describe_model(ModelName="fashion-1")["PrimaryContainer"]
    assert model["ModelDataUrl"] == "s3://my-bucket/modelyard/output/fashion-1/output/model.tar.gz"
    assert aws_account.describe_endpoint(EndpointName="fashion")["EndpointConfigName"] == "fashion-1"
    assert "create-endpoint.json: arn:aws:sagemaker:eu-central-1:" in capsys.readouterr().out


def test_nothing_is_sent_without_the_flag(aws_account: Any) -> None:
    assert main(["deploy", "aws", *FLAGS, *OWN_FLAGS["aws"], "--dry-run"]) == 0
    assert aws_account.list_training_jobs()["TrainingJobSummaries"] == []


def test_a_refusal_is_told_with_what_was_made_before(aws_account: Any) -> None:
    documents = render_aws(COMMON, AWS)
    other = render_aws(replace(COMMON, run="2"), AWS)
    documents = {**documents, "create-endpoint-config.json": other["create-endpoint-config.json"]}
    with pytest.raises(DeploymentError, match="take create-endpoint-config.json: .*Made before it: arn:.*model"):
        send_aws(documents, step="serve")
    assert [model["ModelName"] for model in aws_account.list_models()["Models"]] == ["fashion-1"]


def test_no_credentials(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Other tests of the process may have made it, with the credentials of theirs.
    monkeypatch.setattr("boto3.DEFAULT_SESSION", None)
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE", "AWS_ENDPOINT_URL")
    for name in names:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    with pytest.raises(DeploymentError, match="credentials.*Made before it: nothing"):
        send_aws(render_aws(COMMON, AWS), step="train", region="eu-central-1")


def test_boto3_is_asked_for_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "boto3", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'modelyard\[aws\]'"):
        send_aws(render_aws(COMMON, AWS), step="train")


# ---- Azure ------------------------------------------------------------------------------------------------------


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_azure_s_library_loads_every_file(tmp_path: Path) -> None:
    from azure.ai.ml import load_job, load_online_deployment, load_online_endpoint
    from marshmallow import ValidationError

    documents = render_azure(COMMON, AzureOptions(compute="cpu-cluster"))
    for name, document in documents.items():
        (tmp_path / name).write_text(json.dumps(document))
    # Azure wants to see the model that the job left.
    (tmp_path / "named-outputs" / "models" / "fashion").mkdir(parents=True)
    job: Any = load_job(tmp_path / "job.json")
    assert job.command.startswith("modelyard train fashion ")
    assert load_online_endpoint(tmp_path / "endpoint.json").name == "fashion"
    deployment: Any = load_online_deployment(tmp_path / "deployment.json")
    assert deployment.environment.inference_config["scoringRoute"]["path"] == "/v1/models/fashion:predict"
    assert deployment.model_mount_path == "/var/models"
    (tmp_path / "wrong.json").write_text(json.dumps({**documents["job.json"], "compute_": "x"}))
    with pytest.raises(ValidationError):
        load_job(tmp_path / "wrong.json")


# ---- tasks of one's own -----------------------------------------------------------------------------------------


def test_a_task_of_a_module_in_the_image_is_an_argument_and_no_part_of_a_shell_s_text() -> None:
    task = "photos.photos_task:PhotosTask"
    own = replace(COMMON, task=task)
    training: Any = render_aws(own, AWS)["create-training-job.json"]
    assert training["AlgorithmSpecification"]["ContainerArguments"][0] == task
    assert task not in training["AlgorithmSpecification"]["ContainerEntrypoint"][-1]
    job: Any = render_google(own, GOOGLE)["custom-job.json"]
    assert job["jobSpec"]["workerPoolSpecs"][0]["containerSpec"]["args"][0] == task
    command: Any = render_azure(own, AzureOptions(compute="cpu-cluster"))["job.json"]["command"]
    assert shlex.split(command)[:3] == ["modelyard", "train", task]


# ---- several machines, and data in object stores ----------------------------------------------------------------


def with_data(bucket: str) -> CommonOptions:
    return replace(COMMON, nodes=3, set=["learning_rate=0.01"], data=[f"data={bucket}/photos"])


SETTINGS = ["--set", "learning_rate=0.01", "--set"]


def test_google_s_job_of_three_machines() -> None:
    from google.cloud import aiplatform_v1

    body = json.dumps(render_google(with_data("gs://my-bucket"), GOOGLE)["custom-job.json"])
    job: Any = aiplatform_v1.CustomJob.from_json(body, ignore_unknown_fields=False)
    # The first pool is the chief's: it is one machine.
    assert [pool.replica_count for pool in job.job_spec.worker_pool_specs] == [1, 2]
    for pool in job.job_spec.worker_pool_specs:
        assert list(pool.container_spec.args)[5:] == [*SETTINGS, "data=/gcs/my-bucket/photos"]


def test_aws_s_job_of_three_machines() -> None:
    import boto3
    from botocore.validate import ParamValidator

    job: Any = render_aws(with_data("s3://my-bucket"), AWS)["create-training-job.json"]
    operations = boto3.client("sagemaker", region_name="eu-central-1").meta.service_model
    report = ParamValidator().validate(job, operations.operation_model("CreateTrainingJob").input_shape)
    assert not report.has_errors(), report.generate_report()
    assert job["ResourceConfig"]["InstanceCount"] == 3
    (channel,) = job["InputDataConfig"]
    assert channel["ChannelName"] == "data"
    assert channel["DataSource"]["S3DataSource"]["S3Uri"] == "s3://my-bucket/photos"
    algorithm = job["AlgorithmSpecification"]
    assert algorithm["ContainerEntrypoint"][:2] == ["python", "/opt/tf_config.py"]
    assert algorithm["ContainerArguments"][5:] == [*SETTINGS, "data=/opt/ml/input/data/data"]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_azure_s_job_of_three_machines(tmp_path: Path) -> None:
    from azure.ai.ml import load_job

    url = "azureml://datastores/photos/paths/summer"
    options = replace(COMMON, nodes=3, set=["title=two words"], data=[f"data={url}"])
    (tmp_path / "job.json").write_text(json.dumps(render_azure(options, AzureOptions(compute="c-1"))["job.json"]))
    job: Any = load_job(tmp_path / "job.json")
    assert (job.distribution.type.lower(), job.distribution.worker_count) == ("tensorflow", 3)
    assert job.resources.instance_count == 3
    assert (job.inputs["data"].path, job.inputs["data"].mode) == (url, "ro_mount")
    train, _, export = job.command.partition(" && ")
    for command in (train, export):
        words = shlex.split(command)
        at = words.index("--set")
        assert words[at : at + 4] == ["--set", "title=two words", "--set", "data=${{inputs.data}}"]


@pytest.mark.parametrize("provider", sorted(OWN_FLAGS))
def test_data_must_be_in_that_cloud_s_store(provider: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["deploy", provider, *FLAGS, *OWN_FLAGS[provider], "--data", "data=ftp://elsewhere/photos"]
    assert main(command) == 2
    assert "--data data is 'ftp://elsewhere/photos'; expected " in capsys.readouterr().err


# ---- values that no cloud would take ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "a b"),
        ("name", "$(rm -rf /)"),
        ("name", "x"),
        ("run", "1_2"),
        ("task", "Fashion; true"),
        ("task", "photos task:PhotosTask"),
        ("task", "photos_task:PhotosTask;true"),
        ("task", "photos_task:"),
        ("image", "two words"),
        ("training_image", ""),
        ("epochs", 0),
        ("nodes", 0),
        ("set", ["no value"]),
        ("data", ["s3://bucket"]),
        ("min_replicas", 0),
        ("min_replicas", 2),
    ],
)
def test_common_values_that_make_no_sense(field: str, value: Any) -> None:
    values = {name: getattr(COMMON, name) for name in COMMON.__dataclass_fields__}
    with pytest.raises(ConfigurationError, match="expected"):
        CommonOptions(**{**values, field: value})


@pytest.mark.parametrize(
    ("options", "values"),
    [
        (GoogleOptions, {"project": "p", "region": "europe-west4", "bucket": "gs://my-bucket"}),
        (GoogleOptions, {"project": "my-project", "region": "here", "bucket": "gs://my-bucket"}),
        (GoogleOptions, {"project": "my-project", "region": "europe-west4", "bucket": "s3://my-bucket"}),
        (AwsOptions, {"role": "sagemaker", "bucket": "s3://my-bucket"}),
        (AwsOptions, {"role": ROLE, "bucket": "s3://my-bucket/"}),
        (AzureOptions, {"compute": "a b"}),
    ],
)
def test_provider_s_values_that_make_no_sense(options: Any, values: dict[str, str]) -> None:
    with pytest.raises(ConfigurationError, match="expected"):
        options(**values)


def test_command_line_says_what_is_wrong(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    common = [*FLAGS, *OWN_FLAGS["aws"]]
    assert main(["deploy", "aws", *common, "--dry-run", "--send", "train"]) == 2
    assert "expected one of them" in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["deploy", "aws", *common, "--output", str(tmp_path / "file")]) == 2
    assert "cannot be written" in capsys.readouterr().err
