"""A repository of several models, in the layouts that its users have; and base paths that are something else."""

from __future__ import annotations

import json
import re
import shutil
import signal
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard.artifact import WARMUP_FILE
from modelyard.errors import ConfigurationError
from modelyard.serving import parse_flags
from modelyard.wire import array_to_tensor, frame_record, serving_pb2
from tests.support.admin import ask, config_text, model_text, reload_config, states
from tests.support.models import publish_affine, publish_rounds, save_half_plus_two
from tests.support.server import RunningServer, run_to_end, serve


def publish_onnx(model: Path, *, slope: float) -> None:
    """Triton's layout: ``1/model.onnx``."""
    published = publish_affine(model.parent / ".scratch" / model.name, slope=slope, intercept=0.0)
    (model / "1").mkdir(parents=True)
    shutil.copy(published.path / "onnx" / "serving_default.onnx", model / "1" / "model.onnx")


def save_tflite(file: Path) -> None:
    """``y = 3 x``."""
    import tensorflow as tf

    class Triple(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.float32, name="x")])
        def triple(self, x):
            return {"y": 3.0 * x}

    module = Triple()
    file.parent.mkdir(parents=True)
    function = module.triple.get_concrete_function()
    file.write_bytes(tf.lite.TFLiteConverter.from_concrete_functions([function], module).convert())


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One model of each layout; ``half`` and ``triton_half`` are 0.5 x + 2, the others say what they multiply by."""
    folder = tmp_path_factory.mktemp("models")
    publish_affine(folder / "ten", slope=10.0, intercept=0.0)
    publish_onnx(folder / "two", slope=2.0)
    (folder / "two" / "config.pbtxt").write_text('platform: "onnxruntime_onnx"')
    publish_onnx(folder / "five", slope=5.0)
    graph = folder / "five" / "1" / "model.onnx"
    graph.rename(folder / "graph")
    graph.mkdir()
    (folder / "graph").rename(graph / "model.onnx")
    save_tflite(folder / "three" / "1" / "model.tflite")
    save_half_plus_two(folder / "half" / "1")
    save_half_plus_two(folder / "triton_half" / "1" / "model.savedmodel")
    (folder / "notes").mkdir()
    (folder / "misplaced").mkdir()
    shutil.copy(folder / "two" / "1" / "model.onnx", folder / "misplaced")
    (folder / "README").write_text("no model")
    return folder


def serves(server: RunningServer, name: str, expected: float) -> None:
    server.wait_until(lambda: ask(server, name) == expected, 60, f"serving {name}")


def test_every_layout_is_served_by_its_folder_s_name(repository: Path, tmp_path: Path) -> None:
    flags = [f"--model_repository={repository}"]
    with serve(None, model="ten", log_dir=tmp_path, flags=flags) as server:
        for name, answer in [("ten", 10.0), ("two", 2.0), ("three", 3.0), ("five", 5.0)]:
            serves(server, name, answer)
        for name in ("half", "triton_half"):
            serves(server, name, 2.5)
            assert f"model {name} version 1 is AVAILABLE in tensorflow" in server.log_text()
        assert ask(server, "notes")[0] == 404
        assert "notes" not in server.log_text()
        assert server.log_text().count(f"{repository}/two/config.pbtxt is not read") == 1
        hint = f"{repository}/misplaced is no model: it holds a model's files, not versions: move them to "
        assert f"{hint}{repository}/misplaced/1" in server.log_text()
        status, text = server.get("/v1/models/triton_half/metadata")
        assert (status, '"two_inputs"' in text) == (200, True)
        assert server.get("/v2/health/ready")[0] == 200


def test_models_come_and_go(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    flags = [f"--model_repository={folder}"]
    with serve(None, model="a", log_dir=tmp_path, flags=flags, wait=False) as server:
        server.wait_until(lambda: server.get("/v2/health/live")[0] == 200, 60, "listening")
        assert ask(server, "a")[0] == 404
        assert f"{folder} holds no model yet" in server.log_text()
        publish_affine(folder / "a", slope=2.0, intercept=0.0)
        serves(server, "a", 2.0)
        publish_affine(folder / "b", slope=3.0, intercept=0.0)
        serves(server, "b", 3.0)
        publish_affine(folder / "a", slope=4.0, intercept=0.0)
        serves(server, "a", 4.0)
        shutil.rmtree(folder / "a")
        server.wait_until(lambda: ask(server, "a") != 4.0, 30, "taking it away")
        assert ask(server, "a")[0] == 404
        assert ask(server, "b") == 3.0
        # As a disk that is away for a moment: nothing is unloaded for it.
        folder.rename(tmp_path / "away")
        server.wait_until(lambda: "the configuration stays as it was" in server.log_text(), 30, "complaining")
        # Some looks later.
        time.sleep(0.5)
        assert ask(server, "b") == 3.0
        (tmp_path / "away").rename(folder)
        publish_affine(folder / "c", slope=5.0, intercept=0.0)
        serves(server, "c", 5.0)
        # It is said once, however often it is looked at.
        assert server.log_text().count("the configuration stays as it was") == 1


def test_a_new_model_that_is_damaged_takes_nothing_from_the_others(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    publish_affine(folder / "a", slope=2.0, intercept=0.0)
    with serve(None, model="a", log_dir=tmp_path, flags=[f"--model_repository={folder}"]) as server:
        serves(server, "a", 2.0)
        (folder / "new" / "1").mkdir(parents=True)
        (folder / "new" / "1" / "model.onnx").write_text("junk")
        server.wait_until(lambda: "model new version 1 cannot be served" in server.log_text(), 60, "trying it")
        assert (server.get("/v2/health/ready")[0], server.get("/v2/models/new/ready")[0]) == (200, 400)
        publish_affine(folder / "new", slope=3.0, intercept=0.0)
        serves(server, "new", 3.0)
        assert (server.get("/v2/health/ready")[0], server.get("/v2/models/new/ready")[0]) == (200, 200)


def test_a_repository_that_is_empty_all_at_once_unloads_nothing(tmp_path: Path) -> None:
    """As where a volume is unmounted, and leaves its mount point."""
    folder = tmp_path / "models"
    for name, slope in [("a", 2.0), ("b", 3.0)]:
        publish_affine(folder / name, slope=slope, intercept=0.0)
    with serve(None, model="a", log_dir=tmp_path, flags=[f"--model_repository={folder}"]) as server:
        serves(server, "b", 3.0)
        folder.rename(tmp_path / "away")
        folder.mkdir()
        complaint = f"the configuration stays as it was: {folder} holds no model any more"
        server.wait_until(lambda: complaint in server.log_text(), 30, "complaining")
        time.sleep(1.0)
        assert (ask(server, "a"), ask(server, "b")) == (2.0, 3.0)
        assert server.get("/v2/health/ready")[0] == 200
        assert server.log_text().count(complaint) == 1
        folder.rmdir()
        (tmp_path / "away").rename(folder)
        publish_affine(folder / "c", slope=4.0, intercept=0.0)
        serves(server, "c", 4.0)
        assert (ask(server, "a"), ask(server, "b")) == (2.0, 3.0)


def test_no_models_are_told_as_such(tmp_path: Path) -> None:
    with serve(None, model="a", log_dir=tmp_path, flags=[f"--model_repository={tmp_path}"], wait=False) as server:
        server.wait_until(lambda: server.get("/v2/health/live")[0] == 200, 60, "listening")
        status, error = ask(server, "a")
        assert (status, error.endswith("; there are no models here.")) == (404, True), error


def test_reloads_are_refused_while_a_repository_is_polled(tmp_path: Path) -> None:
    publish_affine(tmp_path / "models" / "a", slope=2.0, intercept=0.0)
    with serve(None, model="a", log_dir=tmp_path, flags=[f"--model_repository={tmp_path / 'models'}"]) as server:
        code, message = reload_config(server, config_text(model_text("c", tmp_path / "models" / "a")))
        assert code == "FAILED_PRECONDITION"
        for way in ("labels.json", "--model_control_mode=none", "--model_config_file"):
            assert way in message
        assert (ask(server, "a"), ask(server, "c")[0]) == (2.0, 404)


def test_names_that_a_url_cannot_route_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    for name in ("a", "scratch"):
        publish_affine(folder / name, slope=2.0, intercept=0.0)
    (folder / "scratch").rename(folder / "x:y")
    with serve(None, model="a", log_dir=tmp_path, flags=[f"--model_repository={folder}"]) as server:
        assert [row["name"] for row in json.loads(server.post("/v2/repository/index", b"{}")[1])] == ["a"]
        # That looks at the repository more than once.
        publish_affine(folder / "b", slope=3.0, intercept=0.0)
        serves(server, "b", 3.0)
        assert server.log_text().count(f"{folder}/x:y is not served: /v1/models/NAME cannot route the name 'x:y'") == 1
        assert server.log_text().count("x:y") == 2
        (folder / "x:y").rename(folder / "x-y")
        serves(server, "x-y", 2.0)


def hang(model: Path) -> None:
    """A model whose loading never ends: its warm-up counts to a number that it does not reach."""
    made = model.parent / ".scratch" / model.name
    publish_rounds(made)
    log = serving_pb2.PredictionLog()
    log.predict_log.request.inputs["x"].CopyFrom(array_to_tensor(np.array([1e18], np.float32)))
    (made / "1" / WARMUP_FILE).parent.mkdir()
    (made / "1" / WARMUP_FILE).write_bytes(frame_record(log.SerializeToString()))
    made.rename(model)


def ends(server: RunningServer) -> None:
    server.process.send_signal(signal.SIGTERM)
    assert server.process.wait(timeout=25) == 0
    assert "Traceback" not in server.log_text()


def test_a_model_that_loads_for_ever_stalls_neither_the_others_nor_the_end(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    for name, slope in [("a", 2.0), ("b", 3.0)]:
        publish_affine(folder / name, slope=slope, intercept=0.0)
    flags = [f"--model_repository={folder}", "--num_load_threads=3"]
    with serve(None, model="a", log_dir=tmp_path, flags=flags) as server:

        def says(text: str) -> None:
            server.wait_until(lambda: text in server.log_text(), 30, f"saying {text!r}")

        serves(server, "b", 3.0)
        hang(folder / "c")
        says("loading model c version 1 from ")
        assert (states(server, "c"), ask(server, "c")[0]) == ({1: "LOADING"}, 503)
        publish_affine(folder / "d", slope=4.0, intercept=0.0)
        shutil.rmtree(folder / "b")
        says("model d version 1 is AVAILABLE")
        says("model b version 1 is unloaded")
        assert (ask(server, "b")[0], ask(server, "d")) == (404, 4.0)
        # It takes nothing away from the others.
        assert server.get("/v2/health/ready")[0] == 200
        assert server.get("/v2/models/c/ready")[0] != 200
        shutil.rmtree(folder / "c")
        hang(folder / "e")
        says("loading model e version 1 from ")
        assert ask(server, "c")[0] == 404
        publish_affine(folder / "f", slope=5.0, intercept=0.0)
        says("model f version 1 is AVAILABLE")
        assert ask(server, "f") == 5.0
        ends(server)


@pytest.mark.parametrize("where", ["base path", "request", "reload"])
def test_the_end_does_not_wait_for_ever_for_a_model_that_loads(tmp_path: Path, where: str) -> None:
    hang(tmp_path / "m")
    publish_affine(tmp_path / "a", slope=2.0, intercept=0.0)
    flags = ["--model_control_mode=explicit"] if where == "request" else []
    base_path = tmp_path / ("a" if where == "reload" else "m")
    with (
        serve(base_path, model="m", log_dir=tmp_path, flags=[*flags, "--drain_seconds=1"], wait=False) as server,
        ThreadPoolExecutor() as pool,
    ):
        server.wait_until(lambda: server.get("/v2/health/live")[0] == 200, 60, "listening")
        if where == "request":
            waiting: Future[Any] = pool.submit(server.post, "/v2/repository/models/m/load", b"{}")
        elif where == "reload":
            waiting = pool.submit(reload_config, server, config_text(model_text("m", tmp_path / "m")))
        server.wait_until(lambda: "loading model m version 1 from " + str(tmp_path / "m") in server.log_text(), 30, "")
        ends(server)
        if where != "base path":
            assert waiting.exception() is not None or waiting.result()[0] not in (200, "OK")


def test_it_is_looked_at_once_where_the_base_paths_are(tmp_path: Path) -> None:
    publish_affine(tmp_path / "models" / "a", slope=2.0, intercept=0.0)
    flags = [f"--model_repository={tmp_path / 'models'}", "--model_control_mode=none"]
    with serve(None, model="a", log_dir=tmp_path, flags=flags) as server:
        publish_affine(tmp_path / "models" / "b", slope=2.0, intercept=0.0)
        text = config_text(model_text("c", tmp_path / "models" / "b"))
        assert reload_config(server, text) == ("OK", "")
        assert (ask(server, "b")[0], ask(server, "c")) == (404, 2.0)


def test_models_are_loaded_on_request_in_explicit_mode(tmp_path: Path) -> None:
    publish_affine(tmp_path / "models" / "a", slope=2.0, intercept=0.0)
    flags = [f"--model_repository={tmp_path / 'models'}", "--model_control_mode=explicit"]
    with serve(None, model="a", log_dir=tmp_path, flags=flags, wait=False) as server:
        server.wait_until(lambda: server.get("/v2/health/ready")[0] == 200, 60, "listening")
        publish_affine(tmp_path / "models" / "b", slope=3.0, intercept=0.0)
        server.wait_until(lambda: '"b"' in server.post("/v2/repository/index", b"{}")[1], 30, "listing the new model")
        assert (ask(server, "a")[0], ask(server, "b")[0]) == (404, 404)
        assert server.post("/v2/repository/models/b/load", b"{}")[0] == 200
        assert (ask(server, "a")[0], ask(server, "b")) == (404, 3.0)


def test_what_is_not_a_repository_is_told(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for path, expected in [
        (tmp_path / "absent", f"{tmp_path}/absent is no folder; expected a model repository."),
        (tmp_path / "file", f"{tmp_path}/file is no folder; expected a model repository."),
        (repository / "ten", f"--model_base_path={repository}/ten --model_name=NAME, or --model_repository with the"),
        (
            repository / "two" / "1",
            f"{repository}/two/1 is a version, not a folder of versions: use --model_base_path=",
        ),
    ]:
        with pytest.raises(ConfigurationError, match=re.escape(expected)):
            parse_flags([f"--model_repository={path}"])


@pytest.mark.parametrize(
    ("flag", "way"),
    [
        ("--model_name=ten", "For one of them: --model_base_path={repository}/NAME."),
        ("--model_base_path=/x/ten", ""),
        ("--model_config_file=/x/models.config", ""),
    ],
)
def test_flags_for_one_model_do_not_go_with_it(repository: Path, flag: str, way: str) -> None:
    both = re.escape(f"--model_repository={repository} and {flag} are both set")
    with pytest.raises(ConfigurationError, match=both) as caught:
        parse_flags([f"--model_repository={repository}", flag])
    assert way.format(repository=repository) in caught.value.message


def test_sagemaker_needs_a_model(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    with pytest.raises(ConfigurationError, match="--sagemaker answers for a model, and "):
        parse_flags([f"--model_repository={tmp_path / 'models'}", "--sagemaker"])


def test_sagemaker_answers_for_one_model(repository: Path) -> None:
    code, output = run_to_end(f"--model_repository={repository}", "--sagemaker")
    expected = f"--sagemaker answers for one model, and --model_repository={repository} has 6: five, half, "
    assert (code, expected in output, "Traceback" in output) == (2, True, False), output
    assert f"Use --model_base_path={repository}/NAME --model_name=NAME" in output


@pytest.mark.parametrize("where", ["", "ten/1", "two/1", "two/1/model.onnx", "plain"])
def test_a_base_path_that_is_none_is_recognised(repository: Path, tmp_path: Path, where: str) -> None:
    base_path = repository / where
    expected = {
        "": f"holds models (five, half, ten, three, triton_half, two), not versions: serve them all with "
        f"--model_repository={repository}, or one with --model_base_path={repository}/five",
        "ten/1": f"is a version, not a folder of versions: use --model_base_path={repository}/ten",
        "two/1": f"is a version, not a folder of versions: use --model_base_path={repository}/two",
        "two/1/model.onnx": "is a file; expected a folder: move it to MODEL/1/model.onnx",
        "plain": f"holds a model's files, not versions: move them to {tmp_path}/plain/1",
    }[where]
    if where == "plain":
        base_path = tmp_path / "plain"
        shutil.copytree(repository / "two" / "1", base_path)
    with serve(base_path, model="m", log_dir=tmp_path, wait=False) as server:
        server.wait_until(lambda: expected in server.log_text(), 60, "complaining")
        server.wait_until(lambda: ask(server, "m")[0] != 503, 30, "having looked")
        status, error = ask(server, "m")
        # The log has the whole path; its callers need not know where files are.
        told = f"base path {base_path} {expected}".replace(str(base_path), base_path.name)
        told = told.replace(f"{repository}/", "")
        assert (status, told in error, str(tmp_path) in error) == (404, True, False), error
        if where == "plain":
            # What was said is all that is to be done.
            (base_path / "1").mkdir()
            (base_path / "model.onnx").rename(base_path / "1" / "model.onnx")
            serves(server, "m", 2.0)


@pytest.mark.parametrize(
    ("platform", "runtime"),
    [
        ("onnx", "onnxruntime"),
        ("onnxruntime_onnx", "onnxruntime"),
        ("openvino", "openvino"),
        ("tflite", "litert"),
        ("tensorflow_savedmodel", "onnxruntime"),
    ],
)
def test_platforms_name_a_runtime(repository: Path, tmp_path: Path, platform: str, runtime: str) -> None:
    version = tmp_path / "m" / "1"
    shutil.copytree(repository / "two" / "1", version)
    shutil.copy(repository / "three" / "1" / "model.tflite", version)
    config = tmp_path / "models.config"
    text = model_text("m", version.parent, platform=f'model_platform: "{platform}"')
    config.write_text(config_text(text))
    flags = [f"--model_config_file={config}"]
    with serve(None, model="m", log_dir=tmp_path, flags=flags) as server:
        assert ask(server, "m") == (3.0 if runtime == "litert" else 2.0)
        assert f"AVAILABLE in {runtime} " in server.log_text()
        # Upstream's rule: a model keeps its platform.
        code, message = reload_config(server, config_text(model_text("m", version.parent)))
        assert (code, f"For model m platform was {platform} and new platform requested is tensorflow" in message) == (
            "INVALID_ARGUMENT",
            True,
        )
        assert reload_config(server, config_text(text)) == ("OK", "")


def test_a_platform_that_no_file_is_of(repository: Path, tmp_path: Path) -> None:
    config = tmp_path / "models.config"
    config.write_text(config_text(model_text("m", repository / "two", platform='model_platform: "tflite"')))
    flags = [f"--model_config_file={config}"]
    with serve(None, model="m", log_dir=tmp_path, flags=flags, wait=False) as server:
        server.wait_until(lambda: states(server, "m") == {1: "END"}, 60, "refused")
        status, error = ask(server, "m")
        assert (status, "no file for the runtime 'litert'" in error, "model_platform" in error) == (404, True, True)


@pytest.mark.parametrize("name", ["", "two"])
def test_the_image_serves_what_is_mounted(repository: Path, tmp_path: Path, name: str) -> None:
    env = {"MODEL_BASE_PATH": str(repository), "MODEL_NAME": name}
    with serve(None, model="two", log_dir=tmp_path, env=env) as server:
        assert ask(server, "two") == 2.0
        if name:
            assert ask(server, "ten")[0] == 404
        else:
            serves(server, "ten", 10.0)
