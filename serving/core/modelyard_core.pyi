"""The native core of modelyard's server."""

from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any, Protocol, final

__version__: str

#: Readers and writers of the usual forms, for the differential tests.
forms: ModuleType

class _Handlers(Protocol):
    """What answers what the core does not; called on the core's threads, and returns at once."""

    def rest(self, exchange: Exchange) -> None: ...
    def call(self, call: Call) -> None: ...
    def feed(self, call: Call, message: bytes | None) -> None: ...
    def gone(self, item: Call | Exchange) -> None: ...
    def learn(
        self, model: str, version: int | None, label: str | None, signature: str, outputs: Sequence[str]
    ) -> None: ...
    def permit(
        self,
        authorization: str | None,
        key: str | None,
        certificate: bytes | None,
        client: str,
        model: str,
        rows: int,
    ) -> _Ticket | None:
        """Asked before a prediction is computed, where the server is guarded: None hands it over."""

class _Ticket(Protocol):
    """Whose prediction it is, and what counts it while it is computed."""

    @property
    def principal(self) -> str: ...
    @property
    def counts(self) -> bool:
        """Whether the others are to be called."""
    def release(self) -> None:
        """It is answered, or nobody waits for it any more."""
    def undo(self) -> None:
        """It was handed over, and is to be counted there."""

class _Run(Protocol):
    """Computes a batch: from bytes and shapes, shapes and bytes in C order, or a list of strings.

    ``waited`` has the rows of each request, and the microseconds that it waited, where there are batching parameters.
    None where another version answers such requests now.
    """

    def __call__(
        self, batch: Sequence[tuple[bytes, tuple[int, ...]]], waited: Sequence[tuple[int, float]] | None
    ) -> Sequence[tuple[tuple[int, ...], bytes | Sequence[bytes | str]]] | None: ...
    def shadow(
        self,
        inputs: Sequence[tuple[bytes, tuple[int, ...]]],
        outputs: Sequence[tuple[tuple[int, ...], bytes | list[bytes | str]]],
    ) -> None:
        """Takes a request that was answered, and that a shadow is to compute, too; returns at once."""

#: What Python knows of a request: model, version (0 for none), signature, backend, principal, rows; number, rows and
#: requests of its batch; and nanoseconds: in the queue, from there to the model, in the model, in the batch, and since
#: its end; None where it was not computed.
Facts = tuple[str, int, str, str, str, int, tuple[int, int, int], tuple[int, int, int, int, int] | None]

@final
class Exchange:
    """One REST request that Python answers."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def headers(self) -> dict[str, str]:
        """By lower-case name; several of one name are joined by commas."""
    @property
    def body(self) -> bytes: ...
    @property
    def request_id(self) -> str: ...
    @property
    def age_s(self) -> float:
        """Seconds since the request came."""
    @property
    def client(self) -> str: ...
    @property
    def certificate(self) -> bytes | None:
        """The client's, in DER, and verified."""
    @property
    def problem(self) -> str | None:
        """``late`` or ``too_large`` where the body did not come whole."""
    @property
    def logged(self) -> bool | None:
        """Whether it was chosen for the log of predictions; None where that was not drawn."""
    def gone(self) -> bool:
        """Whether the client has hung up."""
    def respond(
        self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes, facts: Facts | None = None
    ) -> None:
        """Sends the answer; only the first counts. Raises ValueError for what is no status or header."""

@final
class Call:
    """One gRPC call that Python answers."""

    @property
    def path(self) -> str: ...
    @property
    def headers(self) -> list[tuple[bytes, bytes]]: ...
    @property
    def message(self) -> bytes | None:
        """Of a unary call; None for a stream, and where the method is unknown."""
    @property
    def logged(self) -> bool | None:
        """Whether it was chosen for the log of predictions; None where that was not drawn."""
    @property
    def peer(self) -> str: ...
    @property
    def certificate(self) -> bytes | None:
        """The client's, in DER, and verified."""
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def unsent(self) -> int:
        """Bytes of messages that were not sent yet."""
    def gone(self) -> bool:
        """Whether the client has hung up, or its time is over."""
    def send(self, data: bytes) -> None:
        """Sends one message of a stream, as the answer to the first of its client that has none."""
    def took(self) -> None:
        """A message of the client was taken: there is room for another."""
    def respond(self, data: bytes, facts: Facts | None = None) -> None:
        """Answers a unary call that succeeded."""
    def finish(self, code: int, text: str, trailers: Sequence[tuple[bytes, bytes]], facts: Facts | None = None) -> None:
        """Ends the call with a status and trailing metadata. Raises ValueError for what is no metadata."""

@final
class Server:
    """Serves gRPC and REST on threads of its own."""

    def __new__(
        cls,
        handlers: _Handlers,
        *,
        threads: int,
        max_body_bytes: int,
        max_message_bytes: int,
        rest_timeout_s: float,
        wrong_rest_port: str,
        wrong_grpc_port: str,
        max_connections: int = 0,
        max_streams: int = 256,
        max_header_bytes: int = 32768,
        header_timeout_s: float = 20.0,
        body_timeout_s: float = 20.0,
        idle_timeout_s: float = 75.0,
        max_inflight_bytes: int = 0,
        max_age_s: float = 0.0,
        max_waiting: int = 0,
        max_delay_s: float = 0.0,
        usual_rest: bool = True,
        strict_json: bool = False,
        json_extensions: bool = False,
        max_json_depth: int = 100,
        tensor_content: bool = False,
        guarded: bool = False,
        # Requests that are remembered until they are taken: how many at most, the share of them for the access log, the
        # seconds from which all are (0 for none), whether all are that may be traced, and whether not those whose
        # callers trace others, but not them. None for none.
        records: tuple[int, float, float, bool, bool] | None = None,
        spare_thread: bool = True,
    ) -> Server: ...
    @property
    def waiting(self) -> int:
        """Requests that wait for a batch or are computed."""
    @property
    def inflight_bytes(self) -> int:
        """Bytes of requests that are read or answered."""
    @property
    def connections(self) -> int:
        """Connections that are open."""
    @property
    def refused(self) -> dict[str, int]:
        """Requests that were refused before a model heard of them, by the reason, since the server started."""
    def set_methods(self, methods: Mapping[str, bool]) -> None:
        """The paths of gRPC's methods, and whether each takes or gives a stream. Raises ValueError the second time."""
    def listen(self, *, grpc: bool, port: int, tls: tuple[str, str, str | None] | None = None) -> None:
        """Listens and serves.

        Args:
            grpc: gRPC, or else REST.
            port: On all addresses.
            tls: Key, certificate, and the authority of clients' certificates where they must have one, all PEM texts.

        Raises:
            OSError: The port cannot be had.
            ValueError: The key or a certificate is bad.
        """
    def set_tls(self, key: str, certificate: str, client_authority: str | None) -> None:
        """Has all ports that speak TLS use other PEM texts from the next connection on.

        Raises:
            ValueError: They are bad; nothing changes.
        """
    def add_plan(
        self,
        *,
        model: str,
        version: int | None,
        label: str | None,
        signature: str,
        wanted: Sequence[str],
        answers: int,
        name: str,
        backend: str,
        inputs: Sequence[tuple[str, str, Sequence[int] | None]],
        outputs: Sequence[tuple[str, str]],
        run: _Run,
        max_rows: int,
        shared: bool,
        parallel: int,
        elsewhere: bool = False,
        batching: tuple[float, int, Sequence[int]] | None = None,
        logged: float = 0.0,
    ) -> bool:
        """Has requests with a key answered here, in batches that ``run`` computes.

        Args:
            model: As requests name it; so are the next four.
            version: None for the newest.
            label: None for none.
            signature: Empty for the default.
            wanted: Empty for all outputs.
            answers: The version that answers.
            name: The signature's resolved name.
            backend: What computes it.
            inputs: Name, dtype and sizes of each; -1 for any size, None for any rank.
            outputs: Name and dtype of each.
            run: Computes a batch.
            max_rows: Rows that are computed together at most.
            shared: Requests may share a batch.
            parallel: Batches that are computed at the same time.
            elsewhere: An accelerator computes them, and not the processors that this server needs.
            batching: Of TensorFlow Serving's parameters: seconds that a batch waits for more, rows that may wait, and
                the sizes that batches are padded to (empty for any); None to wait for nothing.
            logged: Share of the requests that are handed over to be logged, 0 to 1.

        Returns:
            False where a dtype is none that can be.
        """
    def set_traffic(
        self,
        rules: Sequence[
            tuple[str, str, str, float, Sequence[tuple[str, int | None, str | None, int | None, float, bool]]]
        ],
    ) -> None:
        """Has requests that name no version go to those of rules, until other rules are set.

        Args:
            rules: Of each model its name, the version header and the sticky one (empty for none), the share of its
                requests that go to ``run.shadow`` too, and its targets: name, version, label, the version that it is
                now, share by the file, and whether it is rolled back. The first target gets what the others leave. Of
                one that is another version than before nothing is counted any more that was on its way.

        Raises:
            ValueError: A header's name is none.
        """
    def take_traffic(self) -> list[tuple[str, str, dict[str, int], list[int], float]]:
        """How requests by rules ended since the last time.

        Model, target, and counts by gRPC's status; counts by bucket of the latency of those that were answered or were
        late, and their sum in microseconds.
        """
    def take_records(self) -> tuple[list[tuple[Any, ...]], int]:
        """Requests that were answered since the last time, as ``RequestRecord``'s fields, and how many were lost."""
    def learned(
        self, model: str, version: int | None, label: str | None, signature: str, outputs: Sequence[str]
    ) -> None:
        """What ``learn`` asked for is done, whether there is a plan or none: large requests of REST wait for it."""
    def forget(self, model: str, keep: Sequence[int] = ...) -> None:
        """Has ``learn`` called again for the plans of a model, but for those of some versions."""
    def give_up(self, model: str, version: int, longer_s: float, text: str | None) -> None:
        """Answers the requests of a version's batches that have been computed for so long: DEADLINE_EXCEEDED, or 504.

        Those that wait and those that come are handed over, until there is another plan.

        Args:
            model: As requests name it.
            version: The version that computes.
            longer_s: Seconds of a batch; younger ones are not touched.
            text: What the clients are told; None hands these requests over, too.
        """
    def take_statistics(self) -> list[dict[str, Any]]:
        """What was measured since the last time, by plan.

        Each has ``model``, ``version``, ``signature``, ``backend``, ``succeeded``, ``rows``, ``last_ms`` (since 1970),
        ``total_ns``, ``queue_ns``, ``input_ns``, ``infer_ns`` and ``output_ns`` of the requests, and ``executions`` (by
        rows: how many, and nanoseconds for input, model and output).

        ``queue``, ``input`` and ``output`` (microseconds), ``batch_rows``, ``batch_padding`` and ``batch_requests`` are
        native histograms: numbers and counts of the buckets, zeros, and the sum. ``runtime`` has counts by upstream's
        buckets and such a histogram; ``requests`` has API, entry point, counts, histogram and exemplars (bucket, trace,
        microseconds, milliseconds since 1970). ``failed`` has API, entry point, status and count, ``refused`` counts by
        reason.
        """
    def stop(self, grace_s: float) -> None:
        """Takes no new connections, answers what was sent, and ends; blocks for as long as that takes."""
