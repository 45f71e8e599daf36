"""States of versions, as TensorFlow Serving reports them, and its two policies of unloading."""

from __future__ import annotations

import enum
import os
import stat
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from modelyard.artifact import AnyVersion, Location, RemotePath, list_served, targets_below
from modelyard.errors import ArtifactError, InternalError, ModelyardError
from modelyard.serving.servables import Servable


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
    """The state of one version, and why it failed."""

    version: int
    state: VersionState
    error: ModelyardError | None = None


@dataclass
class Version:
    """A version of a watched model."""

    number: int
    path: Location
    #: Of its files, when they were loaded.
    stamp: tuple[int | str, ...]
    state: VersionState = VersionState.LOADING
    #: Why it, or its replacement, could not be loaded.
    error: ModelyardError | None = None
    servable: Servable | None = None
    #: How many hold it.
    requests: int = 0
    #: Directory and stamp of a replacement that failed.
    rejected: tuple[Location, tuple[int | str, ...]] | None = None
    #: It is loaded, and a batch of it does not end: it can neither answer nor be unloaded.
    suspended: bool = False

    @property
    def available(self) -> bool:
        return self.state is VersionState.AVAILABLE

    def is_outdated(self, path: Location, *, asked: bool) -> bool:
        """Whether there is something else to load by its number than what was loaded, or tried.

        Args:
            path: Its directory now.
            asked: Whether somebody asks for it, who may have replaced its files.
        """
        if self.path != path:
            # The base path was changed, and the new one has a version of the same number.
            return self.rejected != (path, file_stamp(path))
        if self.state is VersionState.END and self.error is None:
            # It was unloaded, and is aspired again.
            return True
        # One that failed is tried again when its files change.
        return (self.state is VersionState.END or (asked and self.available)) and self.stamp != file_stamp(path)

    @property
    def loaded(self) -> Servable:
        """The servable of a version that can answer."""
        if self.servable is None:
            raise InternalError(f"Version {self.number} is AVAILABLE but empty. This is a bug.")
        return self.servable


class VersionFinder:
    """Finds the versions in a base path; where that was a mount which is gone, what is left is not empty but away."""

    def __init__(self) -> None:
        #: The device that the versions were on, by the base path that they were in.
        self._device: dict[Path, int] = {}

    def find(self, base_path: Location) -> Sequence[AnyVersion]:
        """The versions that are there.

        Raises:
            OSError: The base path cannot be read.
            ArtifactError: It is empty, and on another device than its versions were.
        """
        if isinstance(base_path, RemotePath):
            return list_served(base_path)
        # Before the look and after it: it may be unmounted meanwhile.
        before = base_path.stat().st_dev
        found = list_served(base_path)
        after = base_path.stat().st_dev
        if found:
            self._device = {base_path: before}
        elif self._device.get(base_path, after) != after:
            raise ArtifactError("it is empty, and on another disk than its versions were: was that unmounted?")
        return found


def file_stamp(path: Location) -> tuple[int | str, ...]:
    """A value that changes when files of a version are replaced."""
    if isinstance(path, RemotePath):
        try:
            return tuple(f"{name} {file.stamp}" for name, file in sorted(path.tree().items()))
        except (OSError, ArtifactError):
            return ()
    try:
        stats = file_stats(path)
    except ArtifactError:
        return ()
    # The time of the last change includes permissions and renames.
    return tuple(value for each in stats for value in (each.st_ctime_ns, each.st_mtime_ns, each.st_size, each.st_ino))


def file_stats(folder: Path) -> list[os.stat_result]:
    """What the system says of every file below a folder, in a fixed order; a link is the file that it leads to.

    Raises:
        ArtifactError: They cannot be listed.
    """
    return [entry for _, entry in sorted(targets_below(folder).items()) if stat.S_ISREG(entry.st_mode)]


def surplus(aspired: Collection[int], available: Collection[int], *, resource_preserving: bool) -> tuple[int, ...]:
    """The versions to unload before anything else happens, oldest first.

    The decisions of upstream's ``AvailabilityPreservingPolicy`` and ``ResourcePreservingPolicy``.
    """
    unaspired = tuple(sorted(set(available) - set(aspired)))
    if resource_preserving or not aspired or set(aspired) & set(available):
        return unaspired
    # One old version bridges the time until the first new one can answer.
    return unaspired[:-1]
