"""The blocking client, generated from ``_async_client.py`` by ``make client``: do not edit."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Self, TypeVar

from modelyard.clients.api._calls import check_many, examples_call, predict_call
from modelyard.clients.api._connect import address_of, make_protocol, options_of, uses_proxy
from modelyard.clients.api._many import ManyOptions, Row, RowResult
from modelyard.clients.api._model import Model
from modelyard.clients.api._runner import Runner, Transport, run_many
from modelyard.clients.protocols import Answer, Flow, make_target
from modelyard.clients.transport import ClientOptions, Effect, Endpoint, Engine, Pool, Race, Send, check_seconds
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
    from modelyard.clients.transport import Address

_T = TypeVar("_T")
_Step = TypeVar("_Step")
_Done = TypeVar("_Done")


def connect(url: str | Sequence[str], options: ClientOptions | None = None) -> Client:
    """Makes a client; the connection is opened by its first call.

    Args:
        url: ``grpc://host:8500``, ``grpcs://host``, ``http://host:8501`` or ``https://host/prefix``. The ``s`` means
            TLS; ``+v2`` after the scheme, as in ``grpc+v2://host:8001``, means the Open Inference Protocol. Several
            servers: a sequence, or one text with commas.
        options: See :class:`ClientOptions`.

    Returns:
        A client that threads may share, to be closed or used with ``with``.

    Raises:
        ConfigurationError: Another form of URL or of options, or a TLS file that cannot be read.

    Example:
        >>> with connect("grpc://localhost:8500") as client:
        ...     answer = client.predict("fashion", {"image": np.zeros((2, 28, 28, 1), np.float32)})
    """
    options = options_of(options, ClientOptions, "timeout_s=5")
    addresses, name = address_of(url)

    def make(address: Address) -> Transport:
        # Imported here: grpcio and httpx take longer to import than this package, and few programs need them.
        if options.transport == "own" and not uses_proxy(address):
            from modelyard.clients.transport import lean

            if address.protocol == "grpc":
                return lean.LeanGrpcTransport(address, options)
            return lean.LeanRestTransport(address, options)
        from modelyard.clients.transport import libraries

        if address.protocol == "grpc":
            return libraries.GrpcTransport(address, options)
        return libraries.HttpxTransport(address, options)

    pool: Pool[Transport] = Pool(addresses, make, options.balance)
    return Client(Engine(name, pool, make_protocol(addresses[0], options), options))


class Client:
    """A client of one server, or of several that are the same, made by :func:`connect`.

    Every method raises errors of :mod:`modelyard.errors`, the same class for the same failure over every transport. The
    blocking and the asynchronous client have the same methods. Cancelling an asynchronous call cancels it on the server
    over gRPC, and closes the connection over REST.
    """

    def __init__(self, engine: Engine[Transport]) -> None:
        self._engine = engine
        self._runner = Runner()

    @property
    def url(self) -> str:
        """Normal form of the server's URL; of several, with commas."""
        return self._engine.url

    def predict(
        self,
        model: str,
        inputs: Mapping[str, object],
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> Prediction:
        """Computes the outputs of a signature.

        Arrays keep their dtype and must have the signature's. Python numbers, lists of them and arrays of objects take
        the signature's dtype, where no float becomes an integer and no number infinite; where the signature has no such
        input, floats are float32 and integers int64. Text, bytes, file paths (``pathlib.Path``) and PIL images make
        string tensors: of files their bytes, of images a PNG.

        Args:
            model: Name of the model.
            inputs: Arrays, scalars, nested lists, text, bytes, paths or images by input name.
            version: A version; None for the newest.
            label: A version label instead of a version.
            signature: Name of the signature; empty for ``serving_default``.
            outputs: Outputs to return; None or empty for all.
            timeout_s: Deadline in seconds; None for the client's.

        Returns:
            Arrays by output name, of the dtypes that the signature names. Strings are object arrays of bytes. Arrays
            may be views of the answer, which are read-only.

        Raises:
            ConfigurationError: A timeout or a signature's name that is none.
            DeadlineExceededError: No answer in time.
            InvalidInputError: An input is missing, unknown, or of another dtype or shape; or an output is unknown.
            InvalidModelSpecError: No model name, a bad version or label.
            ModelNotFoundError: Unknown model or version.
            SignatureNotFoundError: Unknown signature.
            UnavailableError: The server cannot be reached or is not ready, or this client was closed.
            UnsupportedError: A label over the Open Inference Protocol, which has none.
            ModelyardError: Any other failure, by its class.
        """
        call = predict_call(model, inputs, version, label, signature, outputs)
        return self._run(self._engine.protocol.predict(call), timeout_s, model)

    def classify(
        self,
        model: str,
        examples: object,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        context: object = None,
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
        call = examples_call(model, examples, version, label, signature, context)
        return self._run(self._engine.protocol.classify(call), timeout_s, model)

    def regress(
        self,
        model: str,
        examples: object,
        *,
        version: int | None = None,
        label: str | None = None,
        signature: str = "",
        context: object = None,
        timeout_s: float | None = None,
    ) -> Regression:
        """Computes one value for each example; arguments and errors are those of :meth:`classify`."""
        call = examples_call(model, examples, version, label, signature, context)
        return self._run(self._engine.protocol.regress(call), timeout_s, model)

    def multi_inference(
        self,
        model: str,
        examples: object,
        tasks: Sequence[InferenceTask],
        *,
        version: int | None = None,
        label: str | None = None,
        context: object = None,
        timeout_s: float | None = None,
    ) -> tuple[Classification | Regression, ...]:
        """Runs several signatures over the same examples.

        Over gRPC that is one call, answered by one version. REST has no such call: there it is one for each task.

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
            ConfigurationError: No list of tasks, or one of another method.
            ModelyardError: As :meth:`predict`.
            UnsupportedError: The Open Inference Protocol has no such call.
        """
        call = examples_call(model, examples, version, label, "", context)
        return self._run(self._engine.protocol.multi_inference(call, tasks), timeout_s, model)

    def predict_many(
        self,
        model: str,
        rows: Iterable[Row],
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
            ConfigurationError: Options of another type.
            InvalidInputError: One mapping, or something else that is no list of rows.
            InvalidModelSpecError: No model name, a bad version or label.
        """
        options = options_of(options, ManyOptions, "batch_size=64")
        check_many(rows, model, version, label)
        call = partial(
            self.predict,
            model,
            version=version,
            label=label,
            signature=signature,
            outputs=outputs,
            timeout_s=options.timeout_s,
        )
        return run_many(drive, call, rows, options)

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
        return Model(self.predict, name, metadata, version=version, label=label)

    def metadata(
        self, model: str, *, version: int | None = None, label: str | None = None, timeout_s: float | None = None
    ) -> ModelMetadata:
        """Describes a model's signatures; the arguments are those of :meth:`model`.

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
        flow = self._engine.protocol.wait_ready(make_target(model, version), limit)
        # The flow keeps the time itself, to say at the end what the server said last.
        return self._run(flow, limit + 60.0, model)

    def reload_config(self, models: Sequence[ModelConfig], *, timeout_s: float | None = None) -> None:
        """Replaces the server's list of models, and waits until it has done so; never sent twice.

        Args:
            models: The new list; models that are not in it are unloaded.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            ConfigurationError: These are no entries, or one says two different things.
            ModelyardError: As :meth:`predict`.
            UnsupportedError: The server is not reached over TensorFlow Serving's gRPC API.
        """
        self._run(self._engine.protocol.reload_config(models), timeout_s, "")

    def close(self) -> None:
        """Closes the connections; a second call does nothing."""
        self._engine.closed = True
        self._runner.close()
        for transport in self._engine.pool.all_transports:
            transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.url!r}{', closed' if self._engine.closed else ''})"

    def _run(self, flow: Flow[_T], timeout_s: float | None, model: str) -> _T:
        engine = self._engine
        self._runner.check_loop()
        if engine.pool.watched and not engine.closed:
            self._runner.watch(engine.pool, engine.options.balance.probe_interval_s, self._probe)
        return drive(engine.run(flow, timeout_s, model), self._perform)

    def _probe(self, endpoint: Endpoint[Transport]) -> bool:
        return drive(self._engine.probe(endpoint), self._perform)

    def _perform(self, step: Effect[Transport]) -> Answer:
        if isinstance(step, Send):
            return step.endpoint.transport.send(step)
        if isinstance(step, Race):
            return self._runner.race(step)
        self._runner.pause(step)
        return Answer(b"")


def drive(steps: Generator[_Step, _Done, _T], perform: Callable[[_Step], _Done]) -> _T:
    """Performs the steps of a generator, and returns what it returns."""
    try:
        step = next(steps)
        while True:
            try:
                done = perform(step)
            except ModelyardError as exc:
                step = steps.throw(exc)
            else:
                step = steps.send(done)
    except StopIteration as stop:
        result: _T = stop.value
        return result
    finally:
        # A cancelled call leaves the engine in the middle: it releases its endpoint.
        steps.close()
