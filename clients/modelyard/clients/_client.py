"""The blocking client: does what the engine says, over one transport."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar
from typing import Protocol as Interface

from modelyard.clients import _operations
from modelyard.clients._connect import address_of, make_protocol, uses_proxy
from modelyard.clients._engine import Engine, Race, Send, Steps
from modelyard.clients._flows import Answer, Flow, Pause
from modelyard.clients._many import ManyOptions, RowResult, run_many
from modelyard.clients._model import Model
from modelyard.clients._options import ClientOptions, check_seconds
from modelyard.clients._pool import Pool
from modelyard.clients._requests import make_target
from modelyard.clients._results import (
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
    from concurrent.futures import ThreadPoolExecutor

    from modelyard.clients._address import Address

_T = TypeVar("_T")
_HEDGERS = 32


class Transport(Interface):
    """Carries bytes to one server and back."""

    def send(self, send: Send[Any]) -> Answer:
        """Sends one request and waits for its answer."""

    def close(self) -> None:
        """Frees the connections."""


def connect(url: str | Sequence[str], options: ClientOptions | None = None) -> Client:
    """Makes a client; the connection is opened by its first call.

    Args:
        url: ``grpc://host:8500``, ``grpcs://host``, ``http://host:8501`` or
            ``https://host/prefix``. The ``s`` means TLS; ``+v2`` after the
            scheme, as in ``grpc+v2://host:8001``, means the Open Inference
            Protocol. Several servers: a sequence, or one text with commas.
        options: See :class:`ClientOptions`.

    Returns:
        A client, to be closed or used in a ``with`` statement. Threads may share it.

    Raises:
        ConfigurationError: Another form of URL, or a TLS file that cannot be read.
    """
    options = options or ClientOptions()
    addresses, name = address_of(url)

    def make(address: Address) -> Transport:
        # Imported here: each takes longer than all the rest of this package, and no program needs both.
        if address.protocol == "grpc":
            from modelyard.clients._grpc import GrpcTransport

            return GrpcTransport(address, options)
        if uses_proxy(address):
            from modelyard.clients._rest import ProxiedRestTransport

            return ProxiedRestTransport(address, options)
        from modelyard.clients._lean import RestTransport

        return RestTransport(address, options)

    pool: Pool[Transport] = Pool(addresses, make, options.balance)
    return Client(Engine(name, pool, make_protocol(addresses[0], options), options))


class Client:
    """A client of one server, or of several that are the same, made by :func:`connect`.

    Every method raises errors of :mod:`modelyard.errors`, the same class for
    the same failure over every transport.

    Args:
        engine: The rules, and the servers.
    """

    def __init__(self, engine: Engine[Transport]) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._hedgers: ThreadPoolExecutor | None = None
        self._watcher: threading.Thread | None = None
        self._stop = threading.Event()

    @property
    def url(self) -> str:
        """Normal form of the server's URL; of several, with commas."""
        return self._engine.url

    def predict(
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
        """Computes the outputs of a signature.

        Arrays keep their dtype and must have the signature's. Python numbers
        and lists of them take the signature's dtype, where no float becomes an
        integer; where the signature has no such input, floats are float32 and
        integers int64. Text, bytes, file paths (``pathlib.Path``) and PIL
        images make string tensors: of files their bytes, of images a PNG.

        Args:
            model: Name of the model.
            inputs: Arrays, scalars, nested lists, text, bytes, paths or images by input name.
            version: A version; None for the newest.
            label: A version label instead of a version.
            signature: Name of the signature; empty for ``serving_default``.
            outputs: Outputs to return; None or empty for all.
            timeout_s: Deadline in seconds; None for the client's.

        Returns:
            Arrays by output name, of the dtypes that the signature names.
            Strings are object arrays of bytes. Arrays may be views of the
            answer, which are read-only.

        Raises:
            ConfigurationError: A timeout that is none.
            DeadlineExceededError: No answer in time.
            InvalidInputError: An input is missing, unknown, or of another dtype
                or shape.
            InvalidModelSpecError: No model name, a bad version or label.
            ModelNotFoundError: Unknown model or version.
            SignatureNotFoundError: Unknown signature.
            UnavailableError: The server cannot be reached or is not ready, or
                this client was closed.
            ModelyardError: Any other failure, by its class.
        """
        flow = _operations.predict(
            self._engine.protocol, model, inputs, version=version, label=label, signature=signature, outputs=outputs
        )
        return self._run(flow, timeout_s, model)

    def classify(
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
        """Classifies examples.

        Args:
            model: Name of the model.
            examples: Mappings from feature to value, dataclasses, serialized
                ``tf.Example`` messages, or a pandas DataFrame with a row each.
            version: A version; None for the newest.
            label: A version label instead of a version.
            signature: Name of the signature; empty for ``serving_default``.
            context: Features that all examples share, in the same form as one.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            ModelyardError: As :meth:`predict`.
            UnsupportedError: The Open Inference Protocol has no such call.
        """
        flow = _operations.classify(
            self._engine.protocol,
            model,
            examples,
            version=version,
            label=label,
            signature=signature,
            context=context,
        )
        return self._run(flow, timeout_s, model)

    def regress(
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
        """Computes one value for each example; the arguments are those of :meth:`classify`.

        Raises:
            ModelyardError: As :meth:`predict`.
            UnsupportedError: The Open Inference Protocol has no such call.
        """
        flow = _operations.regress(
            self._engine.protocol,
            model,
            examples,
            version=version,
            label=label,
            signature=signature,
            context=context,
        )
        return self._run(flow, timeout_s, model)

    def multi_inference(
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
        """Runs several signatures over the same examples.

        Over gRPC that is one call, answered by one version. REST has no such
        call: there it is one for each task.

        Args:
            model: Name of the model.
            examples: As :meth:`classify`.
            tasks: Signatures, and whether they classify or regress.
            version: A version; None for the newest.
            label: A version label instead of a version.
            context: Features that all examples share.
            timeout_s: Deadline in seconds for all of it; None for the client's.

        Returns:
            One result for each task, in their order.

        Raises:
            ConfigurationError: No task, or one of another method.
            ModelyardError: As :meth:`predict`.
            UnsupportedError: The Open Inference Protocol has no such call.
        """
        flow = _operations.multi_inference(
            self._engine.protocol, model, examples, tasks, version=version, label=label, context=context
        )
        return self._run(flow, timeout_s, model)

    def predict_many(
        self,
        model: str,
        rows: Iterable[Mapping[str, Any]],
        options: ManyOptions | None = None,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        outputs: Sequence[str] | None = None,
    ) -> Iterator[RowResult]:
        """Computes the outputs of many rows, in batches, several at a time, in bounded memory.

        Args:
            model: Name of the model.
            rows: Inputs of one row each, without the dimension of the batch;
                read as far ahead as the batches under way need.
            options: See :class:`ManyOptions`.
            version: A version; None for the newest.
            label: A version label instead of a version.
            signature: Name of the signature; empty for ``serving_default``.
            outputs: Outputs to return; None or empty for all.

        Returns:
            A result for each row, with its index: its outputs or its error. Rows
            beside a bad one are answered all the same.

        Raises:
            InvalidModelSpecError: No model name, a bad version or label.
        """
        make_target(model, version, label)

        def call(inputs: Mapping[str, Any], timeout_s: float | None) -> Prediction:
            return self.predict(
                model,
                inputs,
                version=version,
                label=label,
                signature=signature,
                outputs=outputs,
                timeout_s=timeout_s,
            )

        return run_many(call, rows, options or ManyOptions())

    def model(
        self, name: str, *, version: int | None = None, label: str | None = None, timeout_s: float | None = None
    ) -> Model:
        """A model whose signatures are known: asks for them once, and checks inputs before they are sent.

        Args:
            name: Name of the model.
            version: A version; None for the newest.
            label: A version label instead of a version.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            ModelyardError: As :meth:`predict`.
        """
        metadata = self.metadata(name, version=version, label=label, timeout_s=timeout_s)
        return Model(self, metadata, version=version, label=label)

    def metadata(
        self, model: str, *, version: int | None = None, label: str | None = None, timeout_s: float | None = None
    ) -> ModelMetadata:
        """Describes a model's signatures.

        Args:
            model: Name of the model.
            version: A version; None for the newest.
            label: A version label instead of a version.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            ModelyardError: As :meth:`predict`.
        """
        return self._run(self._engine.protocol.metadata(make_target(model, version, label)), timeout_s, model)

    def status(self, model: str, *, version: int | None = None, timeout_s: float | None = None) -> ModelStatus:
        """States of a model's versions.

        Args:
            model: Name of the model.
            version: One version; None for all.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            ModelyardError: As :meth:`predict`.
        """
        return self._run(self._engine.protocol.status(make_target(model, version)), timeout_s, model)

    def wait_ready(self, model: str, timeout_s: float | None = None, *, version: int | None = None) -> ModelStatus:
        """Waits until a version can answer; a server that is not up yet is waited for, too.

        Args:
            model: Name of the model.
            timeout_s: Seconds until it gives up; None for the client's deadline.
            version: The version to wait for; None for any.

        Raises:
            DeadlineExceededError: Not ready in time; the message says why.
            ModelyardError: As :meth:`predict`, for failures that time does not cure.
        """
        limit = self._engine.options.timeout_s if timeout_s is None else timeout_s
        check_seconds(limit, "a timeout")
        # The flow keeps the time itself, to say at the end what the server said last.
        return self._run(self._engine.protocol.wait_ready(make_target(model, version), limit), limit + 60.0, model)

    def reload_config(self, models: Sequence[ModelConfig], *, timeout_s: float | None = None) -> None:
        """Replaces the server's list of models, and waits until it has done so; never sent twice.

        Args:
            models: The new list; models that are not in it are unloaded.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            ConfigurationError: An entry says two different things.
            ModelyardError: As :meth:`predict`.
            UnsupportedError: The server is not reached over TensorFlow Serving's gRPC API.
        """
        self._run(self._engine.protocol.reload_config(models), timeout_s, "")

    def close(self) -> None:
        """Closes the connections; a second call does nothing."""
        self._engine.closed = True
        self._stop.set()
        if self._watcher is not None and self._watcher is not threading.current_thread():
            self._watcher.join()
        if self._hedgers is not None:
            self._hedgers.shutdown(wait=False, cancel_futures=True)
        for transport in self._engine.pool.all_transports:
            transport.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Client({self.url!r}{', closed' if self._engine.closed else ''})"

    def _run(self, flow: Flow[_T], timeout_s: float | None, model: str) -> _T:
        if self._watcher is None and self._engine.pool.watched:
            self._watch()
        return self._perform(self._engine.run(flow, timeout_s, model))

    def _perform(self, steps: Steps[Transport, _T]) -> _T:
        try:
            step = next(steps)
            while True:
                try:
                    if isinstance(step, Send):
                        answer = step.endpoint.transport.send(step)
                    elif isinstance(step, Pause):
                        time.sleep(step.seconds)
                        answer = Answer(b"")
                    else:
                        answer = self._race(step)
                except ModelyardError as exc:
                    step = steps.throw(exc)
                else:
                    step = steps.send(answer)
        except StopIteration as stop:
            result: _T = stop.value
            return result
        finally:
            steps.close()

    def _race(self, race: Race[Transport]) -> Answer:
        from concurrent import futures

        with self._lock:
            if self._hedgers is None:
                self._hedgers = futures.ThreadPoolExecutor(_HEDGERS, thread_name_prefix="modelyard-hedge")
        running = {self._hedgers.submit(race.first.endpoint.transport.send, race.first)}
        done, running = futures.wait(running, timeout=race.delay_s)
        if not done:
            running.add(self._hedgers.submit(race.second.endpoint.transport.send, race.second))
            done, running = futures.wait(running, return_when=futures.FIRST_COMPLETED)
            if running and all(item.exception() is not None for item in done):
                # One failed: the other one may still answer.
                more, running = futures.wait(running)
                done |= more
        return next((item for item in done if item.exception() is None), next(iter(done))).result()

    def _watch(self) -> None:
        with self._lock:
            if self._watcher is None and not self._stop.is_set():
                self._watcher = threading.Thread(target=self._probe_forever, name="modelyard-health", daemon=True)
                self._watcher.start()

    def _probe_forever(self) -> None:
        from concurrent import futures

        pool, options = self._engine.pool, self._engine.options.balance
        with futures.ThreadPoolExecutor(8, thread_name_prefix="modelyard-probe") as workers:
            while not self._stop.wait(options.probe_interval_s):
                # A name that cannot be resolved now keeps its addresses; the calls say what is wrong.
                with contextlib.suppress(ModelyardError):
                    pool.refresh()
                futures.wait(
                    [workers.submit(self._perform, self._engine.probe(endpoint)) for endpoint in pool.endpoints]
                )
