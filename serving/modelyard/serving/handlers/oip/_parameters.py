"""Parameters of requests and outputs that mean something here; all others are echoed."""

from __future__ import annotations

from collections.abc import Mapping

from modelyard.errors import InvalidRequestError, UnsupportedError
from modelyard.serving.handlers.oip._types import Parameter

#: Request parameter that names another signature than ``serving_default``.
SIGNATURE_PARAMETER = "signature_name"
#: Request parameter: whether outputs are binary over REST, where they do not say it themselves.
BINARY_DEFAULT_PARAMETER = "binary_data_output"
#: Sent by tritonclient's streams; the only parameter with the reserved prefix that a client may send.
FINAL_RESPONSE_PARAMETER = "triton_enable_empty_final_response"
_RESERVED_PREFIX = "triton_"
#: Set by clients of models that remember a sequence of requests; the values that say "no sequence" pass.
_SEQUENCE = ("sequence_id", "sequence_start", "sequence_end")
_CLASSIFICATION = "classification"
_SHARED_MEMORY = "shared_memory_region"


def signature_of(parameters: Mapping[str, Parameter]) -> str:
    """Checks a request's parameters, and returns the signature that they name; empty for ``serving_default``."""
    for key in parameters:
        if key.startswith(_RESERVED_PREFIX) and key != FINAL_RESPONSE_PARAMETER:
            raise InvalidRequestError(
                f"Parameter {key!r}: parameter keys starting with {_RESERVED_PREFIX!r} are reserved for Triton usage "
                "and should not be specified."
            )
    for key in _SEQUENCE:
        if parameters.get(key):
            raise UnsupportedError(
                f"Parameter {key!r} is {parameters[key]!r}: modelyard keeps no state between requests, so it has no "
                "sequences. Leave sequence_id, sequence_start and sequence_end out, and send what the model remembers "
                "as an input."
            )
    signature = parameters.get(SIGNATURE_PARAMETER, "")
    if not isinstance(signature, str):
        raise InvalidRequestError(f"Parameter {SIGNATURE_PARAMETER!r} is {signature!r}; expected a string.")
    return signature


def echoed(parameters: Mapping[str, Parameter]) -> dict[str, Parameter]:
    """The request parameters that an answer repeats: all but those that steer the transport."""
    return {
        key: value
        for key, value in parameters.items()
        if key != BINARY_DEFAULT_PARAMETER and not key.startswith(_RESERVED_PREFIX)
    }


def classification_of(parameters: Mapping[str, Parameter], name: str) -> int:
    """The ``classification`` parameter of a requested output; 0 where it is absent."""
    count = parameters.get(_CLASSIFICATION, 0)
    if not isinstance(count, int) or isinstance(count, bool) or (_CLASSIFICATION in parameters and count < 1):
        raise InvalidRequestError(f"{_CLASSIFICATION!r} of output {name!r} is {count!r}; expected a number >= 1.")
    return count


def flag_of(parameters: Mapping[str, Parameter], key: str, *, default: bool) -> bool:
    value = parameters.get(key, default)
    if not isinstance(value, bool):
        raise InvalidRequestError(f"Parameter {key!r} is {value!r}; expected true or false.")
    return value


def refuse_shared_memory(parameters: Mapping[str, Parameter], owner: str) -> None:
    if _SHARED_MEMORY in parameters:
        raise UnsupportedError(f"Shared memory is not supported ({owner}); send the tensor in the request.")
