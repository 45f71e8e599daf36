"""Model configurations: policies, labels, reload requests and the polled file, as upstream's tests have them."""

from __future__ import annotations

import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from tests.support.admin import ask, available, config_text, model_text, reload_config, states
from tests.support.models import publish_affine
from tests.support.server import RunningServer, run_to_end, serve


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``three`` with versions 1, 2, 3 that multiply by their number, ``ten`` and ``twenty`` with one version each."""
    folder = tmp_path_factory.mktemp("models")
    for number in (1, 2, 3):
        publish_affine(folder / "three", slope=float(number), intercept=0.0)
    publish_affine(folder / "ten", slope=10.0, intercept=0.0)
    publish_affine(folder / "twenty", slope=20.0, intercept=0.0)
    return folder


@pytest.fixture(scope="module")
def server(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    """Started with one model; the tests give it others."""
    with serve(models / "ten", model="start", log_dir=tmp_path_factory.mktemp("log")) as running:
        yield running


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("", {3}),
        ("latest {}", {3}),
        ("latest { num_versions: 2 }", {2, 3}),
        ("latest { num_versions: 99 }", {1, 2, 3}),
        ("all {}", {1, 2, 3}),
        ("specific { versions: 1 versions: 3 }", {1, 3}),
    ],
)
def test_version_policies(server: RunningServer, models: Path, policy: str, expected: set[int]) -> None:
    assert reload_config(server, config_text(model_text("policy", models / "three", policy=policy))) == ("OK", "")
    server.wait_until(lambda: available(server, "policy") == expected, 30, f"serving {expected}")
    assert ask(server, "policy") == float(max(expected))
    for number in (1, 2, 3):
        answer = ask(server, "policy", where=f"/versions/{number}")
        if number in expected:
            assert answer == float(number)
        else:
            assert answer[0] == 404 and f"Servable not found for request: Specific(policy, {number})" in answer[1]


@pytest.mark.parametrize("policy", ["specific {}", "specific { versions: 42 }"])
def test_a_policy_may_ask_for_nothing(server: RunningServer, models: Path, policy: str) -> None:
    name = "nothing" if "42" in policy else "nothing42"
    assert reload_config(server, config_text(model_text(name, models / "three"))) == ("OK", "")
    assert reload_config(server, config_text(model_text(name, models / "three", policy=policy))) == ("OK", "")
    server.wait_until(lambda: states(server, name) == {3: "END"}, 30, "unloading everything")
    status, error = ask(server, name)
    assert (status, "Servable not found for request: Latest(" in error) == (404, True)


def test_a_reload_replaces_the_configuration_wholly(server: RunningServer, models: Path) -> None:
    first = [model_text("ten", models / "ten"), model_text("three", models / "three")]
    second = [model_text("three", models / "three"), model_text("twenty", models / "twenty")]
    assert reload_config(server, config_text(*first)) == ("OK", "")
    assert (ask(server, "ten"), ask(server, "three")) == (10.0, 3.0)

    failures: list[object] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            answer = ask(server, "three")
            if answer != 3.0:
                failures.append(answer)

    caller = threading.Thread(target=load)
    caller.start()
    try:
        for _ in range(3):
            assert reload_config(server, config_text(*second)) == ("OK", "")
            # A reload returns when the new models can answer.
            assert ask(server, "twenty") == 20.0
            assert ask(server, "ten")[0] == 404
            assert states(server, "ten") == {1: "END"}
            assert reload_config(server, config_text(*first)) == ("OK", "")
            assert ask(server, "ten") == 10.0
            assert ask(server, "twenty")[0] == 404
    finally:
        stop.set()
        caller.join()
    assert failures == []


def test_an_empty_list_unloads_everything(server: RunningServer, models: Path) -> None:
    assert reload_config(server, config_text(model_text("ten", models / "ten"))) == ("OK", "")
    assert reload_config(server, config_text()) == ("OK", "")
    assert ask(server, "ten")[0] == 404
    assert states(server, "ten") == {1: "END"}


def test_the_base_path_changes_without_a_gap(server: RunningServer, models: Path) -> None:
    assert reload_config(server, config_text(model_text("moving", models / "ten"))) == ("OK", "")
    assert ask(server, "moving") == 10.0
    # The same version number in another directory is another version.
    assert reload_config(server, config_text(model_text("moving", models / "twenty"))) == ("OK", "")
    assert ask(server, "moving") == 20.0
    assert reload_config(server, config_text(model_text("moving", models / "three"))) == ("OK", "")
    assert ask(server, "moving") == 3.0
    server.wait_until(lambda: states(server, "moving") == {3: "AVAILABLE", 1: "END"}, 30, "unloading the old one")


def test_what_a_model_served_stays_when_its_new_base_path_has_nothing(
    server: RunningServer, models: Path, tmp_path: Path
) -> None:
    assert reload_config(server, config_text(model_text("kept", models / "ten"))) == ("OK", "")
    code, text = reload_config(server, config_text(model_text("kept", tmp_path / "missing")))
    assert code == "UNKNOWN"
    assert "1 servable(s) did not become available: {{kept: base path" in text
    assert ask(server, "kept") == 10.0
    # A damaged version of the same number does not push the good one out either.
    publish_affine(tmp_path / "damaged", slope=5.0, intercept=0.0)
    (tmp_path / "damaged" / "1" / "onnx" / "serving_default.onnx").write_bytes(b"damaged")
    code, text = reload_config(server, config_text(model_text("kept", tmp_path / "damaged")))
    assert (code, "serving_default.onnx" in text) == ("UNKNOWN", True)
    assert ask(server, "kept") == 10.0
    publish_affine(tmp_path / "mended", slope=6.0, intercept=0.0)
    assert reload_config(server, config_text(model_text("kept", tmp_path / "mended"))) == ("OK", "")
    assert ask(server, "kept") == 6.0


def test_a_new_model_that_cannot_be_loaded_is_reported_and_stalls_no_other(
    server: RunningServer, models: Path, tmp_path: Path
) -> None:
    config = config_text(model_text("missing", tmp_path / "missing"), model_text("fine", models / "ten"))
    code, text = reload_config(server, config)
    assert code == "UNKNOWN"
    assert "1 servable(s) did not become available" in text
    assert "missing" in text
    assert ask(server, "fine") == 10.0
    publish_affine(tmp_path / "missing", slope=7.0, intercept=0.0)
    server.wait_until(lambda: ask(server, "missing") == 7.0, 30, "picking the late model up")


BAD_CONFIGS = {
    "custom": ("custom_model_config {}", "ServerModelConfig type not supported"),
    "nothing": ("", "ServerModelConfig type not supported"),
    "duplicate": (config_text(model_text("a", "/x"), model_text("a", "/y")), "Illegal to list model a multiple times"),
    "relative": (config_text(model_text("a", "models/a")), "Expected model a to have an absolute path or URI; got"),
    "no path": (config_text(model_text("a", "")), "Expected model a to have an absolute path or URI"),
    "remote": (config_text(model_text("a", "nothing://bucket/a")), "not on a file system that is known"),
    "no name": (config_text(model_text("", "/x")), "has no name"),
    "no platform": (config_text(model_text("a", "/x", platform="")), "Illegal setting neither"),
    "both": (config_text(model_text("a", "/x", platform='model_type: TENSORFLOW model_platform: "tensorflow"')),
             "Illegal setting both"),
    "other type": (config_text(model_text("a", "/x", platform="model_type: OTHER")), "choice 2 not supported"),
    "platform": (config_text(model_text("a", "/x", platform='model_platform: "caffe"')),
                 "requests unsupported platform caffe"),
    "platform changed": (config_text(model_text("good", "/x", platform='model_platform: "caffe"')),
                         "Illegal to change a model's platform. For model good platform was tensorflow"),
}  # fmt: skip


@pytest.mark.parametrize("kind", BAD_CONFIGS)
def test_bad_configurations_change_nothing(server: RunningServer, models: Path, kind: str) -> None:
    text, fragment = BAD_CONFIGS[kind]
    assert reload_config(server, config_text(model_text("good", models / "ten"))) == ("OK", "")
    code, message = reload_config(server, text)
    assert (code, fragment in message) == ("INVALID_ARGUMENT", True), message
    assert ask(server, "good") == 10.0


@pytest.mark.parametrize("base", ["", "file://"])
def test_the_deprecated_model_type_and_uris_are_understood(server: RunningServer, models: Path, base: str) -> None:
    text = model_text("typed", f"{base}{models / 'ten'}", platform="model_type: TENSORFLOW")
    assert reload_config(server, config_text(text)) == ("OK", "")
    assert ask(server, "typed") == 10.0


# The four rules of labels.


def test_labels_of_loaded_versions(server: RunningServer, models: Path) -> None:
    def text(**labels: int) -> str:
        return config_text(model_text("labelled", models / "three", policy="all {}", labels=labels))

    assert reload_config(server, text()) == ("OK", "")
    assert reload_config(server, text(A=1, B=3)) == ("OK", "")
    assert ask(server, "labelled", where="/labels/A") == 1.0
    assert ask(server, "labelled", where="/labels/B") == 3.0
    assert reload_config(server, text(A=2)) == ("OK", "")
    assert ask(server, "labelled", where="/labels/A") == 2.0
    status, error = ask(server, "labelled", where="/labels/B")
    assert (status, "Unrecognized servable version label: B" in error) == (400, True)


def test_a_label_of_a_version_that_is_not_loaded_is_refused(server: RunningServer, models: Path) -> None:
    assert reload_config(server, config_text(model_text("strict", models / "three"))) == ("OK", "")
    assert reload_config(server, config_text(model_text("strict", models / "three", labels={"A": 3}))) == ("OK", "")
    for labels in ({"A": 3, "nice try": 777}, {"A": 1}):
        code, text = reload_config(server, config_text(model_text("strict", models / "three", labels=labels)))
        assert code == "FAILED_PRECONDITION"
        assert "not currently available for inference" in text
    assert ask(server, "strict", where="/labels/A") == 3.0


def test_new_labels_only_may_point_to_versions_not_loaded_with_the_flag(models: Path, tmp_path: Path) -> None:
    def text(**labels: int) -> str:
        return config_text(model_text("m", models / "three", policy="latest { num_versions: 2 }", labels=labels))

    config = tmp_path / "models.config"
    config.write_text(text(A=2, early=777))
    flags = [f"--model_config_file={config}", "--allow_version_labels_for_unavailable_models"]
    with serve(models / "ten", model="m", log_dir=tmp_path, flags=flags) as server:
        server.wait_until(lambda: available(server, "m") == {2, 3}, 30, "serving both")
        assert ask(server, "m", where="/labels/A") == 2.0
        status, error = ask(server, "m", where="/labels/early")
        assert (status, "Specific(m, 777)" in error) == (404, True)
        assert reload_config(server, text(A=2, early=777, later=778)) == ("OK", "")
        for labels in ({"A": 777}, {"early": 779}):
            code, message = reload_config(server, text(**labels))
            assert (code, "not currently available for inference" in message) == ("FAILED_PRECONDITION", True)
        assert reload_config(server, text(A=3, early=2)) == ("OK", "")
        assert ask(server, "m", where="/labels/early") == 2.0


def test_a_label_whose_version_goes_is_named(server: RunningServer, models: Path) -> None:
    def text(policy: str) -> str:
        return config_text(model_text("moved", models / "three", policy=policy, labels={"stable": 1}))

    both = "specific { versions: 1 versions: 3 }"
    assert reload_config(server, config_text(model_text("moved", models / "three", policy=both))) == ("OK", "")
    assert reload_config(server, text(both)) == ("OK", "")
    assert ask(server, "moved", where="/labels/stable") == 1.0
    warning = "model moved: version_labels name versions that are not loaded: 'stable' (version 1)"
    assert warning not in server.log_text()
    assert reload_config(server, text("")) == ("OK", "")
    server.wait_until(lambda: available(server, "moved") == {3}, 30, "unloading version 1")
    assert ask(server, "moved", where="/labels/stable") == (
        404,
        "Servable not found for request: Specific(moved, 1) (label 'stable'); loaded versions: [3].",
    )
    server.wait_until(lambda: warning in server.log_text(), 30, "warned")
    # Some looks later.
    time.sleep(0.5)
    assert server.log_text().count(warning) == 1


def test_labels_at_the_start_need_the_flag(models: Path, tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    config.write_text(config_text(model_text("m", models / "three", labels={"A": 3})))
    code, output = run_to_end(f"--model_config_file={config}")
    assert code == 1
    assert "not currently available for inference" in output
    assert "--allow_version_labels_for_unavailable_models" in output


# The file.


def put(file: Path, text: str) -> None:
    """Replaces a file at once: the server must not find it empty in between."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


def test_the_polled_file(models: Path, tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    put(config, config_text(model_text("ten", models / "ten"), model_text("three", models / "three")))
    flags = [f"--model_config_file={config}", "--model_config_file_poll_wait_seconds=1"]
    with serve(models / "ten", model="ten", log_dir=tmp_path, flags=flags) as server:
        server.wait_until(lambda: ask(server, "three") == 3.0, 30, "serving both")
        put(config, config_text(model_text("ten", models / "ten"), model_text("twenty", models / "twenty")))
        server.wait_until(lambda: ask(server, "twenty") == 20.0, 30, "serving the new one")
        server.wait_until(lambda: states(server, "three") == {3: "END"}, 30, "unloading the old one")

        for number, (broken, complaint) in enumerate(
            [
                ("model_config_list { nonsense", "in protobuf text format"),
                ("", "is empty"),
                (config_text(model_text("ten", "relative")), "to have an absolute path"),
                (config_text(model_text("ten", models / "ten", labels={"A": 9})), "not currently available"),
            ],
            start=1,
        ):
            put(config, broken)
            server.wait_until(lambda text=complaint: text in server.log_text(), 30, f"complaining: {complaint}")
            assert server.log_text().count("the configuration stays as it was") == number
            assert (ask(server, "ten"), ask(server, "twenty")) == (10.0, 20.0)
        complaints = server.log_text().count("the configuration stays as it was")
        put(config, config_text(model_text("three", models / "three")))
        server.wait_until(lambda: ask(server, "three") == 3.0, 30, "mended")
        assert server.log_text().count("the configuration stays as it was") == complaints
        assert ask(server, "ten")[0] == 404

        # The file wins over reload requests.
        assert reload_config(server, config_text(model_text("ten", models / "ten"))) == ("OK", "")
        server.wait_until(lambda: ask(server, "three") == 3.0, 30, "back to the file")
        config.unlink()
        server.wait_until(lambda: "cannot be read" in server.log_text(), 30, "missing the file")
        assert ask(server, "three") == 3.0


def test_the_file_is_read_once_by_default(models: Path, tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    config.write_text(config_text(model_text("ten", models / "ten"), model_text("gone", tmp_path / "gone")))
    with serve(models / "ten", model="ten", log_dir=tmp_path, flags=[f"--model_config_file={config}"]) as server:
        # One base path is missing; the other model does not wait for it.
        assert ask(server, "ten") == 10.0
        config.write_text(config_text(model_text("three", models / "three")))
        written = time.monotonic()
        publish_affine(tmp_path / "gone", slope=4.0, intercept=0.0)
        server.wait_until(lambda: ask(server, "gone") == 4.0, 30, "looking at base paths")
        # By then it would have been read, were it polled each second.
        time.sleep(max(0.0, written + 1.2 - time.monotonic()))
        assert (ask(server, "three")[0], ask(server, "ten")) == (404, 10.0)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("nonsense", "is not a tensorflow.serving.ModelServerConfig in protobuf text format"),
        (config_text(model_text("a", "/x"), model_text("a", "/y")), "Illegal to list model a multiple times"),
        ("custom_model_config {}", "type not supported"),
        (None, "cannot be read"),
    ],
)
def test_a_bad_file_at_the_start_ends_the_server(tmp_path: Path, text: str | None, complaint: str) -> None:
    config = tmp_path / "models.config"
    if text is not None:
        config.write_text(text)
    with pytest.raises(ConfigurationError, match=re.escape(complaint)):
        parse_flags([f"--model_config_file={config}"])


# Who may ask.


def own_address() -> str | None:
    """An address of this machine that is not a loopback one."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            # A datagram socket sends nothing when it is connected.
            probe.connect(("198.51.100.1", 9))
        except OSError:
            return None
        address: str = probe.getsockname()[0]
    return None if address.startswith("127.") else address


@pytest.mark.parametrize("allowed", [False, True])
def test_other_hosts_may_not_reload(models: Path, tmp_path: Path, allowed: bool) -> None:
    address = own_address()
    if address is None:
        pytest.skip("this machine has a loopback address only; test_access.py has the rest")
    flags = ["--insecure_admin=anywhere"] if allowed else []
    with serve(models / "ten", model="ten", log_dir=tmp_path, flags=flags) as server:
        text = config_text(model_text("three", models / "three"))
        remote = f"{address}:{server.grpc_port}"
        try:
            grpc.channel_ready_future(grpc.insecure_channel(remote)).result(timeout=20)
        except grpc.FutureTimeoutError:
            pytest.skip("this machine does not reach itself by its own address")
        code, message = reload_config(server, text, address=remote)
        if allowed:
            assert (code, ask(server, "three")) == ("OK", 3.0)
        else:
            assert code == "PERMISSION_DENIED"
            assert address in message
            assert "--access_file" in message
            assert ask(server, "ten") == 10.0
            assert reload_config(server, text) == ("OK", "")
