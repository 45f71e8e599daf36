"""Arguments of the clients' methods, checked."""

from __future__ import annotations

from collections.abc import AsyncIterable, Iterable, Mapping, Sequence

from modelyard.clients.protocols import ExamplesCall, PredictCall, make_target
from modelyard.errors import ConfigurationError, InvalidInputError


def predict_call(
    model: str,
    inputs: Mapping[str, object],
    version: int | None,
    label: str | None,
    signature: str,
    outputs: Sequence[str] | None,
) -> PredictCall:
    """The arguments of a predict; raises ConfigurationError, InvalidInputError and InvalidModelSpecError."""
    if not isinstance(inputs, Mapping):
        raise InvalidInputError(
            f"Expected a mapping from input name to value; received {type(inputs).__name__}. "
            "client.model(...) knows the names of a model."
        )
    return PredictCall(
        target=make_target(model, version, label),
        inputs=inputs,
        signature=_signature(signature),
        outputs=output_names(outputs),
    )


def output_names(outputs: object) -> tuple[str, ...]:
    """The outputs to return, one name or several; raises InvalidInputError."""
    given = outputs or ()
    names = tuple(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else (given,)
    if not all(isinstance(name, str) for name in names):
        raise InvalidInputError(f"Expected names of outputs as text; received {outputs!r}.")
    return names


def check_many(rows: object, model: str, version: int | None, label: str | None) -> None:
    """Checks the arguments of predict_many; raises InvalidInputError and InvalidModelSpecError."""
    make_target(model, version, label)
    if isinstance(rows, (str, bytes, Mapping)) or not isinstance(rows, (Iterable, AsyncIterable)):
        raise InvalidInputError(
            f"Expected rows, each a mapping from input name to value; received one {type(rows).__name__}. Put rows "
            "into a list; predict takes one mapping of a whole batch."
        )


def examples_call(
    model: str, examples: object, version: int | None, label: str | None, signature: str, context: object
) -> ExamplesCall:
    """The arguments of a classify, a regress or a multi-inference; raises as :func:`predict_call`."""
    target = make_target(model, version, label)
    return ExamplesCall(target=target, examples=examples, context=context, signature=_signature(signature))


def _signature(name: object) -> str:
    # What text UTF-8 can write, JSON can.
    if not isinstance(name, str) or name.encode(errors="replace").decode() != name:
        raise ConfigurationError(f"Expected the name of a signature; received {name!r}.")
    return name
