"""classify, regress, multi_inference and reload_config over all transports, against a real server."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pytest

from modelyard import errors
from modelyard.clients import ClassScore, Client, ClientOptions, InferenceTask, ModelConfig, connect
from modelyard.clients.protocols import ExamplesCall, Target
from modelyard.clients.protocols.tfs._examples import to_examples
from modelyard.wire import tensorflow_pb2
from tests.clients.conftest import KINDS, connected, url_of
from tests.support.models import publish_affine
from tests.support.server import RunningServer, serve


@dataclasses.dataclass
class Point:
    x: float
    x2: float | None = None


@pytest.fixture(params=KINDS)
def examples(request: pytest.FixtureRequest, examples_server: RunningServer) -> Iterator[Client]:
    with connected(url_of(examples_server, request.param), request.param) as client:
        yield client


def _serialized(x: float) -> bytes:
    example = tensorflow_pb2.Example()
    example.features.feature["x"].float_list.value.append(x)
    return example.SerializeToString()


@pytest.mark.parametrize(
    "rows",
    [
        [{"x": 1.0}, {"x": [3.0]}],
        [Point(1.0), Point(3.0)],
        [_serialized(1.0), _serialized(3.0)],
        pd.DataFrame({"x": [1.0, 3.0], "note": ["a", None]}),
        [{"x": np.float32(1)}, {"x": np.array([3.0])}],
    ],
    ids=["dicts", "dataclasses", "serialized", "DataFrame", "numpy"],
)
def test_regress_takes_every_form_of_examples(examples: Client, rows: Any) -> None:
    regression = examples.regress("half", rows, signature="regress_x_to_y")
    assert regression.values.tolist() == [2.5, 3.5]
    assert regression.values.dtype == np.float32
    assert (regression.model, regression.signature) == ("half", "regress_x_to_y")
    assert regression.version == (3 if examples.url.startswith("grpc") else None)


def test_classify(examples: Client) -> None:
    rows = [{"x": 1.0}, {"x": 3.0}]
    result = examples.classify("half", rows, signature="classify_with_labels")
    assert result.rows == ((ClassScore(label="half", score=2.5),), (ClassScore(label="half", score=3.5),))
    assert [item.score for item in result.best()] == [2.5, 3.5]
    assert examples.classify("half", rows, signature="classify_x_to_y", version=3).rows[0][0].label == ""


def test_a_context_is_shared_and_overridden(examples: Client) -> None:
    rows: list[dict[str, float]] = [{}, {"x": 5.0}]
    values = examples.regress("half", rows, signature="regress_x_to_y", context={"x": 1.0}).values
    assert values.tolist() == [2.5, 4.5]


def test_multi_inference(examples: Client) -> None:
    tasks = [
        InferenceTask(method="regress", signature="regress_x_to_y"),
        InferenceTask(method="classify", signature="classify_x_to_y"),
    ]
    regression, classification = examples.multi_inference("half", [{"x": 1.0}], tasks)
    assert regression.values.tolist() == [2.5]  # type: ignore[union-attr]
    assert classification.rows == ((ClassScore(label="", score=2.5),),)  # type: ignore[union-attr]
    with pytest.raises(errors.ConfigurationError, match="at least one InferenceTask"):
        examples.multi_inference("half", [{"x": 1.0}], [])
    for wrong in (["classify"], tasks[0], iter(tasks)):
        with pytest.raises(errors.ConfigurationError, match="Expected a list of InferenceTask; received"):
            examples.multi_inference("half", [{"x": 1.0}], wrong)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("rows", "kind", "match"),
    [
        ([], errors.InvalidInputError, "at least one example"),
        ({"x": 1.0}, errors.InvalidInputError, "Put it into a list"),
        ([{"x": [1.0, "a"]}], errors.InvalidInputError, "feature 'x'.*float, str"),
        ([{"x": np.zeros((2, 2))}], errors.InvalidInputError, "flat list"),
        ([{"x": 1 << 70}], errors.InvalidInputError, "64 bits"),
        ([b"\xff"], errors.InvalidInputError, "no tf.Example"),
        ([{"x": "\udcff"}], errors.InvalidInputError, "feature 'x': expected text that UTF-8 can write"),
        ([3], errors.InvalidInputError, "received int"),
        ([{"x": Path("absent.bin")}], errors.InvalidInputError, "absent.bin"),
        (7, errors.InvalidInputError, "list of examples or a DataFrame"),
    ],
)
def test_what_is_no_example_says_so(rows: Any, kind: type[errors.ModelyardError], match: str) -> None:
    with pytest.raises(kind, match=match):
        to_examples(ExamplesCall(target=Target(model="m"), examples=rows, context=None))


def test_kinds_of_features() -> None:
    row = {"i": [1, True], "f": [1, 2.5], "b": ["é", b"\0"], "none": None, "empty": []}
    (example,) = to_examples(ExamplesCall(target=Target(model="m"), examples=[row], context=None)).examples
    feature = example.features.feature
    assert list(feature["i"].int64_list.value) == [1, 1]
    assert list(feature["f"].float_list.value) == [1.0, 2.5]
    assert list(feature["b"].bytes_list.value) == ["é".encode(), b"\0"]
    assert feature["empty"].WhichOneof("kind") is None
    assert "none" not in feature


def test_the_same_failure_is_the_same_class(examples: Client) -> None:
    with pytest.raises(errors.SignatureNotFoundError):
        examples.classify("half", [{"x": 1.0}], signature="nope")
    with pytest.raises(errors.ModelNotFoundError) as caught:
        examples.regress("nope", [{"x": 1.0}])
    assert caught.value.model == "nope"
    assert caught.value.server_message is not None
    assert caught.value.request_id


def test_reload_config(tmp_path: Path) -> None:
    for slope, name in ((1, "a"), (2, "b")):
        publish_affine(tmp_path / name, slope=slope, intercept=0)
    with serve(tmp_path / "a", model="a", log_dir=tmp_path) as server:
        with connect(f"grpc://{server.grpc_address}") as client:
            client.reload_config(
                [
                    ModelConfig(name="a", base_path=str(tmp_path / "a"), latest=1),
                    ModelConfig(name="b", base_path=tmp_path / "b", versions=(1,)),  # type: ignore[arg-type]
                ]
            )
            assert client.wait_ready("b").available == (1,)
            assert client.predict("b", {"x": [3.0]})["y"].tolist() == [6.0]
            with pytest.raises(errors.InvalidRequestError, match="absolute path"):
                client.reload_config([ModelConfig(name="c", base_path="relative")])
            with pytest.raises(errors.ConfigurationError, match="latest or versions"):
                client.reload_config([ModelConfig(name="c", base_path="/c", latest=1, versions=(1,))])
            for wrong in (None, ["c"], [ModelConfig(name="c", base_path="/c", labels=None)]):  # type: ignore[arg-type]
                with pytest.raises(errors.ConfigurationError, match="list of ModelConfig|cannot be configured so"):
                    client.reload_config(wrong)  # type: ignore[arg-type]
        with connect(server.rest_url) as client, pytest.raises(errors.UnsupportedError, match="grpc://"):
            client.reload_config([])


def test_a_reload_is_never_sent_twice() -> None:
    import threading
    from concurrent import futures

    import grpc

    from modelyard.wire import MODEL_SERVICE

    calls = threading.Semaphore(0)

    def refuse(data: bytes, context: Any) -> bytes:
        calls.release()
        context.abort(grpc.StatusCode.UNAVAILABLE, "not now")
        return b""

    server = grpc.server(futures.ThreadPoolExecutor(2))
    methods = {name: grpc.unary_unary_rpc_method_handler(refuse) for name in MODEL_SERVICE}
    service = MODEL_SERVICE["GetModelStatus"].service
    server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler(service, methods)])
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        with connect(f"grpc://127.0.0.1:{port}", ClientOptions(hedge_after_s=0.001)) as client:
            with pytest.raises(errors.UnavailableError, match="not now"):
                client.reload_config([])
            assert calls.acquire(timeout=1)
            assert not calls.acquire(timeout=0.3)
            with pytest.raises(errors.UnavailableError, match="not now"):
                client.status("m")
            assert all(calls.acquire(timeout=1) for _ in range(4))
    finally:
        server.stop(None).wait(5)
