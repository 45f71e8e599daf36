"""Messages of a stream, computed at the same time and answered in their order."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable

#: So many messages of a stream are computed at a time, and no more while they have so many bytes together.
_MOST, _MOST_BYTES = 64, 16 << 20


async def answer_in_order(
    messages: AsyncIterator[bytes], answer: Callable[[bytes], Awaitable[bytes]]
) -> AsyncIterator[bytes]:
    """Answers each message; what is not answered when nobody waits for it any more is cancelled.

    Args:
        messages: The stream.
        answer: Computes one answer, and has one for each error.

    Yields:
        Answers, in the order of the messages.
    """
    at_work: deque[tuple[asyncio.Future[bytes], int]] = deque()
    arriving: asyncio.Future[bytes] | None = asyncio.ensure_future(anext(messages))
    size = 0
    try:
        while at_work or arriving is not None:
            has_room = len(at_work) < _MOST and size < _MOST_BYTES
            waited = [at_work[0][0]] if at_work else []
            if arriving is not None and has_room:
                waited.append(arriving)
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
            if arriving is not None and has_room and arriving.done():
                try:
                    data = arriving.result()
                except StopAsyncIteration:
                    arriving = None
                else:
                    at_work.append((asyncio.ensure_future(answer(data)), len(data)))
                    size += len(data)
                    arriving = asyncio.ensure_future(anext(messages))
            while at_work and at_work[0][0].done():
                future, length = at_work.popleft()
                size -= length
                yield future.result()
    finally:
        if arriving is not None:
            arriving.cancel()
        for future, _ in at_work:
            future.cancel()
