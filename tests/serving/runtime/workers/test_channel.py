"""Questions and answers over a pair of sockets, both ways."""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import pytest

from modelyard import errors
from modelyard.serving.runtime.workers._channel import Channel
from modelyard.wire import GRPC_STATUS


async def answer(name: str, value: Any) -> Any:
    if name == "double":
        await asyncio.sleep(0.01 * value)
        return 2 * value
    if name == "wait":
        await asyncio.sleep(60)
    if name == "crash":
        raise ZeroDivisionError("oh")
    raise getattr(errors, name)(value)


async def pair() -> tuple[Channel, Channel, list[asyncio.Task[None]]]:
    ours, theirs = socket.socketpair()
    left, right = Channel(answer), Channel(answer)
    await left.open(ours)
    await right.open(theirs)
    tasks = [asyncio.create_task(left.run()), asyncio.create_task(right.run())]
    return left, right, tasks


async def end(tasks: list[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def test_both_sides_ask_at_the_same_time_and_answers_find_their_questions() -> None:
    async def check() -> list[int]:
        left, right, tasks = await pair()
        found = await asyncio.gather(*(side.ask("double", n) for n in (5, 1, 3) for side in (left, right)))
        await end(tasks)
        return found

    assert asyncio.run(check()) == [10, 10, 2, 2, 6, 6]


@pytest.mark.parametrize("kind", [kind for kind in GRPC_STATUS if kind is not errors.MissingDependencyError])
def test_errors_keep_their_class_and_message(kind: type[errors.ModelyardError]) -> None:
    async def check() -> None:
        left, _, tasks = await pair()
        with pytest.raises(kind, match="^what happened$") as caught:
            await left.ask(kind.__name__, "what happened")
        assert type(caught.value) is kind
        await end(tasks)

    asyncio.run(check())


def test_what_nobody_foresaw_is_an_internal_error(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        left, _, tasks = await pair()
        with pytest.raises(errors.InternalError, match="ZeroDivisionError: oh"):
            await left.ask("crash")
        await end(tasks)

    asyncio.run(check())
    assert "the question 'crash' could not be answered" in caplog.text


def test_the_end_of_the_other_side_fails_what_waits_and_what_comes() -> None:
    async def check() -> None:
        left, _, (first, second) = await pair()
        waiting = asyncio.create_task(left.ask("wait"))
        await asyncio.sleep(0.05)
        await end([second])
        with pytest.raises(errors.UnavailableError, match="other end of the control channel"):
            await waiting
        await first
        with pytest.raises(errors.UnavailableError, match="is not there"):
            await left.ask("double", 1)

    asyncio.run(check())
