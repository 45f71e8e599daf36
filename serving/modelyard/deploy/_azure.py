"""Azure: an Azure Machine Learning command job and a managed online deployment."""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from modelyard.deploy._options import CommonOptions, Documents, check

_SCHEMAS = "https://azuremlschemas.azureedge.net/latest"
_COMPUTE = re.compile(r"[a-zA-Z](?:-?[a-zA-Z0-9]){1,31}")
_URL = re.compile(r"(?:azureml|https|wasbs|abfss)://[^\s]+[^\s/]")
_MOUNT = "/var/models"
_REST_PORT = 8501


@dataclass(frozen=True, kw_only=True)
class AzureOptions:
    """Name of the compute cluster to train on; the workspace is that of ``az``.

    Raises:
        ConfigurationError: A value that the provider does not accept.
    """

    compute: str

    def __post_init__(self) -> None:
        check("compute", self.compute, _COMPUTE, "the name of a compute cluster: letters, digits and hyphens")


def render_azure(common: CommonOptions, azure: AzureOptions) -> Documents:
    """Three files for ``az ml``; JSON is YAML as well, so it takes them as they are.

    Returns:
        ``job.json`` (command job), ``endpoint.json`` (managed online endpoint) and
        ``deployment.json`` (managed online deployment).
    """
    train = ["modelyard", "train", common.task, "--epochs", str(common.epochs), "--model-dir", "run"]
    export = ["modelyard", "export", common.task, "--model-dir", "run", "--name", common.name]
    folders = common.folders(_URL, "azureml://datastores/NAME/paths/FOLDER, or a URL that Azure reads")
    # Azure fills in folders of inputs and outputs before the shell reads the line; all else is quoted.
    settings = shlex.join(common.settings({}))
    settings += "".join(f" --set {name}=${{{{inputs.{name}}}}}" for name in folders)
    both = [f"{shlex.join(command)} {settings}".rstrip() for command in (train, export)]
    job: dict[str, object] = {
        "$schema": f"{_SCHEMAS}/commandJob.schema.json",
        "type": "command",
        "name": common.job,
        "experiment_name": common.name,
        "command": f"{both[0]} && {both[1]} --repository ${{{{outputs.models}}}}",
        "environment": {"image": common.training_image},
        "compute": f"azureml:{azure.compute}",
        # Written to the local disk, where a version is published by rename, and copied at the end.
        "outputs": {"models": {"type": "uri_folder", "mode": "upload"}},
    }
    if folders:
        job["inputs"] = {name: {"type": "uri_folder", "path": url, "mode": "ro_mount"} for name, url in folders.items()}
    if common.nodes > 1:
        # Azure sets TF_CONFIG for it.
        job["distribution"] = {"type": "tensorflow", "worker_count": common.nodes, "parameter_server_count": 0}
        job["resources"] = {"instance_count": common.nodes}
    endpoint = {
        "$schema": f"{_SCHEMAS}/managedOnlineEndpoint.schema.json",
        "name": common.name,
        "auth_mode": "key",
    }
    deployment = {
        "$schema": f"{_SCHEMAS}/managedOnlineDeployment.schema.json",
        "name": "blue",
        "endpoint_name": common.name,
        "model": {
            "name": common.name,
            "version": "1",
            "type": "custom_model",
            "path": f"./named-outputs/models/{common.name}",
        },
        # The folder of the model comes below its registered name and version.
        "model_mount_path": _MOUNT,
        "environment_variables": {
            "MODEL_NAME": common.name,
            "MODEL_BASE_PATH": f"{_MOUNT}/{common.name}/1",
        },
        "environment": {
            "image": common.image,
            "inference_config": {
                "liveness_route": {"port": _REST_PORT, "path": "/v2/health/live"},
                "readiness_route": {"port": _REST_PORT, "path": "/v2/health/ready"},
                "scoring_route": {"port": _REST_PORT, "path": f"/v1/models/{common.name}:predict"},
            },
        },
        "instance_type": common.machine or "Standard_F4s_v2",
        "instance_count": common.min_replicas,
    }
    return {"job.json": job, "endpoint.json": endpoint, "deployment.json": deployment}
