"""The versions of one model: their states, and which of them answers a request."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from modelyard.artifact import LABELS_NAME, TrustedKey
from modelyard.errors import InvalidModelSpecError, ModelNotFoundError, ModelyardError, UnavailableError
from modelyard.serving.config import ModelConfig
from modelyard.serving.repository._cache import VersionCache
from modelyard.serving.repository._versions import Version, VersionState, VersionStatus
from modelyard.serving.requests import ModelSpec, without_paths
from modelyard.serving.servables import Servable

#: Unloaded versions that status requests still tell of.
_KEPT_ENDED = 100


class FileLabels:
    """What ``labels.json`` of one model says, and which of it is in force.

    A label is given to a version that can answer, never to another: one that
    moves stays where it was until the version it moves to is loaded.
    """

    def __init__(self) -> None:
        self._wanted: Mapping[str, int] = {}
        # Replaced, never changed: readers need no lock.
        self._assigned: Mapping[str, int] = {}

    @property
    def assigned(self) -> Mapping[str, int]:
        return self._assigned

    @property
    def pending(self) -> Mapping[str, int]:
        """Labels that the file gives to versions that cannot answer."""
        return {label: number for label, number in self._wanted.items() if self._assigned.get(label) != number}

    def want(self, labels: Mapping[str, int]) -> None:
        self._wanted = dict(labels)

    def needed(self) -> frozenset[int]:
        """The versions that must be loaded for the labels: where they are, and where they are to be."""
        stay = {number for label, number in self._assigned.items() if label in self._wanted}
        return frozenset(stay | set(self._wanted.values()))

    def settle(self, available: Collection[int]) -> bool:
        """Moves every label that can be moved."""
        assigned = {}
        for label, wanted in self._wanted.items():
            number = wanted if wanted in available else self._assigned.get(label)
            if number is not None and number in available:
                assigned[label] = number
        changed = assigned != self._assigned
        self._assigned = assigned
        return changed


class VersionTable:
    """Versions that requests hold: one is unloaded only when the last request has given it back."""

    def __init__(self, config: ModelConfig, cache_dir: Path | None, trusted_keys: Sequence[TrustedKey] = ()) -> None:
        self._config = config
        self._cache = VersionCache(config.name, cache_dir, trusted_keys)
        # Requests lock the mutex itself: the entry of a condition is Python code.
        self._mutex = threading.RLock()
        self._lock = threading.Condition(self._mutex)
        self._versions: dict[int, Version] = {}
        #: Suspended versions that were replaced by others of the same number.
        self._replaced: list[Version] = []
        #: Whether the aspired versions of the configuration in force were tried.
        self._polled = False
        self._aspired: frozenset[int] = frozenset()
        #: In the base path, when it was last looked at.
        self._found: frozenset[int] = frozenset()
        self._file_labels = FileLabels()
        #: What a request without version and label means; None for the newest version.
        self._default: ModelSpec | None = None
        #: Versions that are loaded whatever the policy is.
        self._kept: frozenset[int] = frozenset()
        #: What is wrong with the model as a whole.
        self._problem = ""
        self._wake = threading.Event()

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def labels(self) -> Mapping[str, int]:
        """The labels that requests may name: the configuration's, and those that ``labels.json`` alone has."""
        return {**self._file_labels.assigned, **self._config.labels}

    def dangling(self) -> str:
        """What the log says of the configuration's labels whose versions are not loaded; empty where all are."""
        loaded = {servable.version for servable in self.loaded()}
        labels = ", ".join(
            f"{label!r} (version {number})"
            for label, number in sorted(self._config.labels.items())
            if number not in loaded
        )
        return labels and (
            f"model {self._config.name}: version_labels name versions that are not loaded: {labels}; requests by such "
            "a label are refused. Move the label, or have model_version_policy load its version."
        )

    def is_ready(self) -> bool:
        """Whether requests can be answered: while versions still load, by the version that most of them are sent to."""
        with self._lock:
            if not self._polled and self._default is not None:
                return self.number_of(self._default) is not None
            return any(version.available for version in self._versions.values())

    def number_of(self, spec: ModelSpec) -> int | None:
        """The version that a spec with a version or a label means, where it can answer; else None."""
        number = spec.version if spec.label is None else self.labels.get(spec.label)
        return number if number is not None and self.is_available(number) else None

    def is_suspended(self) -> bool:
        """Whether no version can answer because of a batch that does not end."""
        with self._lock:
            return not self.is_ready() and any(version.suspended for version in self._versions.values())

    def loaded(self) -> list[Servable]:
        """Every version in memory, also one that is not available any more."""
        with self._lock:
            versions = (*self._versions.values(), *self._replaced)
            return [version.servable for version in versions if version.servable is not None]

    def is_available(self, number: int) -> bool:
        with self._lock:
            return number in self._versions and self._versions[number].available

    def _available(self) -> Collection[int]:
        with self._lock:
            return tuple(version.number for version in self._versions.values() if version.available)

    def _forget_ended(self) -> None:
        """Forgets versions that ended long ago: where a new one comes each minute they would become too many.

        One that failed is known for as long as its files are there, or it would be tried again.
        """
        ended = sorted(
            number
            for number, version in self._versions.items()
            if version.state is VersionState.END
            and version.servable is None
            and (version.error is None or number not in self._found)
        )
        for number in ended[:-_KEPT_ENDED]:
            del self._versions[number]

    def statuses(self) -> tuple[VersionStatus, ...]:
        with self._lock:
            versions = sorted(self._versions.values(), key=lambda item: item.number, reverse=True)
            return tuple(VersionStatus(version=item.number, state=item.state, error=item.error) for item in versions)

    def failure(self) -> str:
        """Why the model cannot answer, or an aspired version is missing; empty where neither is so."""
        reasons = [
            f"version {item.version}: {item.error.message}"
            for item in self.statuses()
            if item.error is not None and item.version in self._aspired
        ]
        reason = "; ".join(reasons) or self._public(self._problem) or ("" if self._polled else "it is still loading")
        return reason or ("" if self.is_ready() else "no version is aspired")

    def suspend(self, servable: Servable, error: ModelyardError) -> None:
        """Takes a version out of service and keeps it in memory, because a thread computes in it."""
        with self._lock:
            for version in self._holding(servable):
                version.suspended, version.state, version.error = True, VersionState.END, error
            self._lock.notify_all()

    def _restore(self, servable: Servable) -> list[Version]:
        """Puts versions in service again."""
        with self._lock:
            versions = self._holding(servable)
            for version in versions:
                version.suspended, version.state, version.error = False, VersionState.AVAILABLE, None
            return versions

    def _aspire(self, numbers: Iterable[int]) -> None:
        with self._lock:
            self._aspired = frozenset(numbers)
            self._forget_ended()

    def _holding(self, servable: Servable) -> list[Version]:
        return [each for each in (*self._versions.values(), *self._replaced) if each.servable is servable]

    def prefer(self, default: ModelSpec | None, keep: frozenset[int]) -> None:
        """Sets the version or label of requests without one, and versions to load whatever the policy is."""
        with self._lock:
            self._default = default
            changed, self._kept = self._kept != keep, keep
        if changed:
            self._wake.set()

    @contextmanager
    def acquire(self, spec: ModelSpec) -> Iterator[Servable]:
        version = self.lend(spec)
        try:
            yield version.loaded
        finally:
            self.give_back(version)

    def lend(self, spec: ModelSpec) -> Version:
        """Returns a version that stays loaded until :meth:`give_back`; raises as :meth:`acquire` does."""
        with self._mutex:
            version = self._resolve(spec)
            version.requests += 1
            return version

    def give_back(self, version: Version) -> None:
        with self._mutex:
            version.requests -= 1
            # Only a thread that unloads it waits for that.
            if version.requests == 0 and not version.available:
                self._lock.notify_all()

    def _resolve(self, spec: ModelSpec) -> Version:
        wanted = spec.version
        if wanted is None and spec.label is None and self._default is not None:
            spec, wanted = self._default, self._default.version
        elif wanted is None and spec.label is None:
            # Most requests take this path.
            newest = None
            for version in self._versions.values():
                if version.available and (newest is None or version.number > newest.number):
                    newest = version
            if newest is not None:
                return newest
        by = ""
        if spec.label is not None:
            labels = self.labels
            wanted = labels.get(spec.label)
            pending = self._file_labels.pending.get(spec.label)
            if wanted is None and not self._polled and (pending is not None or not self._available()):
                # Labels of a file are known when its versions are.
                raise self._still_loading()
            if wanted is None:
                known = ", ".join(sorted(labels)) or "no labels"
                if pending is not None:
                    known += f"; {LABELS_NAME} gives it to version {pending}, which is not available"
                raise InvalidModelSpecError(
                    f"Unrecognized servable version label: {spec.label}; model {spec.name!r} has {known}."
                )
            by = f" (label {spec.label!r})"
            spec = replace(spec, version=wanted, label=None)
        available = {number: version for number, version in self._versions.items() if version.available}
        if wanted is not None and wanted in available:
            return available[wanted]
        for version in self._versions.values():
            if version.suspended and version.error is not None and wanted in (None, version.number):
                raise UnavailableError(version.error.message)
        if not self._polled and (not available or wanted in self._aspired):
            raise self._still_loading()
        if available:
            raise ModelNotFoundError(
                f"Servable not found for request: {spec.describe()}{by}; loaded versions: {sorted(available)}."
            )
        reasons = [f"version {item.number}: {item.error.message}" for item in self._versions.values() if item.error]
        reason = "; ".join(reasons) or self._public(self._problem) or f"no version in {self._config.base_path.name}"
        raise ModelNotFoundError(f"Servable not found for request: {spec.describe()}{by}; nothing is loaded: {reason}")

    def _still_loading(self) -> UnavailableError:
        return UnavailableError(f"Model {self._config.name!r} is still loading; try again in a moment.")

    def _public(self, text: str) -> str:
        """A text of the log without the paths of this machine."""
        return without_paths(text, (self._config.base_path, *self._cache.roots))
