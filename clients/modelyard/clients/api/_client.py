"""The blocking client: does what the engine says, over one transport."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from modelyard.clients.api import _operations
from modelyard.clients.api._blocking import Runner, Transport
from modelyard.clients.api._connect import address_of, make_protocol, uses_proxy
from modelyard.clients.api._many import ManyOptions, RowResult, run_many
from modelyard.clients.api._model import Model
from modelyard.clients.protocols import make_target
from modelyard.clients.transport import ClientOptions, Engine, Pool, check_seconds
from modelyard.clients.values import (
    Classification,
    InferenceTask,
    ModelConfig,
    ModelMetadata,
    ModelStatus,
    Prediction,
    Regression,
)

if TYPE_CHECKING:
    from modelyard.clients.transport import Address


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

    Example:
        >>> with connect("grpc://localhost:8500") as client:
        ...     answer = client.predict("fashion", {"image": np.zeros((2, 28, 28, 1), np.float32)})
        >>> answer["probabilities"].shape
        (2, 10)
    """
    options = options or ClientOptions()
    addresses, name = address_of(url)

    def make(address: Address) -> Transport:
        # Imported here: the libraries take longer than all the rest of this package, and few programs need them.
        if options.transport == "own" and not uses_proxy(address):
            if address.protocol == "grpc":
                from modelyard.clients.transport.lean import LeanGrpcTransport

                return LeanGrpcTransport(address, options)
            from modelyard.clients.transport.lean import LeanRestTransport

            return LeanRestTransport(address, options)
        if address.protocol == "grpc":
            from modelyard.clients.transport.libraries import GrpcTransport

            return GrpcTransport(address, options)
        from modelyard.clients.transport.libraries import HttpxTransport

        return HttpxTransport(address, options)

    pool: Pool[Transport] = Pool(addresses, make, options.balance)
    return Client(Engine(name, pool, make_protocol(addresses[0], options), options))


class Client(Runner):
    """A client of one server, or of several that are the same, made by :func:`connect`.

    Every method raises errors of :mod:`modelyard.errors`, the same class for
    the same failure over every transport.

    Args:
        engine: The rules, and the servers.
    """

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
