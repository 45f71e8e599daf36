"""The asynchronous client: does what the engine says, on an event loop."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import AsyncIterable, AsyncIterator, Coroutine, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from typing import Protocol as Interface

from modelyard.clients.api import _operations
from modelyard.clients.api._connect import address_of, make_protocol, uses_proxy
from modelyard.clients.api._many import Batch, ManyOptions, Progress, Row, RowResult, batch_steps
from modelyard.clients.api._model import AsyncModel
from modelyard.clients.protocols import Answer, Flow, Pause, make_target
from modelyard.clients.transport import ClientOptions, Engine, Pool, Race, Send, Steps, check_seconds
from modelyard.clients.values import (
    Classification,
    InferenceTask,
    ModelConfig,
    ModelMetadata,
    ModelStatus,
    Prediction,
    Regression,
)
from modelyard.errors import ModelyardError

if TYPE_CHECKING:
    import asyncio

    from modelyard.clients.transport import Address

_T = TypeVar("_T")


class AsyncTransport(Interface):
    """Carries bytes to one server and back."""

    async def send(self, send: Send[Any]) -> Answer:
        """Sends one request and waits for its answer."""

    async def close(self) -> None:
        """Frees the connections."""


def connect_async(url: str | Sequence[str], options: ClientOptions | None = None) -> AsyncClient:
    """Makes an asynchronous client; the connection is opened by its first call.

    Args:
        url: As :func:`modelyard.clients.connect`.
        options: See :class:`ClientOptions`.

    Returns:
        A client for one event loop, to be closed or used in an ``async with`` statement.

    Raises:
        ConfigurationError: Another form of URL, or a TLS file that cannot be read.

    Example:
        >>> async with connect_async("http://localhost:8501") as client:
        ...     answer = await client.predict("fashion", {"image": np.zeros((2, 28, 28, 1), np.float32)})
    """
    options = options or ClientOptions()
    addresses, name = address_of(url)

    def make(address: Address) -> AsyncTransport:
        if options.transport == "own" and not uses_proxy(address):
            if address.protocol == "grpc":
                from modelyard.clients.transport.aio import AsyncLeanGrpcTransport

                return AsyncLeanGrpcTransport(address, options)
            from modelyard.clients.transport.aio import AsyncLeanRestTransport

            return AsyncLeanRestTransport(address, options)
        if address.protocol == "grpc":
            from modelyard.clients.transport.libraries import AsyncGrpcTransport

            return AsyncGrpcTransport(address, options)
        from modelyard.clients.transport.libraries import AsyncHttpxTransport

        return AsyncHttpxTransport(address, options)

    pool: Pool[AsyncTransport] = Pool(addresses, make, options.balance)
    return AsyncClient(Engine(name, pool, make_protocol(addresses[0], options), options))


class AsyncClient:
    """A client on an event loop, made by :func:`connect_async`.

    Its methods are those of :class:`modelyard.clients.Client`, with the same
    arguments, results and errors. Cancelling a call over gRPC cancels it on the
    server, too; over REST it closes the connection.

    Args:
        engine: The rules, and the servers.
    """

    def __init__(self, engine: Engine[AsyncTransport]) -> None:
        self._engine = engine
        self._watcher: asyncio.Task[None] | None = None

    @property
    def url(self) -> str:
        """Normal form of the server's URL; of several, with commas."""
        return self._engine.url

    async def predict(
        self,
        model: str,
        inputs: Mapping[str, Any],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Computes the outputs of a signature: see :meth:`modelyard.clients.Client.predict`."""
        flow = _operations.predict(
            self._engine.protocol, model, inputs, version=version, label=label, signature=signature, outputs=outputs
        )
        return await self._run(flow, timeout_s, model)

    async def classify(
        self,
        model: str,
        examples: Any,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        context: Any = None,
        timeout_s: float | None = None,
    ) -> Classification:
        """Classifies examples: see :meth:`modelyard.clients.Client.classify`."""
        flow = _operations.classify(
            self._engine.protocol,
            model,
            examples,
            version=version,
            label=label,
            signature=signature,
            context=context,
        )
        return await self._run(flow, timeout_s, model)

    async def regress(
        self,
        model: str,
        examples: Any,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        context: Any = None,
        timeout_s: float | None = None,
    ) -> Regression:
        """Computes one value for each example: see :meth:`modelyard.clients.Client.regress`."""
        flow = _operations.regress(
            self._engine.protocol,
            model,
            examples,
            version=version,
            label=label,
            signature=signature,
            context=context,
        )
        return await self._run(flow, timeout_s, model)

    async def multi_inference(
        self,
        model: str,
        examples: Any,
        tasks: Sequence[InferenceTask],
        *,
        version: int | None = None,
        label: str | None = None,
        context: Any = None,
        timeout_s: float | None = None,
    ) -> tuple[Classification | Regression, ...]:
        """Runs several signatures over the same examples: see :meth:`modelyard.clients.Client.multi_inference`."""
        flow = _operations.multi_inference(
            self._engine.protocol, model, examples, tasks, version=version, label=label, context=context
        )
        return await self._run(flow, timeout_s, model)

    async def predict_many(
        self,
        model: str,
        rows: Iterable[Row] | AsyncIterable[Row],
        options: ManyOptions | None = None,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        outputs: Sequence[str] | None = None,
    ) -> AsyncIterator[RowResult]:
        """Computes the outputs of many rows: see :meth:`modelyard.clients.Client.predict_many`."""
        import asyncio

        options = options or ManyOptions()
        make_target(model, version, label)

        async def work(batch: Batch) -> list[RowResult]:
            steps = batch_steps(batch)
            try:
                step = next(steps)
                while True:
                    try:
                        answer = await self.predict(
                            model,
                            step,
                            version=version,
                            label=label,
                            signature=signature,
                            outputs=outputs,
                            timeout_s=options.timeout_s,
                        )
                    except ModelyardError as exc:
                        step = steps.throw(exc)
                    else:
                        step = steps.send(answer)
            except StopIteration as done:
                results: list[RowResult] = done.value
                return results

        counter = Progress(options)
        pending: deque[asyncio.Task[list[RowResult]]] = deque()
        try:
            async for batch in _batches(rows, options):
                pending.append(asyncio.create_task(work(batch)))
                if len(pending) >= options.concurrency:
                    for result in counter.count(await _next(pending, options)):
                        yield result
            while pending:
                for result in counter.count(await _next(pending, options)):
                    yield result
        finally:
            for task in pending:
                task.cancel()
            await asyncio.gather(*pending, return_exceptions=True)

    async def model(
        self, name: str, *, version: int | None = None, label: str | None = None, timeout_s: float | None = None
    ) -> AsyncModel:
        """A model whose signatures are known: see :meth:`modelyard.clients.Client.model`."""
        metadata = await self.metadata(name, version=version, label=label, timeout_s=timeout_s)
        return AsyncModel(self, metadata, version=version, label=label)

    async def metadata(
        self, model: str, *, version: int | None = None, label: str | None = None, timeout_s: float | None = None
    ) -> ModelMetadata:
        """Describes a model's signatures: see :meth:`modelyard.clients.Client.metadata`."""
        return await self._run(self._engine.protocol.metadata(make_target(model, version, label)), timeout_s, model)

    async def status(self, model: str, *, version: int | None = None, timeout_s: float | None = None) -> ModelStatus:
        """States of a model's versions: see :meth:`modelyard.clients.Client.status`."""
        return await self._run(self._engine.protocol.status(make_target(model, version)), timeout_s, model)

    async def wait_ready(
        self, model: str, timeout_s: float | None = None, *, version: int | None = None
    ) -> ModelStatus:
        """Waits until a version can answer: see :meth:`modelyard.clients.Client.wait_ready`."""
        limit = self._engine.options.timeout_s if timeout_s is None else timeout_s
        check_seconds(limit, "a timeout")
        flow = self._engine.protocol.wait_ready(make_target(model, version), limit)
        return await self._run(flow, limit + 60.0, model)

    async def reload_config(self, models: Sequence[ModelConfig], *, timeout_s: float | None = None) -> None:
        """Replaces the server's list of models: see :meth:`modelyard.clients.Client.reload_config`."""
        await self._run(self._engine.protocol.reload_config(models), timeout_s, "")

    async def close(self) -> None:
        """Closes the connections; a second call does nothing."""
        import asyncio

        self._engine.closed = True
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        for transport in self._engine.pool.all_transports:
            await transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"AsyncClient({self.url!r}{', closed' if self._engine.closed else ''})"

    def _run(self, flow: Flow[_T], timeout_s: float | None, model: str) -> Coroutine[Any, Any, _T]:
        if self._watcher is None and self._engine.pool.watched and not self._engine.closed:
            import asyncio

            self._watcher = asyncio.create_task(self._probe_forever())
        return self._perform(self._engine.run(flow, timeout_s, model))

    async def _perform(self, steps: Steps[AsyncTransport, _T]) -> _T:
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Send):
                        answer = await step.endpoint.transport.send(step)
                    elif isinstance(step, Pause):
                        import asyncio

                        await asyncio.sleep(step.seconds)
                        answer = Answer(b"")
                    else:
                        answer = await self._race(step)
                except ModelyardError as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        finally:
            # A cancelled call leaves the engine in the middle: it gives the endpoint back.
            steps.close()

    async def _race(self, race: Race[AsyncTransport]) -> Answer:
        import asyncio

        running = {asyncio.create_task(race.first.endpoint.transport.send(race.first))}
        try:
            done, running = await asyncio.wait(running, timeout=race.delay_s)
            if not done:
                running.add(asyncio.create_task(race.second.endpoint.transport.send(race.second)))
                done, running = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                if running and all(item.exception() is not None for item in done):
                    # One failed: the other one may still answer.
                    more, running = await asyncio.wait(running)
                    done |= more
            return next((item for item in done if item.exception() is None), next(iter(done))).result()
        finally:
            for task in running:
                task.cancel()
            if running:
                await asyncio.gather(*running, return_exceptions=True)

    async def _probe_forever(self) -> None:
        import asyncio

        pool, options = self._engine.pool, self._engine.options.balance
        while True:
            await asyncio.sleep(options.probe_interval_s)
            # A name that cannot be resolved now keeps its addresses; the calls say what is wrong.
            with contextlib.suppress(ModelyardError):
                await asyncio.to_thread(pool.refresh)
            await asyncio.gather(*(self._perform(self._engine.probe(endpoint)) for endpoint in pool.endpoints))


async def _batches(rows: Iterable[Row] | AsyncIterable[Row], options: ManyOptions) -> AsyncIterator[Batch]:
    batch: Batch = []
    index = 0
    async for row in _each(rows):
        if index not in options.skip:
            batch.append((index, row))
        index += 1
        if len(batch) == options.batch_size:
            yield batch
            batch = []
    if batch:
        yield batch


async def _each(rows: Iterable[Row] | AsyncIterable[Row]) -> AsyncIterator[Row]:
    if isinstance(rows, AsyncIterable):
        async for row in rows:
            yield row
    else:
        for row in rows:
            yield row


async def _next(pending: deque[asyncio.Task[list[RowResult]]], options: ManyOptions) -> list[RowResult]:
    import asyncio

    if options.ordered:
        task = pending[0]
        await asyncio.wait([task])
    else:
        done, _ = await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        task = next(item for item in pending if item in done)
    pending.remove(task)
    return task.result()
