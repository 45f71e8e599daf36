"""The states of a version, as TensorFlow Serving reports them."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from modelyard.errors import ModelyardError


class VersionState(enum.IntEnum):
    """State of one version; the numbers are those of ``ModelVersionStatus.State``."""

    UNKNOWN = 0
    START = 10
    LOADING = 20
    AVAILABLE = 30
    UNLOADING = 40
    END = 50


@dataclass(frozen=True, kw_only=True)
class VersionStatus:
    """What a status request is answered with for one version.

    Attributes:
        version: The version.
        state: Its state.
        error: Why it failed; None where it did not.
    """

    version: int
    state: VersionState
    error: ModelyardError | None = None
