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

class _Run(Protocol):
    """Computes a batch: from bytes and shapes, shapes and bytes in C order, or a list of strings.

    ``waited`` has the rows of each request, and the microseconds that it waited, where there are batching parameters.
    None where another version answers such requests now.
    """

    def __call__(
        self, batch: Sequence[tuple[bytes, tuple[int, ...]]], waited: Sequence[tuple[int, float]] | None
    ) -> Sequence[tuple[tuple[int, ...], bytes | Sequence[bytes | str]]] | None: ...

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
    def client(self) -> str: ...
    @property
    def problem(self) -> str | None:
        """``late`` or ``too_large`` where the body did not come whole."""
    def gone(self) -> bool:
        """Whether the client has hung up."""
    def respond(self, status: int, headers: Sequence[tuple[bytes, bytes]], body: bytes) -> None:
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
    def peer(self) -> str: ...
    @property
    def timeout_s(self) -> float | None: ...
    @property
    def unsent(self) -> int:
        """Bytes of messages that were not sent yet."""
    def gone(self) -> bool:
        """Whether the client has hung up, or its time is over."""
    def send(self, data: bytes) -> None:
        """Sends one message of a stream."""
    def took(self) -> None:
        """A message of the client was taken: there is room for another."""
    def respond(self, data: bytes) -> None:
        """Answers a unary call that succeeded."""
    def finish(self, code: int, text: str, trailers: Sequence[tuple[bytes, bytes]]) -> None:
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
        max_streams: int = 1024,
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
        inputs: Sequence[tuple[str, str, Sequence[int] | None]],
        outputs: Sequence[tuple[str, str]],
        run: _Run,
        max_rows: int,
        shared: bool,
        parallel: int,
        batching: tuple[float, int, Sequence[int]] | None = None,
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
            inputs: Name, dtype and sizes of each; -1 for any size, None for any rank.
            outputs: Name and dtype of each.
            run: Computes a batch.
            max_rows: Rows that are computed together at most.
            shared: Requests may share a batch.
            parallel: Batches that are computed at the same time.
            batching: Of TensorFlow Serving's parameters: seconds that a batch waits for more, rows that may wait, and
                the sizes that batches are padded to (empty for any); None to wait for nothing.

        Returns:
            False where a dtype is none that can be.
        """
    def give_up(self, model: str, version: int, longer_s: float, text: str) -> None:
        """Answers the requests of a version's batches that have been computed for so long: DEADLINE_EXCEEDED, or 504.

        Those that wait and those that come are handed over, until there is another plan.

        Args:
            model: As requests name it.
            version: The version that computes.
            longer_s: Seconds of a batch; younger ones are not touched.
            text: What the clients are told, without quotes and backslashes.
        """
    def take_statistics(self) -> list[dict[str, Any]]:
        """What was measured since the last time, by plan.

        Each has ``model``, ``version``, ``succeeded``, ``rows``, ``last_ms`` (since 1970), ``total_ns``, ``queue_ns``,
        ``input_ns``, ``infer_ns`` and ``output_ns`` of the requests, ``runtime`` (counts by bucket, and their sum in
        microseconds), ``requests`` (API, entry point, counts by bucket, sum in microseconds) and ``executions`` (by
        rows: how many, and nanoseconds for input, model and output).
        """
    def stop(self, grace_s: float) -> None:
        """Takes no new connections, answers what was sent, and ends; blocks for as long as that takes."""
