"""What calls return: frozen values, numpy arrays where there are tensors."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal

import numpy as np
import numpy.typing as npt


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Prediction(Mapping[str, npt.NDArray[Any]]):
    """The outputs of one prediction: a read-only mapping from output name to array.

    Strings are object arrays of ``bytes``, over both transports.

    Attributes:
        outputs: Arrays by output name; the prediction itself is this mapping.
        model: Name of the model.
        version: The version that answered; None where the transport does not
            say it (REST, unless the call asked for a version).
        signature: The signature that was called.
    """

    outputs: Mapping[str, npt.NDArray[Any]]
    model: str
    version: int | None
    signature: str

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        try:
            return self.outputs[name]
        except KeyError:
            raise KeyError(f"No output {name!r}; this prediction has {', '.join(sorted(self.outputs))}.") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self.outputs)

    def __len__(self) -> int:
        return len(self.outputs)

    # Mappings compare by value, but numpy arrays have no single truth value to compare by.
    def __eq__(self, other: object) -> bool:
        return self is other

    def __hash__(self) -> int:
        return id(self)

    def __repr__(self) -> str:
        outputs = ", ".join(f"{name}: {array.dtype}{list(array.shape)}" for name, array in self.outputs.items())
        return f"Prediction(model={self.model!r}, version={self.version}, signature={self.signature!r}, {{{outputs}}})"


@dataclass(frozen=True, kw_only=True)
class TensorInfo:
    """One input or output of a signature.

    Attributes:
        name: The alias that requests use.
        dtype: TensorFlow's name, such as ``float32`` or ``string``.
        shape: Sizes, ``-1`` for any; None for an unknown rank.
    """

    name: str
    dtype: str
    shape: tuple[int, ...] | None


@dataclass(frozen=True, kw_only=True)
class SignatureInfo:
    """One signature of a model.

    Attributes:
        name: Its name, such as ``serving_default``.
        method: Such as ``tensorflow/serving/predict``.
        inputs: By alias.
        outputs: By alias.
    """

    name: str
    method: str
    inputs: Mapping[str, TensorInfo]
    outputs: Mapping[str, TensorInfo]


@dataclass(frozen=True, kw_only=True)
class ModelMetadata:
    """What a server says about a model.

    Attributes:
        model: Name of the model.
        version: The version described; None where the server does not say it.
        signatures: By name, all that the server lists.
    """

    model: str
    version: int | None
    signatures: Mapping[str, SignatureInfo]

    @property
    def callable_signatures(self) -> dict[str, SignatureInfo]:
        """Without the operation that initializes a SavedModel's tables: metadata lists it, and nobody can call it."""
        return {name: each for name, each in self.signatures.items() if name != "__saved_model_init_op"}


class VersionState(StrEnum):
    """Where a version is in its life on a server."""

    UNKNOWN = "UNKNOWN"
    START = "START"
    LOADING = "LOADING"
    AVAILABLE = "AVAILABLE"
    UNLOADING = "UNLOADING"
    END = "END"


@dataclass(frozen=True, kw_only=True)
class VersionStatus:
    """State of one version.

    Attributes:
        version: Its number.
        state: Where it is in its life.
        error_code: Name of the canonical status code, ``OK`` where all is well.
        error_message: Why it ended; empty where all is well.
    """

    version: int
    state: VersionState
    error_code: str
    error_message: str


@dataclass(frozen=True, kw_only=True)
class ModelStatus:
    """States of a model's versions.

    Attributes:
        model: Name of the model.
        versions: Every version that the server knows, newest first.
    """

    model: str
    versions: tuple[VersionStatus, ...]

    @property
    def available(self) -> tuple[int, ...]:
        """Versions that answer predictions, newest first."""
        return tuple(row.version for row in self.versions if row.state is VersionState.AVAILABLE)


@dataclass(frozen=True, kw_only=True)
class ClassScore:
    """One class of one example.

    Attributes:
        label: Its label; empty where the model gives none.
        score: Its score; 0 where the model gives none.
    """

    label: str
    score: float


@dataclass(frozen=True, kw_only=True)
class Classification:
    """The classes of examples.

    Attributes:
        rows: For each example its classes, in the model's order.
        model: Name of the model.
        version: The version that answered; None where the transport does not say it.
        signature: The signature that was called.
    """

    rows: tuple[tuple[ClassScore, ...], ...]
    model: str
    version: int | None
    signature: str

    def best(self) -> tuple[ClassScore, ...]:
        """The class with the highest score of each example that has any."""
        return tuple(max(row, key=lambda item: item.score) for row in self.rows if row)


@dataclass(frozen=True, kw_only=True, eq=False)
class Regression:
    """The values of examples.

    Attributes:
        values: float32 ``[examples]``.
        model: Name of the model.
        version: The version that answered; None where the transport does not say it.
        signature: The signature that was called.
    """

    values: npt.NDArray[np.float32]
    model: str
    version: int | None
    signature: str


@dataclass(frozen=True, kw_only=True)
class InferenceTask:
    """One part of a multi-inference.

    Attributes:
        method: ``classify`` or ``regress``.
        signature: Name of the signature; empty for ``serving_default``.
    """

    method: Literal["classify", "regress"]
    signature: str = ""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One entry of a server's list of models, as ``reload_config`` sends it.

    Attributes:
        name: Name of the model.
        base_path: Directory of its versions, on the server; absolute.
        platform: TensorFlow Serving's name of the kind of model.
        latest: Serve so many of the newest versions; None, with no ``versions``, for the server's default of one.
        versions: Serve exactly these.
        labels: Versions by label.
    """

    name: str
    base_path: str
    platform: str = "tensorflow"
    latest: int | None = None
    versions: tuple[int, ...] = ()
    labels: Mapping[str, int] = field(default_factory=dict)
