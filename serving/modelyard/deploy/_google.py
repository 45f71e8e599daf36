"""Google Cloud: a Vertex AI custom job, and a model in a custom container behind an endpoint."""

from __future__ import annotations

import re
from dataclasses import dataclass

from modelyard.deploy._options import TRAIN_AND_EXPORT, CommonOptions, Documents, check

_PROJECT = re.compile(r"[a-z][a-z0-9-]{4,28}[a-z0-9]")
_REGION = re.compile(r"[a-z]+-[a-z]+[0-9]+")
_BUCKET = re.compile(r"gs://[a-z0-9][a-z0-9._-]{1,61}[a-z0-9](?:/[^/\s]+)*")
_FOLDER = "gs://BUCKET or gs://BUCKET/FOLDER, with no slash at the end"
_REST_PORT = 8501
_GRPC_PORT = 8500


@dataclass(frozen=True, kw_only=True)
class GoogleOptions:
    """Project id, region, and the ``gs://`` folder of the model repository.

    Raises:
        ConfigurationError: A value that the provider does not accept.
    """

    project: str
    region: str
    bucket: str

    def __post_init__(self) -> None:
        check("project", self.project, _PROJECT, "the id of a Google Cloud project")
        check("region", self.region, _REGION, "a region, such as europe-west4")
        check("bucket", self.bucket, _BUCKET, _FOLDER)


def render_google(common: CommonOptions, google: GoogleOptions) -> Documents:
    """The bodies of four calls of the Vertex AI REST API, version v1.

    Returns:
        ``custom-job.json`` (CustomJob), ``upload-model.json`` (UploadModelRequest),
        ``endpoint.json`` (Endpoint) and ``deploy-model.json`` (DeployModelRequest).
    """
    parent = f"projects/{google.project}/locations/{google.region}"
    repository = f"{google.bucket}/models"
    # Vertex AI shows the files of a bucket below /gcs.
    folders = {name: f"/gcs/{url.removeprefix('gs://')}" for name, url in common.folders(_BUCKET, _FOLDER).items()}
    container = {
        "imageUri": common.training_image,
        "command": ["sh", "-c", TRAIN_AND_EXPORT],
        "args": [
            common.task, str(common.epochs), "/tmp/run", repository, common.name, *common.settings(folders),
        ],
    }  # fmt: skip
    # The first pool is the chief's, the second the other workers'; Vertex AI sets TF_CONFIG where there are two.
    pools = [
        {
            "machineSpec": {"machineType": common.training_machine or "n2-standard-8"},
            "replicaCount": str(replicas),
            "containerSpec": container,
        }
        for replicas in (1, common.nodes - 1)
        if replicas
    ]
    job = {"displayName": common.job, "jobSpec": {"workerPoolSpecs": pools}}
    model = {
        "parent": parent,
        "modelId": common.name.lower(),
        "model": {
            "displayName": common.name,
            "artifactUri": f"{repository}/{common.name}",
            "containerSpec": {
                "imageUri": common.image,
                # Vertex AI copies the artifact to a bucket of its own and says where; it expands $(...) itself.
                "args": [f"--model_name={common.name}", "--model_base_path=$(AIP_STORAGE_URI)"],
                "ports": [{"containerPort": _REST_PORT}],
                "grpcPorts": [{"containerPort": _GRPC_PORT}],
                "predictRoute": f"/v1/models/{common.name}:predict",
                "healthRoute": "/v2/health/ready",
            },
        },
    }
    deployed = {
        "deployedModel": {
            "model": f"{parent}/models/{common.name.lower()}",
            "displayName": common.job,
            "dedicatedResources": {
                "machineSpec": {"machineType": common.machine or "n2-standard-4"},
                "minReplicaCount": common.min_replicas,
                "maxReplicaCount": common.max_replicas,
            },
        },
        "trafficSplit": {"0": 100},
    }
    return {
        "custom-job.json": job,
        "upload-model.json": model,
        "endpoint.json": {"displayName": common.name},
        "deploy-model.json": deployed,
    }
