"""The training Jobs: their TF_CONFIG, and the processes it describes, started on this machine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import kubernetes_validate  # type: ignore[import-untyped]
import pytest

from modelyard.artifact import list_versions
from modelyard.deploy import AwsOptions, CommonOptions, render_aws
from tests.deploy.conftest import DEPLOY, documents
from tests.support.server import free_port

TRAINING = DEPLOY / "kubernetes" / "training"
LAUNCHER = DEPLOY / "image" / "tf_config.py"
JOBS = ("multi-worker", "parameter-server")
_SHOW = "import os; print(os.environ['TF_CONFIG'])"


def job(name: str) -> Any:
    (found,) = [item for item in documents(TRAINING / f"{name}.yaml") if item["kind"] == "Job"]
    return found


def service(name: str) -> Any:
    (found,) = [item for item in documents(TRAINING / f"{name}.yaml") if item["kind"] == "Service"]
    return found


def container(name: str) -> Any:
    (found,) = job(name)["spec"]["template"]["spec"]["containers"]
    return found


def launch(flags: list[str], command: list[str], index: int, **options: Any) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "JOB_COMPLETION_INDEX": str(index),
        "MODELYARD_DATA": "subset",
        "TF_CPP_MIN_LOG_LEVEL": "2",
    }
    return subprocess.Popen(
        [sys.executable, str(LAUNCHER), *flags, "--", *command],
        env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **options,
    )  # fmt: skip


def outputs_of(
    ending: list[subprocess.Popen[str]], group: list[subprocess.Popen[str]], *, timeout_s: float
) -> list[tuple[str, str]]:
    """What those processes say that end by themselves, with success; the others of the group are killed."""
    try:
        outputs = [process.communicate(timeout=timeout_s) for process in ending]
        assert [process.returncode for process in ending] == [0] * len(ending), outputs
        return outputs
    finally:
        for process in group:
            process.kill()
            process.communicate()


def flags_of(name: str) -> list[str]:
    arguments: list[str] = container(name)["args"]
    return arguments[: arguments.index("--")]


@pytest.mark.parametrize("name", JOBS)
@pytest.mark.parametrize("version", ["1.33", "1.36"])
def test_follows_the_schemas(name: str, version: str) -> None:
    for document in documents(TRAINING / f"{name}.yaml"):
        kubernetes_validate.validate(document, version, strict=True)


@pytest.mark.parametrize("name", JOBS)
def test_pods_and_their_names_meet(name: str) -> None:
    spec = job(name)["spec"]
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    # Kubernetes names an indexed pod's host JOB-INDEX, below the subdomain of a service of that name.
    assert spec["template"]["spec"]["subdomain"] == service(name)["metadata"]["name"]
    assert service(name)["spec"]["clusterIP"] == "None"
    assert service(name)["spec"]["selector"] == {"job-name": name}
    assert f"--job={name}" in flags_of(name) and f"--service={service(name)['metadata']['name']}" in flags_of(name)
    (volume,) = [item for item in spec["template"]["spec"]["volumes"] if "persistentVolumeClaim" in item]
    (runs,) = documents(TRAINING / "runs.yaml")
    assert volume["persistentVolumeClaim"]["claimName"] == runs["metadata"]["name"]
    # Every process goes on from the same checkpoint.
    assert runs["spec"]["accessModes"] == ["ReadWriteMany"]


@pytest.mark.parametrize("name", JOBS)
def test_every_pod_has_its_own_task_in_one_cluster(name: str) -> None:
    configs = []
    for index in range(job(name)["spec"]["completions"]):
        process = launch(flags_of(name), [sys.executable, "-c", _SHOW], index)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        configs.append(json.loads(output))
    clusters = [config["cluster"] for config in configs]
    assert all(cluster == clusters[0] for cluster in clusters)
    tasks = [(config["task"]["type"], config["task"]["index"]) for config in configs]
    addresses = [clusters[0][kind][index] for kind, index in tasks]
    assert addresses == [f"{name}-{index}.{name}:2222" for index in range(len(configs))]
    assert len(set(tasks)) == sum(len(members) for members in clusters[0].values())
    if name == "parameter-server":
        rule = job(name)["spec"]["successPolicy"]["rules"][0]
        assert tasks[int(rule["succeededIndexes"])] == ("chief", 0)


@pytest.mark.parametrize(
    ("flags", "index"),
    [
        (["--job=a", "--service=a", "--workers=2"], 2),
        (["--job=a", "--service=a", "--workers=0"], 0),
        (["--addresses=a:1,b:2,c:3", "--workers=2"], 0),
        (["--job=a", "--workers=2"], 0),
        (["--job=a", "--service=a"], 0),
    ],
)
def test_refuses_numbers_that_do_not_fit(flags: list[str], index: int) -> None:
    process = launch(flags, [sys.executable, "-c", _SHOW], index)
    output, errors = process.communicate(timeout=60)
    assert process.returncode == 2
    assert output == "" and "error:" in errors


def command_of(name: str) -> list[str]:
    arguments: list[str] = container(name)["args"]
    return arguments[arguments.index("--") + 1 :]


def test_the_jobs_have_a_folder_each() -> None:
    """The kustomization starts both at once, on one volume."""
    folders = [flag for name in JOBS for flag in command_of(name) if flag.startswith("--model-dir=/runs/")]
    assert len(set(folders)) == len(JOBS)


@pytest.mark.parametrize("name", JOBS)
def test_kubeflow_runs_the_same_command(name: str) -> None:
    (found,) = documents(DEPLOY / "kubeflow" / f"{name}.yaml")
    replicas = found["spec"]["tfReplicaSpecs"]
    cluster = json.loads(launch(flags_of(name), [sys.executable, "-c", _SHOW], 0).communicate(timeout=60)[0])["cluster"]
    assert {kind.lower(): spec["replicas"] for kind, spec in replicas.items()} == {
        kind: len(members) for kind, members in cluster.items()
    }
    for spec in replicas.values():
        (process,) = spec["template"]["spec"]["containers"]
        assert [*process["command"], *process["args"]] == command_of(name)


@pytest.mark.parametrize("name", JOBS)
def test_the_processes_train_together(name: str, tmp_path: Path) -> None:
    size = job(name)["spec"]["completions"]
    ports: set[int] = set()
    while len(ports) < size:
        ports.add(free_port())
    flags = [flag for flag in flags_of(name) if not flag.startswith(("--job", "--service"))]
    flags.append("--addresses=" + ",".join(f"127.0.0.1:{port}" for port in sorted(ports)))
    program, *arguments = command_of(name)
    assert program == "modelyard"
    command = [sys.executable, "-c", "import sys; from modelyard.cli import main; sys.exit(main())"]
    command += [argument.replace("/runs/", f"{tmp_path}/runs/") for argument in arguments]
    command += ["--epochs=1", "--batch-size=200", "--checkpoint-every=4"]
    processes = [launch(flags, command, index) for index in range(size)]
    # Of a group with servers only the chief ends, as the Job's successPolicy has it.
    ending = processes if name == "multi-worker" else processes[:1]
    outputs = outputs_of(ending, processes, timeout_s=240)
    assert "fashion: 1 epoch, 10 steps." in outputs[0][0]
    assert all(output == "" for output, _ in outputs[1:])
    checkpoints = sorted((tmp_path / "runs" / name / "checkpoints").iterdir())
    assert [path.name for path in checkpoints] == ["step-000000004", "step-000000008", "step-000000010"]
    found = re.search(r"test loss (\S+)\.$", outputs[0][0], re.MULTILINE)
    # Ten classes at random give 2.3.
    assert found and float(found[1]) < 2.0


def test_two_machines_of_sagemaker_train_and_the_first_exports(tmp_path: Path) -> None:
    options = CommonOptions(name="fashion", task="fashion", image="a", training_image="b", epochs=1, nodes=2)
    aws = AwsOptions(role="arn:aws:iam::123456789012:role/sagemaker", bucket="s3://my-bucket")
    algorithm: Any = render_aws(options, aws)["create-training-job.json"]["AlgorithmSpecification"]
    ports = sorted({free_port(), free_port(), free_port()})[:2]
    hosts = [f"127.0.0.1:{port}" for port in ports]
    commands = tmp_path / "bin"
    commands.mkdir()
    # With few examples, and the runtimes are measured for a second, not for twenty.
    (commands / "modelyard").write_text(
        '#!/bin/sh\n[ "$1" = export ] && set -- "$@" --examples=64 --min-examples=64 --measure-seconds=1\n'
        f'exec "{Path(sys.executable).parent}/modelyard" "$@"\n'
    )
    (commands / "modelyard").chmod(0o755)
    processes = []
    for index, host in enumerate(hosts):
        # A machine's folders; none sees the other's.
        machine = tmp_path / str(index)
        machine.mkdir()
        (machine / "resourceconfig.json").write_text(json.dumps({"current_host": host, "hosts": hosts}))
        words = [*algorithm["ContainerEntrypoint"], *algorithm["ContainerArguments"]]
        here = [
            word.replace("/opt/tf_config.py", str(LAUNCHER)).replace("/opt/ml/input/config", str(machine))
            .replace("/opt/ml/", f"{machine}/")
            for word in words
        ]  # fmt: skip
        path = f"{commands}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "MODELYARD_DATA": "subset", "TF_CPP_MIN_LOG_LEVEL": "2"}
        processes.append(
            subprocess.Popen(
                here, env=environment, cwd=machine, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    outputs = outputs_of(processes, processes, timeout_s=400)
    assert "by TF_CONFIG this process is worker 1; worker 0 exports" in outputs[1][1]
    assert not list((tmp_path / "1").glob("checkpoints/*")) and not (tmp_path / "1" / "model").exists()
    (version,) = list_versions(tmp_path / "0" / "model" / "fashion")
    assert {path.name for path in version.path.iterdir()} >= {"manifest.json", "onnx", "saved_model.pb"}
