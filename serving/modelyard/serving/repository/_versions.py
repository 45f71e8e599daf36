"""What a watcher knows of its versions, and which of them it unloads first: upstream's two policies."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from modelyard.artifact import Location, RemotePath
from modelyard.errors import ArtifactError, InternalError, ModelyardError
from modelyard.serving.repository._states import VersionState
from modelyard.serving.servables import Servable


@dataclass
class Version:
    """A version that a watcher knows of.

    Attributes:
        number: The version.
        path: Its directory.
        stamp: Of its files, when they were loaded.
        state: Its state.
        error: Why it, or what was to replace it, could not be loaded.
        servable: The loaded version; None where it is not.
        requests: How many hold it.
        rejected: Directory and stamp of what was to replace it and failed.
        suspended: It is loaded, and a batch of it does not end: nobody may ask for it, or unload it.
    """

    number: int
    path: Location
    stamp: tuple[int | str, ...]
    state: VersionState = VersionState.LOADING
    error: ModelyardError | None = None
    servable: Servable | None = None
    requests: int = 0
    rejected: tuple[Location, tuple[int | str, ...]] | None = None
    suspended: bool = False

    @property
    def available(self) -> bool:
        """Whether it can answer."""
        return self.state is VersionState.AVAILABLE

    @property
    def loaded(self) -> Servable:
        """The servable of a version that can answer."""
        if self.servable is None:
            raise InternalError(f"Version {self.number} is AVAILABLE but empty. This is a bug.")
        return self.servable


def file_stamp(path: Location) -> tuple[int | str, ...]:
    """A value that changes when files of a version are replaced.

    Args:
        path: The version directory.
    """
    if isinstance(path, RemotePath):
        try:
            return tuple(f"{name} {file.stamp}" for name, file in sorted(path.tree().items()))
        except (OSError, ArtifactError):
            return ()
    try:
        stats = [item.stat() for item in sorted(path.rglob("*")) if item.is_file()]
    except OSError:
        return ()
    return tuple(value for stat in stats for value in (stat.st_mtime_ns, stat.st_size, stat.st_ino))


def surplus(aspired: Collection[int], available: Collection[int], *, resource_preserving: bool) -> tuple[int, ...]:
    """The versions to unload before anything else happens, oldest first.

    The decisions of upstream's ``AvailabilityPreservingPolicy`` and
    ``ResourcePreservingPolicy``.

    Args:
        aspired: The versions to serve.
        available: The versions that can answer now.
        resource_preserving: Memory matters more than availability.
    """
    unaspired = tuple(sorted(set(available) - set(aspired)))
    if resource_preserving or not aspired or set(aspired) & set(available):
        return unaspired
    # One old version bridges the time until the first new one can answer.
    return unaspired[:-1]
