"""One model whose signatures are known: inputs are checked and cast before anything is sent."""

from __future__ import annotations

import difflib
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy.typing as npt

from modelyard.clients.api._calls import output_names
from modelyard.clients.protocols import DEFAULT_SIGNATURE
from modelyard.clients.values import (
    ModelMetadata,
    Prediction,
    SignatureInfo,
    TensorInfo,
    to_arrays,
    wire_array,
)
from modelyard.errors import InvalidInputError, SignatureNotFoundError
from modelyard.wire import cast_unchanged, dtype_by_numpy

_T = TypeVar("_T")


class BoundSignature(Generic[_T]):
    """One signature of a model, to be called with its inputs.

    Attributes:
        info: Its inputs and outputs.
    """

    def __init__(
        self, predict: Callable[..., _T], model: str, info: SignatureInfo, *, version: int | None, label: str | None
    ) -> None:
        self.info = info
        self._predict = predict
        self._model = model
        self._version = version
        self._label = label

    @property
    def inputs(self) -> Mapping[str, TensorInfo]:
        """Inputs by name."""
        return self.info.inputs

    @property
    def outputs(self) -> Mapping[str, TensorInfo]:
        """Outputs by name."""
        return self.info.outputs

    def predict(self, inputs: object, *, outputs: Sequence[str] | None = None, timeout_s: float | None = None) -> _T:
        """Computes the outputs.

        Unlike :meth:`modelyard.clients.Client.predict` this casts: integers to wider ones and, where their values allow
        it, to narrower ones; integers to floats that hold them exactly; float64 to float32, rounded as everywhere. No
        float becomes an integer, no value infinite, nothing a boolean.

        Args:
            inputs: By name; of a signature with one input its value alone will do.
            outputs: Outputs to return; None or empty for all.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            InvalidInputError: An input is missing, unknown, of another shape, or
                of a dtype that cannot be cast without changing a value.
            ModelyardError: As the client's ``predict``.
        """
        known = self.info.outputs
        for name in output_names(outputs):
            if name not in known:
                raise InvalidInputError(
                    f"Signature {self.info.name!r} has no output {name!r}{_hint(name, known)}. It has {_listed(known)}."
                )
        return self._predict(
            self._model,
            prepare_inputs(inputs, self.info),
            version=self._version,
            label=self._label,
            signature="" if self.info.name == DEFAULT_SIGNATURE else self.info.name,
            outputs=outputs,
            timeout_s=timeout_s,
        )

    def __call__(self, *value: object, **inputs: object) -> _T:
        """Computes the outputs: ``signature(x=...)``, or ``signature(...)`` where there is one input.

        Raises:
            InvalidInputError: As :meth:`predict`; or neither one value nor names.
        """
        if value and (inputs or len(value) > 1):
            raise InvalidInputError(
                f"Signature {self.info.name!r}: expected one value, or inputs by name: {_listed(self.info.inputs)}."
            )
        return self.predict(value[0] if value else inputs)

    def __repr__(self) -> str:
        return f"{self.info.name}({_listed(self.info.inputs)}) -> {_listed(self.info.outputs)}"


class Signatures(Mapping[str, BoundSignature[_T]]):
    """The signatures of a model: a mapping, and attributes that completion finds."""

    def __init__(self, signatures: Mapping[str, BoundSignature[_T]], model: str) -> None:
        self._signatures = dict(signatures)
        self._model = model

    def __getitem__(self, name: str) -> BoundSignature[_T]:
        try:
            return self._signatures[name]
        except KeyError:
            raise SignatureNotFoundError(
                f"Model {self._model!r} has no signature {name!r}{_hint(name, self._signatures)}. "
                f"It has {', '.join(sorted(self._signatures))}."
            ) from None

    def __getattr__(self, name: str) -> BoundSignature[_T]:
        if name.startswith("_") or name not in self._signatures:
            raise AttributeError(
                f"Model {self._model!r} has no signature {name!r}{_hint(name, self._signatures)}.", name=name, obj=self
            )
        return self._signatures[name]

    def __contains__(self, name: object) -> bool:
        return name in self._signatures

    def __iter__(self) -> Iterator[str]:
        return iter(self._signatures)

    def __len__(self) -> int:
        return len(self._signatures)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *(name for name in self._signatures if name.isidentifier())]

    def __repr__(self) -> str:
        return "\n".join(map(repr, self._signatures.values()))


class BaseModel(Generic[_T]):
    """A model behind a client, made by its ``model``.

    Attributes:
        metadata: What the server said about the model.
        signatures: By name, and as attributes.
    """

    def __init__(
        self, predict: Callable[..., _T], name: str, metadata: ModelMetadata, *, version: int | None, label: str | None
    ) -> None:
        # Not the name that the server has answered: it could send the calls, and their token, to another model.
        self._name = name
        self.metadata = metadata
        bound = {
            signature: BoundSignature(predict, name, info, version=version, label=label)
            for signature, info in metadata.callable_signatures.items()
        }
        self.signatures: Signatures[_T] = Signatures(bound, name)

    @property
    def name(self) -> str:
        """Name of the model."""
        return self._name

    @property
    def version(self) -> int | None:
        """The version that was described; None where the server did not say it."""
        return self.metadata.version

    def predict(
        self,
        inputs: object,
        *,
        signature: str = DEFAULT_SIGNATURE,
        outputs: Sequence[str] | None = None,
        timeout_s: float | None = None,
    ) -> _T:
        """Computes the outputs of a signature; see :meth:`BoundSignature.predict`.

        Args:
            inputs: By name; of a signature with one input its value alone will do.
            signature: Name of the signature.
            outputs: Outputs to return; None or empty for all.
            timeout_s: Deadline in seconds; None for the client's.

        Raises:
            InvalidInputError: The inputs do not fit the signature.
            SignatureNotFoundError: The model has no such signature.
            ModelyardError: As the client's ``predict``.
        """
        return self.signatures[signature].predict(inputs, outputs=outputs, timeout_s=timeout_s)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r}, version={self.version})\n{self.signatures!r}"


class Model(BaseModel[Prediction]):
    """A model behind a blocking client."""


class AsyncModel(BaseModel[Awaitable[Prediction]]):
    """A model behind an asynchronous client: its predictions are awaited."""


def prepare_inputs(inputs: object, info: SignatureInfo) -> dict[str, npt.NDArray[Any]]:
    """Checks inputs against a signature and casts them to its dtypes, as :meth:`BoundSignature.predict` says."""
    expected = info.inputs
    if not expected and isinstance(inputs, Mapping):
        # The server has not described the model: what it is given it must check itself.
        return to_arrays(inputs, None)
    if not isinstance(inputs, Mapping):
        if len(expected) != 1:
            raise InvalidInputError(
                f"Signature {info.name!r} has {len(expected)} inputs; expected a mapping with {_listed(expected)}."
            )
        inputs = {next(iter(expected)): inputs}
    for name in inputs:
        if name not in expected:
            raise InvalidInputError(
                f"Signature {info.name!r} has no input {name!r}{_hint(name, expected)}. Expected {_listed(expected)}."
            )
    missing = [name for name in expected if name not in inputs]
    if missing:
        raise InvalidInputError(
            f"Signature {info.name!r}: missing {', '.join(map(repr, missing))}. Expected {_listed(expected)}."
        )
    return {name: _prepare(value, expected[name]) for name, value in inputs.items()}


def _prepare(value: object, info: TensorInfo) -> npt.NDArray[Any]:
    try:
        array = wire_array(value, info)
    except InvalidInputError as exc:
        raise InvalidInputError(f"Input {info.name!r}: {exc.message} Expected {_described(info)}.") from exc
    array = _cast(array, info)
    shape = info.shape
    if shape is not None and (
        len(shape) != array.ndim or any(size not in (-1, have) for size, have in zip(shape, array.shape, strict=False))
    ):
        hint = ""
        if array.ndim == len(shape) - 1 and all(
            size in (-1, have) for size, have in zip(shape[1:], array.shape, strict=True)
        ):
            hint = " One row alone needs its dimension of the batch: value[None]."
        raise InvalidInputError(
            f"Input {info.name!r} has shape {list(array.shape)}; expected {list(shape)} (-1 is any size).{hint}"
        )
    return array


def _cast(array: npt.NDArray[Any], info: TensorInfo) -> npt.NDArray[Any]:
    cast = cast_unchanged(array, info.dtype)
    if cast is None:
        raise InvalidInputError(
            f"Input {info.name!r} is {dtype_by_numpy(array.dtype).name}, whose values {info.dtype} cannot hold; "
            f"expected {_described(info)}. Convert it with .astype where that is what you mean."
        )
    return cast


def _described(info: TensorInfo) -> str:
    return f"{info.dtype} {'of any shape' if info.shape is None else list(info.shape)}"


def _listed(infos: Mapping[str, TensorInfo]) -> str:
    return ", ".join(f"{info.name}: {_described(info)}" for info in infos.values())


def _hint(name: object, known: Mapping[str, object]) -> str:
    near = difflib.get_close_matches(str(name), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
