"""From a caller's arguments to flows, for both clients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from modelyard.clients.protocols import ExamplesCall, Flow, PredictCall, Protocol, make_target
from modelyard.clients.values import Classification, InferenceTask, Prediction, Regression
from modelyard.errors import ConfigurationError, InvalidInputError


def predict(
    protocol: Protocol,
    model: str,
    inputs: Mapping[str, Any],
    *,
    version: int | None,
    label: str | None,
    signature: str,
    outputs: Sequence[str] | None,
) -> Flow[Prediction]:
    """See :meth:`modelyard.clients.Client.predict`.

    Args:
        protocol: What the server speaks.
        model: Name of the model.
        inputs: By input name.
        version: A version; None for the newest.
        label: A version label.
        signature: Name of the signature.
        outputs: Outputs to return.

    Raises:
        ConfigurationError: The signature's name is no text.
        InvalidInputError: The inputs are no mapping.
        InvalidModelSpecError: No model name, a bad version or label.
    """
    if not isinstance(inputs, Mapping):
        raise InvalidInputError(
            f"Expected a mapping from input name to value; received {type(inputs).__name__}. "
            "client.model(...) knows the names of a model."
        )
    call = PredictCall(
        target=make_target(model, version, label),
        inputs=inputs,
        signature=_signature(signature),
        outputs=(outputs,) if isinstance(outputs, str) else tuple(outputs or ()),
    )
    return protocol.predict(call)


def classify(
    protocol: Protocol,
    model: str,
    examples: Any,
    *,
    version: int | None,
    label: str | None,
    signature: str,
    context: Any,
) -> Flow[Classification]:
    """See :meth:`modelyard.clients.Client.classify`.

    Args:
        protocol: What the server speaks.
        model: Name of the model.
        examples: The examples.
        version: A version; None for the newest.
        label: A version label.
        signature: Name of the signature.
        context: Features that all examples share.
    """
    return protocol.classify(_examples_call(model, examples, version, label, signature, context))


def regress(
    protocol: Protocol,
    model: str,
    examples: Any,
    *,
    version: int | None,
    label: str | None,
    signature: str,
    context: Any,
) -> Flow[Regression]:
    """See :meth:`modelyard.clients.Client.regress`.

    Args:
        protocol: What the server speaks.
        model: Name of the model.
        examples: The examples.
        version: A version; None for the newest.
        label: A version label.
        signature: Name of the signature.
        context: Features that all examples share.
    """
    return protocol.regress(_examples_call(model, examples, version, label, signature, context))


def multi_inference(
    protocol: Protocol,
    model: str,
    examples: Any,
    tasks: Sequence[InferenceTask],
    *,
    version: int | None,
    label: str | None,
    context: Any,
) -> Flow[tuple[Classification | Regression, ...]]:
    """See :meth:`modelyard.clients.Client.multi_inference`.

    Args:
        protocol: What the server speaks.
        model: Name of the model.
        examples: The examples.
        tasks: What to run.
        version: A version; None for the newest.
        label: A version label.
        context: Features that all examples share.
    """
    return protocol.multi_inference(_examples_call(model, examples, version, label, "", context), tasks)


def _examples_call(
    model: str, examples: Any, version: int | None, label: str | None, signature: str, context: Any
) -> ExamplesCall:
    target = make_target(model, version, label)
    return ExamplesCall(target=target, examples=examples, context=context, signature=_signature(signature))


def _signature(name: object) -> str:
    if not isinstance(name, str):
        raise ConfigurationError(f"Expected the name of a signature; received {name!r}.")
    return name
