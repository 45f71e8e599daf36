"""One native core for all ports: what it hands over goes to the event loop."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

import modelyard_core

from modelyard.errors import ConfigurationError
from modelyard.serving.access import Access, Credentials, LiveTls, Ticket
from modelyard.serving.config import ServerOptions, TlsConfig
from modelyard.serving.machine import available_cpus
from modelyard.serving.metrics import Metrics, ModelStatistics
from modelyard.serving.repository import ModelManager
from modelyard.serving.rollout import Rollout
from modelyard.serving.telemetry import MAX_RECORDS, Telemetry, Wanted
from modelyard.serving.transports import warn_unanswered
from modelyard.serving.transports.grpc import GrpcLimits, limits_of
from modelyard.serving.transports.http import Application
from modelyard.serving.transports.native._calls import Calls, Methods
from modelyard.serving.transports.native._plans import Plans
from modelyard.serving.transports.native._rest import Exchanges

#: How long refusals get to reach their callers at the end of a stop.
_LAST_WORDS_S = 0.5


class NativeCore:
    """The core, with what answers what it hands over."""

    def __init__(self, options: ServerOptions, access: Access, wanted: Wanted | None = None) -> None:
        self._options = options
        self._recorded = wanted is not None
        self._calls: Calls | None = None
        self._exchanges: Exchanges | None = None
        self._plans: Plans | None = None
        self._parts: set[object] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._all_stopping = asyncio.Event()
        self._follows_tls = False
        self._access = access
        self._loop = asyncio.get_running_loop()
        arguments = options.grpc_channel_arguments
        limits, ours = limits_of(arguments) or GrpcLimits(), options.limits
        if "grpc.max_concurrent_streams" in dict(arguments):
            ours = replace(ours, max_streams=limits.max_streams)
        # More than a CPU quota lets run at once would only be throttled; two even of one CPU, for the spare thread.
        threads = min(_processors(), max(2, available_cpus()))
        self._server = modelyard_core.Server(
            self,
            threads=threads,
            max_body_bytes=options.max_body_bytes,
            max_message_bytes=ours.largest(limits.max_message_bytes),
            rest_timeout_s=options.rest_timeout_s,
            wrong_rest_port=_wrong_port("REST", "gRPC", options.port, "--port=8500"),
            wrong_grpc_port=_wrong_port("gRPC", "the REST API", options.rest_api_port, "--rest_api_port=8501"),
            **asdict(ours),
            max_age_s=limits.max_age_s,
            max_waiting=options.max_queued_requests,
            max_delay_s=options.max_queue_delay_s,
            usual_rest=not options.cors,
            strict_json=options.strict_json,
            json_extensions=options.rest_extensions,
            max_json_depth=options.max_json_depth,
            tensor_content=options.tensor_content,
            guarded=access.guarded,
            records=None
            if wanted is None
            else (MAX_RECORDS, wanted.share, wanted.slow_s, wanted.traced, wanted.parents),
            # One of several threads never computes, so that it can go on when a batch does not end. A single one would
            # have to hand over for every batch, which costs an eighth of the requests.
            spare_thread=options.lifecycle.max_batch_s > 0 and threads > 1,
        )

    @property
    def waiting(self) -> int:
        """Requests that the core has let in and not answered."""
        return self._server.waiting

    @property
    def inflight_bytes(self) -> int:
        """Bytes of requests that the core is reading or answering."""
        return self._server.inflight_bytes

    def watch(self, metrics: Metrics) -> None:
        """Shows what all connections share."""
        metrics.watch(":modelyard:serving:connections", {}, lambda: self._server.connections)
        seen: dict[str, int] = {}
        reading = threading.Lock()

        def fetch() -> None:
            with reading:
                for reason, count in self._server.refused.items():
                    metrics.refuse(reason, amount=count - seen.get(reason, 0))
                    seen[reason] = count

        metrics.before_reading(fetch)

    def record(self, telemetry: Telemetry) -> None:
        telemetry.add_source(self._server.take_records)

    def answer_usual(
        self,
        manager: ModelManager,
        metrics: Metrics,
        statistics: ModelStatistics,
        rollout: Rollout | None = None,
    ) -> None:
        """Has the core answer predictions of the usual form by itself; see :class:`Plans`."""
        self._plans = Plans(self._server, manager, metrics, statistics, self._options, rollout)
        if rollout is not None:
            rollout.attach(self._server)

    def serve_rest(self, part: object, app: Application, port: int, tls: LiveTls | None) -> None:
        self._exchanges = Exchanges(app, recorded=self._recorded)
        self._listen(port, tls, flag="--rest_api_port")
        self._parts.add(part)

    def serve_grpc(self, part: object, methods: Methods, addresses: Mapping[str, LiveTls | None]) -> None:
        self._calls = Calls(methods, recorded=self._recorded)
        self._server.set_methods({path: _is_stream(handler) for path, handler in methods.items()})
        for address, tls in addresses.items():
            self._listen(int(address.rpartition(":")[2]), tls, flag="--port")
        self._parts.add(part)

    def _listen(self, port: int, tls: LiveTls | None, *, flag: str) -> None:
        grpc = flag == "--port"
        texts = None if tls is None else _texts(tls.config)
        try:
            self._server.listen(grpc=grpc, port=port, tls=texts)
        except OSError as exc:
            raise ConfigurationError(
                f"{'gRPC' if grpc else 'REST'} cannot listen on port {port}: {exc.strerror}. Is it in use? Choose "
                f"another with {flag}."
            ) from exc
        except ValueError as exc:
            if tls is None:
                raise
            raise _unusable(exc, tls.config) from exc
        if tls is not None and not self._follows_tls:
            self._follows_tls = True
            tls.on_change(self._use_tls)

    def _use_tls(self, tls: TlsConfig) -> None:
        try:
            self._server.set_tls(*_texts(tls))
        except ValueError as exc:
            raise _unusable(exc, tls) from exc

    async def stop(self, part: object, grace_s: float) -> None:
        """Takes no new connections, and answers what was sent, once every transport has asked for it."""
        self._parts.discard(part)
        if self._parts:
            await self._all_stopping.wait()
        else:
            self._all_stopping.set()
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s))
        await self._stopping

    async def _stop(self, grace_s: float) -> None:
        stopping = asyncio.create_task(asyncio.to_thread(self._server.stop, grace_s + _LAST_WORDS_S))
        await asyncio.wait([stopping], timeout=grace_s)
        if not stopping.done():
            self._give_up(grace_s)
        await stopping
        for work in (self._calls, self._exchanges):
            if work is not None:
                work.cancel()

    def _give_up(self, grace_s: float) -> None:
        """Refuses what is not answered by now."""
        works = [work for work in (self._calls, self._exchanges) if work is not None]
        text = warn_unanswered(self.waiting + sum(work.running for work in works), grace_s)
        for work in works:
            work.give_up(text)
        if self._plans is not None:
            # The core hands over what it computes.
            self._plans.give_up()

    # What the core calls, on threads of its own.

    def rest(self, exchange: modelyard_core.Exchange) -> None:
        if self._exchanges is not None:
            self._loop.call_soon_threadsafe(self._exchanges.begin, exchange)

    def call(self, call: modelyard_core.Call) -> None:
        if self._calls is not None:
            self._loop.call_soon_threadsafe(self._calls.begin, call)

    def feed(self, call: modelyard_core.Call, message: bytes | None) -> None:
        """A stream has another message, or has ended."""
        if self._calls is not None:
            self._loop.call_soon_threadsafe(self._calls.feed, call, message)

    def permit(
        self,
        authorization: str | None,
        key: str | None,
        certificate: bytes | None,
        client: str,
        model: str,
        rows: int,
    ) -> Ticket | None:
        """A prediction is to be computed by the core: None hands it over, and so refuses it."""
        shown = Credentials(authorization=authorization, key=key, certificate=certificate, host=client)
        return self._access.permit(shown, model, rows)

    def learn(self, model: str, version: int | None, label: str | None, signature: str, outputs: Sequence[str]) -> None:
        """Requests with a key came that the core knows nothing of."""
        if self._plans is not None:
            self._loop.call_soon_threadsafe(self._plans.learn, model, version, label, signature, outputs)

    def gone(self, item: modelyard_core.Call | modelyard_core.Exchange) -> None:
        work = self._calls if isinstance(item, modelyard_core.Call) else self._exchanges
        if work is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work.leave, item)


def _wrong_port(here: str, wanted: str, port: int, flag: str) -> str:
    """The answer to a client that speaks the other port's protocol."""
    there = f"{wanted} is on port {port}" if port else f"the server has no port for {wanted}: start it with {flag}"
    return f"This is the {here} port; {there}."


def _texts(tls: TlsConfig) -> tuple[str, str, str | None]:
    return tls.key, tls.certificate, tls.authority if tls.verify_client else None


def _unusable(problem: ValueError, tls: TlsConfig) -> ConfigurationError:
    # OpenSSL has read them before: what is left is what the core cannot compute with.
    return ConfigurationError(
        f"{tls.names[0]} or a certificate cannot be used by the native core: {problem}; expected a key of RSA with "
        "2048 bits or more, of the curve P-256 or P-384, or Ed25519. --transport=python may take others."
    )


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_stream(handler: object) -> bool:
    return bool(getattr(handler, "request_streaming", False) or getattr(handler, "response_streaming", False))
