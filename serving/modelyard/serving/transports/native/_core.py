"""One native core for all ports: what it hands over goes to the event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import modelyard_core

from modelyard.errors import ConfigurationError
from modelyard.serving.access import Access, Credentials, LiveTls, Ticket
from modelyard.serving.config import TlsConfig, TransportLimits
from modelyard.serving.metrics import Metrics, ModelStatistics
from modelyard.serving.repository import ModelManager
from modelyard.serving.rollout import Rollout
from modelyard.serving.telemetry import MAX_RECORDS, Telemetry, Wanted
from modelyard.serving.transports.http import Application
from modelyard.serving.transports.native._calls import Calls, Methods
from modelyard.serving.transports.native._plans import Plans
from modelyard.serving.transports.native._rest import Exchanges


@dataclass(frozen=True, kw_only=True)
class NativeOptions:
    """Limits of the core, and what it says of the ports.

    Attributes:
        max_body_bytes: Largest body of a REST request.
        max_message_bytes: Largest message of a gRPC call.
        limits: What clients may have the core hold.
        max_age_s: Connections of the gRPC port are ended in an orderly way after so long; 0 for never.
        rest_timeout_s: Time that a REST body, and its answer, may take.
        wrong_rest_port: What gRPC's clients are told at the REST port.
        wrong_grpc_port: What others are told at the gRPC port.
        max_waiting: Requests that may wait; 0 for any number.
        max_delay_s: Seconds that a request may have to wait; 0 for any time.
        usual_rest: REST predictions of the usual form are answered by the core.
        strict_json: REST answers never hold NaN or infinities.
        json_extensions: JSON may hold half, bfloat16 and uint16.
        max_json_depth: Deepest nesting of a JSON body.
        tensor_content: Answers of Predict carry ``tensor_content``.
        threads: Threads of the transport; 0 for one a processor.
        wanted: Which requests are recorded; None for none.
        spare_thread: Where there are several, one of them never computes, so that it can go on when a batch does not
            end. A single one would have to hand over for every batch, which costs an eighth of the requests.
    """

    max_body_bytes: int
    max_message_bytes: int
    limits: TransportLimits
    max_age_s: float
    rest_timeout_s: float
    wrong_rest_port: str
    wrong_grpc_port: str
    max_waiting: int = 0
    max_delay_s: float = 0.0
    usual_rest: bool = True
    strict_json: bool = False
    json_extensions: bool = False
    max_json_depth: int = 100
    tensor_content: bool = False
    threads: int = 0
    wanted: Wanted | None = None
    spare_thread: bool = True


class NativeCore:
    """The core, with what answers what it hands over.

    Args:
        options: Limits.
        access: Who may predict.
    """

    def __init__(self, options: NativeOptions, access: Access) -> None:
        self._options = options
        self._calls: Calls | None = None
        self._exchanges: Exchanges | None = None
        self._plans: Plans | None = None
        self._parts: set[object] = set()
        self._stopping: asyncio.Task[None] | None = None
        self._all_stopping = asyncio.Event()
        self._follows_tls = False
        self._access = access
        self._loop = asyncio.get_running_loop()
        threads = options.threads or _processors()
        self._server = modelyard_core.Server(
            self,
            threads=threads,
            max_body_bytes=options.max_body_bytes,
            max_message_bytes=options.max_message_bytes,
            rest_timeout_s=options.rest_timeout_s,
            wrong_rest_port=options.wrong_rest_port,
            wrong_grpc_port=options.wrong_grpc_port,
            max_connections=options.limits.max_connections,
            max_streams=options.limits.max_streams,
            max_header_bytes=options.limits.max_header_bytes,
            header_timeout_s=options.limits.header_timeout_s,
            body_timeout_s=options.limits.body_timeout_s,
            idle_timeout_s=options.limits.idle_timeout_s,
            max_inflight_bytes=options.limits.max_inflight_bytes,
            max_age_s=options.max_age_s,
            max_waiting=options.max_waiting,
            max_delay_s=options.max_delay_s,
            usual_rest=options.usual_rest,
            strict_json=options.strict_json,
            json_extensions=options.json_extensions,
            max_json_depth=options.max_json_depth,
            tensor_content=options.tensor_content,
            guarded=access.guarded,
            records=_records(options.wanted),
            spare_thread=options.spare_thread and threads > 1,
        )

    @property
    def waiting(self) -> int:
        """Requests that the core has let in and not answered."""
        return self._server.waiting

    def watch(self, metrics: Metrics) -> None:
        """Shows what all connections share.

        Args:
            metrics: Where.
        """
        metrics.watch(":modelyard:serving:request_bytes_in_flight", {}, lambda: self._server.inflight_bytes)
        metrics.watch(":modelyard:serving:connections", {}, lambda: self._server.connections)
        seen: dict[str, int] = {}

        def fetch() -> None:
            for reason, count in self._server.refused.items():
                metrics.refuse(reason, amount=count - seen.get(reason, 0))
                seen[reason] = count

        metrics.before_reading(fetch)

    def record(self, telemetry: Telemetry) -> None:
        """Gives it the records of requests, of those that were wanted.

        Args:
            telemetry: What becomes of them.
        """
        telemetry.add_source(self._server.take_records)

    def answer_usual(
        self,
        manager: ModelManager,
        metrics: Metrics,
        statistics: ModelStatistics,
        *,
        check_methods: bool,
        max_rows: int,
        parallel: int,
        rollout: Rollout | None = None,
    ) -> None:
        """Has the core answer predictions of the usual form by itself; see :class:`Plans`."""
        self._plans = Plans(
            self._server, manager, metrics, statistics, check_methods=check_methods, max_rows=max_rows,
            parallel=parallel, rollout=rollout,
        )  # fmt: skip
        if rollout is not None:
            rollout.attach(self._server)

    def serve_rest(self, part: object, app: Application, port: int, tls: LiveTls | None) -> None:
        """Listens for REST.

        Args:
            part: Who asks.
            app: Answers what the core does not.
            port: The port.
            tls: Key and certificates, which may change; None for plain text.

        Raises:
            ConfigurationError: The port or the certificate cannot be used.
        """
        self._exchanges = Exchanges(app, recorded=self._options.wanted is not None)
        self._listen(port, tls, flag="--rest_api_port")
        self._parts.add(part)

    def serve_grpc(self, part: object, methods: Methods, addresses: Mapping[str, LiveTls | None]) -> None:
        """Listens for gRPC.

        Args:
            part: Who asks.
            methods: The handlers by path.
            addresses: Where to listen, ``host:port``, and how.

        Raises:
            ConfigurationError: An address or the certificate cannot be used.
        """
        self._calls = Calls(methods, recorded=self._options.wanted is not None)
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
            raise _unusable(exc) from exc
        if tls is not None and not self._follows_tls:
            self._follows_tls = True
            tls.on_change(self._use_tls)

    def _use_tls(self, tls: TlsConfig) -> None:
        try:
            self._server.set_tls(*_texts(tls))
        except ValueError as exc:
            raise _unusable(exc) from exc

    async def stop(self, part: object, grace_s: float) -> None:
        """Takes no new connections, and answers what was sent, once every transport has asked for it.

        Args:
            part: Who asks.
            grace_s: Seconds that running requests get.
        """
        self._parts.discard(part)
        if self._parts:
            await self._all_stopping.wait()
        else:
            self._all_stopping.set()
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop(grace_s))
        await self._stopping

    async def _stop(self, grace_s: float) -> None:
        await asyncio.to_thread(self._server.stop, grace_s)
        for work in (self._calls, self._exchanges):
            if work is not None:
                work.cancel()

    # What the core calls, on threads of its own.

    def rest(self, exchange: modelyard_core.Exchange) -> None:
        """A REST request is to be answered."""
        if self._exchanges is not None:
            self._loop.call_soon_threadsafe(self._exchanges.begin, exchange)

    def call(self, call: modelyard_core.Call) -> None:
        """A gRPC call is to be answered."""
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

    def learn(self, *key: Any) -> None:
        """Requests with a key came that the core knows nothing of."""
        if self._plans is not None:
            self._loop.call_soon_threadsafe(partial(self._plans.learn, *key))

    def gone(self, item: modelyard_core.Call | modelyard_core.Exchange) -> None:
        """Nobody waits for an answer any more."""
        work = self._calls if isinstance(item, modelyard_core.Call) else self._exchanges
        if work is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(work.leave, item)


def _texts(tls: TlsConfig) -> tuple[str, str, str | None]:
    return tls.key, tls.certificate, tls.authority if tls.verify_client else None


def _unusable(problem: ValueError) -> ConfigurationError:
    return ConfigurationError(f"The key or a certificate in --ssl_config_file cannot be used: {problem}")


def _records(wanted: Wanted | None) -> tuple[int, float, float, bool, bool] | None:
    return None if wanted is None else (MAX_RECORDS, wanted.share, wanted.slow_s, wanted.traced, wanted.parents)


def _processors() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _is_stream(handler: object) -> bool:
    return bool(getattr(handler, "request_streaming", False) or getattr(handler, "response_streaming", False))
