"""Many rows: in order or as they come, in bounded memory, with errors by row."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from modelyard import errors
from modelyard.clients import Client, ManyOptions, RowResult, connect, connect_async
from modelyard.clients.api._many import batch_steps, stack
from modelyard.training.data import FashionMnist
from tests.clients.conftest import url_of
from tests.support.server import RunningServer


@pytest.fixture(params=["grpc", "rest"])
def affine(request: pytest.FixtureRequest, affine_server: RunningServer) -> Iterator[Client]:
    with connect(url_of(affine_server, request.param)) as client:
        yield client


def rows(count: int) -> Iterator[dict[str, Any]]:
    return ({"x": np.float32(index)} for index in range(count))


def values(results: Any) -> dict[int, float]:
    return {result.index: float(result.outputs["y"]) for result in results}


@pytest.mark.parametrize("count", [0, 1, 9, 100])
def test_in_order(affine: Client, count: int) -> None:
    told: list[tuple[int, int]] = []
    options = ManyOptions(batch_size=10, concurrency=3, progress=lambda done, failed: told.append((done, failed)))
    results = list(affine.predict_many("affine", rows(count), options))
    assert [result.index for result in results] == list(range(count))
    assert values(results) == {index: index * 0.5 + 2 for index in range(count)}
    assert told == [(min(done, count), 0) for done in range(10, count + 10, 10)]


def test_as_they_come(affine: Client) -> None:
    results = list(affine.predict_many("affine", rows(50), ManyOptions(batch_size=7, ordered=False)))
    assert values(results) == {index: index * 0.5 + 2 for index in range(50)}


@pytest.mark.parametrize("ordered", [True, False])
def test_an_endless_source_is_read_as_far_as_needed(affine: Client, ordered: bool) -> None:
    read = itertools.count()

    def endless() -> Iterator[dict[str, Any]]:
        while True:
            yield {"x": np.float32(next(read))}

    results = affine.predict_many("affine", endless(), ManyOptions(batch_size=5, concurrency=2, ordered=ordered))
    assert len(list(itertools.islice(results, 20))) == 20
    results.close()  # type: ignore[attr-defined]
    # 20 rows were used; beside them stood a window of four batches at most, and the batch being yielded.
    assert next(read) <= 20 + 5 * 5


@pytest.mark.parametrize("ordered", [True, False])
def test_rows_before_an_error_of_their_source_are_answered(affine_server: RunningServer, ordered: bool) -> None:
    options = ManyOptions(batch_size=8, concurrency=4, ordered=ordered)
    url = url_of(affine_server, "grpc")

    def source() -> Iterator[dict[str, Any]]:
        yield from rows(21)
        raise errors.IntegrityError("the file is damaged here")

    async def asynchronously() -> None:
        async with connect_async(url) as client:
            async for result in client.predict_many("affine", source(), options):
                found.append(result)

    found: list[RowResult] = []
    with connect(url) as client, pytest.raises(errors.IntegrityError, match="damaged here"):
        for result in client.predict_many("affine", source(), options):
            found.append(result)
    assert values(found) == {index: index * 0.5 + 2 for index in range(21)}
    found.clear()
    with pytest.raises(errors.IntegrityError, match="damaged here"):
        asyncio.run(asynchronously())
    assert values(found) == {index: index * 0.5 + 2 for index in range(21)}


@pytest.mark.parametrize("transport", ["grpc", "rest"])
def test_bad_rows_are_named_and_the_others_answered(
    fashion_server: RunningServer, fashion: FashionMnist, transport: str
) -> None:
    import io

    from PIL import Image

    images: list[bytes] = []
    for pixels in fashion.test_images[:12]:
        data = io.BytesIO()
        Image.fromarray(pixels).save(data, format="PNG")
        images.append(data.getvalue())
    source: list[dict[str, Any]] = [{"image_bytes": image} for image in images]
    source[3] = {"image_bytes": b"no image"}
    source[7] = {"image_bytes": images[7][:50]}
    source[8] = {"other": 1}
    with connect(url_of(fashion_server, transport)) as client:
        options = ManyOptions(batch_size=6, concurrency=2)
        results = list(client.predict_many("fashion", source, options, signature="image_bytes", outputs=["class_id"]))
        failed = {result.index: type(result.error) for result in results if not result.ok}
        assert failed == {
            3: errors.ImageDecodeError, 7: errors.ImageDecodeError, 8: errors.InvalidInputError
        }  # fmt: skip
        expected = client.predict("fashion", {"image_bytes": images}, signature="image_bytes")["class_id"]
        assert all(result.outputs["class_id"] == expected[result.index] for result in results if result.outputs)
        # Once more for those alone that failed, with what was wrong made right.
        for index in failed:
            source[index] = {"image_bytes": images[index]}
        done = {result.index for result in results if result.ok}
        again = list(
            client.predict_many("fashion", source, ManyOptions(skip=done), signature="image_bytes", outputs="class_id")
        )
        assert {result.index: int(result.outputs["class_id"]) for result in again if result.outputs} == {
            index: int(expected[index]) for index in failed
        }


def test_a_server_that_is_gone_fails_its_batch_once() -> None:
    batch: list[tuple[int, Mapping[str, Any]]] = [(index, {"x": 1.0}) for index in range(4)]
    steps = batch_steps(batch)
    next(steps)
    with pytest.raises(StopIteration) as stop:
        steps.throw(errors.UnavailableError("gone"))
    results: list[RowResult] = stop.value.value
    assert [(result.index, type(result.error)) for result in results] == [
        (index, errors.UnavailableError) for index in range(4)
    ]


def test_rows_that_cannot_be_told_apart(server: RunningServer) -> None:
    with connect(f"grpc://{server.grpc_address}") as client:
        source = [{"x": np.float32(1)}, {"x": np.float32(2)}]
        for result in client.predict_many("half", source, signature="total"):
            assert isinstance(result.error, errors.ProtocolError)
            assert "cannot be told apart" in result.error.message


@pytest.mark.parametrize("rows", [{"x": np.zeros(3)}, "x", 3])
@pytest.mark.parametrize("make", [connect, connect_async])
def test_one_mapping_is_no_list_of_rows(make: Any, rows: Any) -> None:
    with pytest.raises(errors.InvalidInputError, match=r"Expected rows.*received one (dict|str|int)\. Put rows into"):
        make("grpc://localhost").predict_many("m", rows)


@pytest.mark.parametrize("make", [connect, connect_async])
def test_options_are_no_mapping(make: Any) -> None:
    with pytest.raises(errors.ConfigurationError, match=r"Expected ManyOptions; received dict. .*batch_size=64"):
        make("grpc://localhost").predict_many("m", [], {"batch_size": 2})


@pytest.mark.parametrize("arguments", [{"version": "1"}, {"version": 1, "label": "a"}, {"label": ""}])
@pytest.mark.parametrize("make", [connect, connect_async])
def test_what_is_no_model_is_an_error_before_the_rows(make: Any, arguments: dict[str, Any]) -> None:
    with pytest.raises(errors.InvalidModelSpecError, match="Expected a"):
        make("grpc://localhost").predict_many("m", [], **arguments)


def test_stacking() -> None:
    assert stack([{"a": 1, "b": b"x"}, {"a": 2, "b": b"y"}]) == {"a": [1, 2], "b": [b"x", b"y"]}
    assert stack([{"a": np.zeros(3)}] * 2)["a"].shape == (2, 3)
    with pytest.raises(errors.InvalidInputError, match="rows of one batch differ"):
        stack([{"a": np.zeros(3)}, {"a": np.zeros(2)}])
    with pytest.raises(errors.InvalidInputError, match=r"\['a'\] and \['b'\]"):
        stack([{"a": 1}, {"b": 1}])
    with pytest.raises(errors.InvalidInputError, match="Input 'a': .*masked values"):
        stack([{"a": np.zeros(1)}, {"a": np.ma.array([1.0], mask=[True])}])


@pytest.mark.parametrize(
    "arguments",
    [
        *({"batch_size": 0}, {"concurrency": 0}, {"batch_size": True}, {"timeout_s": 0}),
        *({"skip": None}, {"skip": (index for index in (1, 2))}, {"progress": True}),
    ],
)
def test_options_are_checked(arguments: dict[str, Any]) -> None:
    with pytest.raises(errors.ConfigurationError, match="1 or more|more than 0|a set of indices|to be a function"):
        ManyOptions(**arguments)


@pytest.mark.parametrize("ordered", [True, False])
def test_asynchronously(affine_server: RunningServer, ordered: bool) -> None:
    async def source() -> AsyncIterator[dict[str, Any]]:
        for row in rows(33):
            yield row

    async def run() -> list[RowResult]:
        options = ManyOptions(batch_size=4, concurrency=3, ordered=ordered, skip={5})
        async with connect_async(f"grpc://{affine_server.grpc_address}") as client:
            first = [result async for result in client.predict_many("affine", source(), options)]
            second = [result async for result in client.predict_many("affine", rows(33), options)]
            assert values(first) == values(second)
            return first

    results = asyncio.run(run())
    assert values(results) == {index: index * 0.5 + 2 for index in range(33) if index != 5}
    if ordered:
        assert [result.index for result in results] == [index for index in range(33) if index != 5]
