"""compose.yaml against the Compose Specification's schema, the Dockerfile and the files it mounts."""

from __future__ import annotations

import copy
import re

import pytest
import yaml

from tests.deploy.conftest import ROOT, schema_errors

COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES = COMPOSE["services"]


def test_follows_the_schema() -> None:
    assert schema_errors("compose-spec", COMPOSE) == []


@pytest.mark.parametrize(
    ("key", "value"), [("stop_grace_period", 15), ("ports", "8500:8500"), ("no_such_key", 1), ("read_only", [])]
)
def test_the_schema_finds_mistakes(key, value) -> None:
    wrong = copy.deepcopy(COMPOSE)
    wrong["services"]["server"][key] = value
    assert schema_errors("compose-spec", wrong) != []


def test_has_the_services() -> None:
    assert {"server", "prometheus", "grafana", "locust-master", "locust-worker", "trainer"} < set(SERVICES)


def test_plain_up_starts_server_and_monitoring_only() -> None:
    assert {name for name, service in SERVICES.items() if "profiles" not in service} == {
        "server",
        "prometheus",
        "grafana",
    }


def test_targets_exist() -> None:
    stages = set(re.findall(r"^FROM \S+ AS (\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE))
    targets = {service["build"]["target"] for service in SERVICES.values() if "build" in service}
    assert targets and targets <= stages


def test_mounted_files_exist() -> None:
    sources = [
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if volume.startswith("./")
    ]
    assert len(sources) >= 4
    assert [source for source in sources if not (ROOT / source).exists()] == []


def test_images_of_others_are_pinned() -> None:
    images = [service["image"] for service in SERVICES.values() if not service["image"].startswith("modelyard/")]
    assert len(images) == 3
    assert [image for image in images if not re.search(r":v?\d+\.\d+\.\d+$", image)] == []


def test_volumes_are_declared() -> None:
    named = {
        volume.split(":")[0]
        for service in SERVICES.values()
        for volume in service.get("volumes", [])
        if volume[0] not in "./$"
    }
    assert named == set(COMPOSE["volumes"])


def test_server_may_drain_before_it_is_killed() -> None:
    from modelyard.serving import parse_flags

    drain_s = parse_flags(["--model_base_path=/models/model"]).lifecycle.drain_s
    assert float(SERVICES["server"]["stop_grace_period"].removesuffix("s")) > drain_s


def test_workers_load_the_same_servers_as_the_master() -> None:
    """Locust does not pass them on: without its own flags a worker loads its own container."""
    hosts = [
        [flag for flag in SERVICES[f"locust-{role}"]["command"] if "host-" in flag] for role in ("master", "worker")
    ]
    assert hosts[0] == ["--host-grpc=grpc://server:8500", "--host-rest=http://server:8501"]
    assert set(hosts[0]) <= set(hosts[1])
