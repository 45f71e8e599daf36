"""Both transports against a real server: same values, same dtypes, same errors."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import Client, ClientOptions, Prediction, VersionState, connect, connect_async
from tests.clients.conftest import KINDS, connected, url_of
from tests.support.models import publish_affine
from tests.support.server import RunningServer, free_port, serve


def assert_same(first: Prediction, second: Prediction) -> None:
    assert first.keys() == second.keys()
    for name, array in first.items():
        assert (array.dtype, array.shape) == (second[name].dtype, second[name].shape)
        if array.dtype == object:
            assert array.tolist() == second[name].tolist()
        else:
            np.testing.assert_array_equal(array, second[name])


@pytest.mark.parametrize(
    "value",
    [
        [1, 2.5],
        np.array([1, 2.5], dtype=np.float32),
        np.array([1, np.nan, np.inf, -np.inf, 1e-45, 3.4e38], dtype=np.float32),
        np.float32(3),
    ],
    ids=["list", "array", "special values", "scalar"],
)
def test_numbers(both: tuple[Client, Client], value: Any) -> None:
    over_grpc, over_rest = (client.predict("half", {"x": value}) for client in both)
    expected = np.asarray(value, dtype=np.float32) * np.float32(0.5) + np.float32(2)
    np.testing.assert_array_equal(over_grpc["y"], expected)
    assert over_grpc["y"].dtype == np.float32
    assert_same(over_grpc, over_rest)


def test_several_inputs_and_outputs(both: tuple[Client, Client]) -> None:
    inputs = {"x": [1.0, 2.0], "count": [1, (1 << 62) + 1]}
    over_grpc, over_rest = (client.predict("half", inputs, signature="two_inputs") for client in both)
    assert over_grpc["next"].tolist() == [2, (1 << 62) + 2]
    assert over_grpc["next"].dtype == np.int64
    assert_same(over_grpc, over_rest)


@pytest.mark.parametrize("text", [["a", "é\0"], [b"a", "é".encode()], np.array(["a", "bc"])], ids=["str", "bytes", "U"])
def test_strings(both: tuple[Client, Client], text: Any) -> None:
    over_grpc, over_rest = (client.predict("half", {"text": text}, signature="strings") for client in both)
    assert over_grpc["raw_bytes"].dtype == object
    assert all(isinstance(value, bytes) for value in over_grpc["raw_bytes"])
    assert over_grpc["length"].dtype == np.int32
    assert_same(over_grpc, over_rest)


def test_arbitrary_bytes_survive_where_the_name_ends_in_bytes(client: Client) -> None:
    prediction = client.predict("half", {"text": [b"\xff\0\x80"]}, signature="strings", outputs=["raw_bytes"])
    assert prediction["raw_bytes"].tolist() == [b"\xff\0\x80"]


def test_scalar_outputs(both: tuple[Client, Client]) -> None:
    over_grpc, over_rest = (client.predict("half", {"x": [1.0, 2.0]}, signature="total") for client in both)
    assert over_grpc["sum"].shape == ()
    assert over_grpc["sum"] == np.float32(3)
    assert_same(over_grpc, over_rest)


def test_an_output_filter(client: Client) -> None:
    prediction = client.predict("half", {"text": ["a"]}, signature="strings", outputs=["upper"])
    assert {name: array.tolist() for name, array in prediction.items()} == {"upper": [b"A"]}


def test_the_prediction_says_who_answered(both: tuple[Client, Client]) -> None:
    over_grpc, over_rest = (client.predict("half", {"x": [1.0]}) for client in both)
    assert (over_grpc.model, over_grpc.version, over_grpc.signature) == ("half", 7, "serving_default")
    assert (over_rest.model, over_rest.version, over_rest.signature) == ("half", None, "serving_default")
    assert both[1].predict("half", {"x": [1.0]}, version=7).version == 7


def test_metadata(both: tuple[Client, Client]) -> None:
    over_grpc, over_rest = (client.metadata("half") for client in both)
    assert over_grpc == over_rest
    assert over_grpc.version == 7
    signature = over_grpc.signatures["two_inputs"]
    assert {name: (info.dtype, info.shape) for name, info in signature.inputs.items()} == {
        "x": ("float32", (-1,)),
        "count": ("int64", (-1,)),
    }


def test_status(both: tuple[Client, Client]) -> None:
    over_grpc, over_rest = (client.status("half") for client in both)
    assert over_grpc == over_rest
    assert [(row.version, row.state) for row in over_grpc.versions] == [(7, VersionState.AVAILABLE)]
    assert over_grpc.available == (7,)


def test_wait_ready_returns_at_once_where_the_model_is_there(client: Client) -> None:
    assert client.wait_ready("half", 30, version=7).available == (7,)


FAILURES: dict[str, tuple[type[errors.ModelyardError], dict[str, Any]]] = {
    "unknown model": (errors.ModelNotFoundError, {"model": "nope"}),
    "unknown version": (errors.ModelNotFoundError, {"version": 99}),
    "unknown label": (errors.InvalidModelSpecError, {"label": "stable"}),
    "unknown signature": (errors.SignatureNotFoundError, {"signature": "nope"}),
    "missing input": (errors.InvalidInputError, {"inputs": {}}),
    "extra input": (errors.InvalidInputError, {"inputs": {"x": [1.0], "z": [1.0]}}),
    "other input": (errors.InvalidInputError, {"inputs": {"z": [1.0]}}),
    "float64 array": (errors.InvalidInputError, {"inputs": {"x": np.zeros(1)}}),
    "text for numbers": (errors.InvalidInputError, {"inputs": {"x": ["a"]}}),
    "numbers for text": (errors.InvalidInputError, {"inputs": {"text": [1]}, "signature": "strings"}),
    "floats for integers": (
        errors.InvalidInputError,
        {"inputs": {"x": [1.0], "count": [0.5]}, "signature": "two_inputs"},
    ),
    "ragged": (errors.InvalidInputError, {"inputs": {"x": [[1.0], [1.0, 2.0]]}}),
    "unknown output": (errors.InvalidInputError, {"outputs": ["z"]}),
    "no output's name": (errors.InvalidInputError, {"outputs": [5]}),
    "no signature's name": (errors.ConfigurationError, {"signature": "\udcff"}),
    "repeated output": (errors.InvalidInputError, {"outputs": ["y", "y"]}),
    "no name": (errors.InvalidModelSpecError, {"model": ""}),
    "version and label": (errors.InvalidModelSpecError, {"version": 1, "label": "a"}),
    "no time": (errors.DeadlineExceededError, {"timeout_s": 1e-9}),
    "a timeout that is none": (errors.ConfigurationError, {"timeout_s": 0}),
}


@pytest.mark.parametrize("name", FAILURES)
def test_the_same_failure_is_the_same_class(client: Client, name: str) -> None:
    kind, arguments = FAILURES[name]
    with pytest.raises(errors.ModelyardError) as caught:
        client.predict(**{"model": "half", "inputs": {"x": [1.0]}, **arguments})
    assert type(caught.value) is kind
    # The client and the server go on.
    assert client.predict("half", {"x": [2.0]})["y"].tolist() == [3.0]


def test_failures_of_metadata_and_status(client: Client) -> None:
    for call in (client.metadata, client.status):
        with pytest.raises(errors.ModelNotFoundError, match="nope"):
            call("nope")
        with pytest.raises(errors.ModelNotFoundError, match="99"):
            call("half", version=99)


@pytest.mark.parametrize("kind", KINDS)
def test_the_libraries_carry_calls_too(server: RunningServer, kind: str) -> None:
    with connected(url_of(server, kind), kind, ClientOptions(transport="library")) as client:
        assert client.predict("half", {"x": np.zeros(1, np.float32)})["y"].tolist() == [2.0]
        with pytest.raises(errors.ModelNotFoundError) as caught:
            client.status("nope")
    assert type(caught.value.__cause__).__module__.startswith("grpc") is kind.startswith("grpc")


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_server_that_is_not_there(transport: str) -> None:
    url = f"{'grpc' if transport == 'grpc' else 'http'}://127.0.0.1:{free_port()}"
    with connect(url) as client:
        with pytest.raises(errors.UnavailableError, match=url):
            client.predict("half", {"x": np.zeros(1, np.float32)})
        with pytest.raises(errors.DeadlineExceededError, match=rf"not ready after 0\.3 s.*{url}"):
            client.wait_ready("half", 0.3)


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_closed_client_says_so(server: RunningServer, transport: str) -> None:
    client = connect(url_of(server, transport))
    client.close()
    client.close()
    with pytest.raises(errors.UnavailableError, match="closed; connect again"):
        client.status("half")
    assert "closed" in repr(client)


@pytest.mark.parametrize("library", ["own", "library"])
@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_client_belongs_to_the_event_loop_of_its_first_call(
    server: RunningServer, transport: str, library: Any
) -> None:
    client = connect_async(url_of(server, transport), ClientOptions(transport=library))

    async def call() -> Prediction:
        return await client.predict("half", {"x": [1.0]})

    with asyncio.Runner() as first:
        assert first.run(call())["y"].tolist() == [2.5]
        for use in (call, client.close):
            with pytest.raises(errors.ConfigurationError, match="belongs to another event loop.*make one for each"):
                asyncio.run(use())
        first.run(client.close())


def test_the_wrong_port_is_an_error_that_says_so(server: RunningServer) -> None:
    for url, error, text in (
        (f"grpc://127.0.0.1:{server.rest_port}", errors.UnsupportedError, f"gRPC is on port {server.grpc_port}"),
        (f"http://127.0.0.1:{server.grpc_port}", errors.RequestError, f"REST API is on port {server.rest_port}"),
    ):
        with connect(url) as client, pytest.raises(error, match=text):
            client.status("half", timeout_s=5)


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_threads_share_a_client(server: RunningServer, transport: str) -> None:
    client = connect(url_of(server, transport))
    answers: dict[int, list[float]] = {}

    def call(number: int) -> None:
        answers[number] = client.predict("half", {"x": [float(number)]})["y"].tolist()

    threads = [threading.Thread(target=call, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.close()
    assert answers == {number: [number * 0.5 + 2] for number in range(8)}


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_a_server_that_starts_later_and_changes_its_version(tmp_path: Path, transport: str) -> None:
    base_path = tmp_path / "affine"
    publish_affine(base_path, slope=1, intercept=0)
    with serve(base_path, model="affine", log_dir=tmp_path, wait=False) as server:
        options = ClientOptions(timeout_s=60, metadata_ttl_s=60)
        with connect(url_of(server, transport), options) as client:
            assert client.wait_ready("affine").available == (1,)
            assert client.predict("affine", {"x": [2]})["y"].tolist() == [2.0]
            publish_affine(base_path, slope=3, intercept=0)
            client.wait_ready("affine", version=2)
            server.wait_until(lambda: client.status("affine").available == (2,), 30, "only version 2")
            assert client.predict("affine", {"x": [2]})["y"].tolist() == [6.0]
            with pytest.raises(errors.InvalidInputError, match="shape"):
                client.predict("affine", {"x": [[2.0]]})


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_the_status_of_a_model_that_cannot_answer_yet(tmp_path: Path, transport: str) -> None:
    version = tmp_path / "broken" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"no graph")
    with serve(tmp_path / "broken", model="broken", log_dir=tmp_path, wait=False) as server:
        server.wait_until(lambda: '"END"' in server.get("/v1/models/broken")[1], 60, "giving up version 1")
        with connect(url_of(server, transport)) as client:
            (row,) = client.status("broken").versions
    assert (row.version, row.state.name, bool(row.error_message)) == (1, "END", True)
