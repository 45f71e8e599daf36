"""One model: watches its base path, loads what is aspired, unloads what is not.

A new version is loaded before the old one is unloaded (or the other way round,
where memory is scarce and the options say so), and the old one stays where the
new one fails. A servable that a request holds is unloaded only when the last
request has let go of it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from modelyard.artifact import LABELS_NAME, AnyVersion, list_versions, read_labels
from modelyard.errors import (
    ArtifactError,
    IntegrityError,
    InternalError,
    InvalidModelSpecError,
    LoadError,
    ManifestError,
    ModelNotFoundError,
    ModelyardError,
    UnavailableError,
)
from modelyard.serving.config import ModelConfig, WatchOptions, describe_base_path
from modelyard.serving.repository._cache import VersionCache
from modelyard.serving.repository._labels import FileLabels
from modelyard.serving.repository._states import VersionState, VersionStatus
from modelyard.serving.repository._versions import Version, file_stamp, surplus
from modelyard.serving.requests import ModelSpec, without_paths
from modelyard.serving.servables import Servable

_LOG = logging.getLogger("modelyard.serving")

#: Loads a version of a model from its directory.
Loader = Callable[[ModelConfig, int, Path], Servable]

#: Seconds until the next look where there is to be only one, and it failed.
_RETRY_S = 1.0


class ModelWatcher:
    """Keeps one model loaded, on a thread of its own: no other model waits for it.

    Args:
        config: The model.
        load: Loads one version.
        options: How to watch.
    """

    def __init__(self, config: ModelConfig, load: Loader, options: WatchOptions) -> None:
        self._config = config
        self._load = load
        self._options = options
        # Whoever only locks, for every request, takes the inner one: a condition's own entry is Python.
        self._mutex = threading.RLock()
        self._lock = threading.Condition(self._mutex)
        self._versions: dict[int, Version] = {}
        #: Suspended versions that were replaced by others of the same number.
        self._replaced: list[Version] = []
        self._polled = False
        self._watching = False
        self._enabled = not options.explicit
        self._aspired: frozenset[int] = frozenset()
        #: Those of them that the policy alone would not have loaded.
        self._labelled: frozenset[int] = frozenset()
        self._file_labels = FileLabels()
        #: What a request without version and label means; None for the newest version.
        self._default: ModelSpec | None = None
        #: Versions that are loaded whatever the policy is.
        self._kept: frozenset[int] = frozenset()
        self._cache = VersionCache(config.name, options.cache_dir)
        self._label_complaint = ""
        self._complaint = "" if self._enabled else self._not_asked()
        # Requests to load and the model's own thread must not reconcile at the same time.
        self._polling = threading.Lock()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._watch, name=f"modelyard-watch-{self._config.name}", daemon=True)

    @property
    def config(self) -> ModelConfig:
        """The configuration in force."""
        return self._config

    def configure(self, config: ModelConfig) -> None:
        """Changes base path, policy and labels; the next look follows at once.

        Args:
            config: The new configuration of the same model.
        """
        with self._lock:
            self._config = config
        self.look()

    def look(self) -> None:
        """Looks for versions now, whenever the next look would be."""
        never = self._options.poll_wait_s < 0 and not self._options.explicit
        with self._lock:
            self._polled = never
            if not self._watching and not never:
                # Base paths are looked at once only: this is another occasion.
                self._watching, self._thread = True, self._new_thread()
                self._thread.start()
        self._wake.set()

    def prefer(self, default: ModelSpec | None, keep: frozenset[int]) -> None:
        """Says what requests without version and label get, for traffic rules.

        Args:
            default: A version or a label; None for the newest version.
            keep: Versions that are loaded whatever the policy is.
        """
        with self._lock:
            self._default = default
            changed, self._kept = self._kept != keep, keep
        if changed:
            self._wake.set()

    @property
    def labels(self) -> Mapping[str, int]:
        """The labels that requests may name: the configuration's, and those that ``labels.json`` alone has."""
        return {**self._file_labels.assigned, **self._config.labels}

    def failure(self) -> str:
        """Why the model has nothing to answer with, or not what its configuration asks for; empty where all is well."""
        reasons = [
            f"version {item.version}: {item.error.message}"
            for item in self.statuses()
            if item.error is not None and item.version in self._aspired
        ]
        reason = "; ".join(reasons) or self._public(self._complaint) or ("" if self._polled else "it is still loading")
        return reason or ("" if self.is_ready() else "no version is aspired")

    @property
    def enabled(self) -> bool:
        """Whether the model is meant to be loaded; in explicit mode only after a request for it."""
        return self._enabled

    def enable(self) -> None:
        """Loads the aspired versions, on the calling thread.

        Raises:
            LoadError: One of them cannot be loaded, or there is none.
        """
        self._enabled = True
        self._poll()
        reason = self.failure()
        if reason:
            raise LoadError(f"Model {self._config.name!r} cannot be loaded: {reason}")

    def disable(self) -> None:
        """Unloads every version, on the calling thread, once no request holds it."""
        self._enabled = False
        self._poll()

    def start(self) -> None:
        """Starts to watch."""
        if self._options.explicit or self._options.poll_wait_s < 0:
            # Not looked at by itself: requests must not be told to wait.
            self._polled = True
            if not self._options.explicit:
                self._complain("its base path is never looked at: --file_system_poll_wait_seconds is negative")
            return
        with self._lock:
            if not self._watching:
                self._watching = True
                self._thread.start()

    def request_stop(self) -> None:
        """Asks the thread to end, and whoever waits for it to go on."""
        with self._lock:
            self._stopping.set()
            self._lock.notify_all()
        self._wake.set()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Ends the thread and unloads everything, once no request holds it.

        Args:
            timeout_s: Seconds to wait for a version that is being loaded, or computes; None for as long as it takes.

        Returns:
            Whether everything is unloaded; what is still loading or computing is left behind.
        """
        self.request_stop()
        end = None if timeout_s is None else time.monotonic() + timeout_s
        # On the model's own thread, or on that of a request to load it.
        idle = self._polling.acquire(timeout=-1 if timeout_s is None else timeout_s)
        if idle:
            self._polling.release()
        else:
            _LOG.warning("model %s: not waiting any longer for a version that is being loaded", self._config.name)
        for version in list(self._versions.values()):
            self._unload(version, timeout_s=None if end is None else max(0.0, end - time.monotonic()))
        return idle and not self.loaded()

    def wait_until_polled(self, timeout_s: float) -> bool:
        """Waits until the aspired versions were tried once, or the watcher is asked to stop.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether that happened in time.
        """
        with self._lock:
            self._lock.wait_for(lambda: self._polled or self._stopping.is_set(), timeout_s)
            return self._polled

    def is_ready(self) -> bool:
        """Whether some version can answer."""
        with self._lock:
            return any(version.available for version in self._versions.values())

    def is_suspended(self) -> bool:
        """Whether no version can answer, and a batch that does not end is why."""
        with self._lock:
            return not self.is_ready() and any(version.suspended for version in self._versions.values())

    def loaded(self) -> list[Servable]:
        """What is loaded, though it may not be available any more."""
        with self._lock:
            versions = (*self._versions.values(), *self._replaced)
            return [version.servable for version in versions if version.servable is not None]

    def suspend(self, servable: Servable, error: ModelyardError) -> None:
        """Lends a version to nobody any more, and keeps it: a thread computes in it.

        Args:
            servable: One of :meth:`loaded`.
            error: Why.
        """
        with self._lock:
            for version in self._holding(servable):
                version.suspended, version.state, version.error = True, VersionState.END, error
            self._lock.notify_all()

    def resume(self, servable: Servable) -> None:
        """Lends a version that was suspended again, or unloads it where it is not wanted any more.

        Args:
            servable: One of :meth:`loaded`.
        """
        with self._lock:
            versions = self._holding(servable)
            for version in versions:
                version.suspended, version.state, version.error = False, VersionState.AVAILABLE, None
            unwanted = [
                version
                for version in versions
                if version in self._replaced or version.number not in self._aspired or self._stopping.is_set()
            ]
            self._replaced = [version for version in self._replaced if version not in versions]
        for version in unwanted:
            self._unload(version)

    def _holding(self, servable: Servable) -> list[Version]:
        return [each for each in (*self._versions.values(), *self._replaced) if each.servable is servable]

    def is_available(self, number: int) -> bool:
        """Whether a version can answer.

        Args:
            number: The version.
        """
        with self._lock:
            return number in self._versions and self._versions[number].available

    def statuses(self) -> tuple[VersionStatus, ...]:
        """States of all versions, newest first."""
        with self._lock:
            versions = sorted(self._versions.values(), key=lambda item: item.number, reverse=True)
            return tuple(VersionStatus(version=item.number, state=item.state, error=item.error) for item in versions)

    @contextmanager
    def acquire(self, spec: ModelSpec) -> Iterator[Servable]:
        """Lends a servable; see :meth:`ModelManager.acquire`.

        Args:
            spec: Which one.

        Yields:
            The servable.

        Raises:
            InvalidModelSpecError: Unknown version label.
            ModelNotFoundError: Unknown version.
            UnavailableError: Nothing was loaded yet.
        """
        version = self.lend(spec)
        try:
            yield version.loaded
        finally:
            self.give_back(version)

    def lend(self, spec: ModelSpec) -> Version:
        """Lends a loaded version, which stays loaded until :meth:`give_back`; raises as :meth:`acquire` does.

        Args:
            spec: Which one.
        """
        with self._mutex:
            version = self._resolve(spec)
            version.requests += 1
            return version

    def give_back(self, version: Version) -> None:
        """Ends a loan.

        Args:
            version: What :meth:`lend` returned.
        """
        with self._mutex:
            version.requests -= 1
            # Only who unloads it waits for that.
            if version.requests == 0 and not version.available:
                self._lock.notify_all()

    def _resolve(self, spec: ModelSpec) -> Version:
        wanted = spec.version
        if wanted is None and spec.label is None and self._default is not None:
            spec, wanted = self._default, self._default.version
        elif wanted is None and spec.label is None:
            # What most requests ask for costs no more than it must.
            newest = None
            for version in self._versions.values():
                if version.available and (newest is None or version.number > newest.number):
                    newest = version
            if newest is not None:
                return newest
        if spec.label is not None:
            labels = self.labels
            wanted = labels.get(spec.label)
            if wanted is None and not self._polled and not self.is_ready():
                # Labels of a file are known when its versions are.
                raise self._still_loading()
            if wanted is None:
                known = ", ".join(sorted(labels)) or "no labels"
                pending = self._file_labels.pending.get(spec.label)
                if pending is not None:
                    known += f"; {LABELS_NAME} gives it to version {pending}, which is not available"
                raise InvalidModelSpecError(
                    f"Unrecognized servable version label: {spec.label}; model {spec.name!r} has {known}."
                )
            spec = replace(spec, version=wanted, label=None)
        available = {number: version for number, version in self._versions.items() if version.available}
        if wanted is None and available:
            return available[max(available)]
        if wanted is not None and wanted in available:
            return available[wanted]
        for version in self._versions.values():
            if version.suspended and version.error is not None and wanted in (None, version.number):
                raise UnavailableError(version.error.message)
        if not available and not self._polled:
            raise self._still_loading()
        if available:
            raise ModelNotFoundError(
                f"Servable not found for request: {spec.describe()}; loaded versions: {sorted(available)}."
            )
        reasons = [f"version {item.number}: {item.error.message}" for item in self._versions.values() if item.error]
        reason = "; ".join(reasons) or self._public(self._complaint) or f"no version in {self._config.base_path.name}"
        raise ModelNotFoundError(f"Servable not found for request: {spec.describe()}; nothing is loaded: {reason}")

    def _still_loading(self) -> UnavailableError:
        return UnavailableError(f"Model {self._config.name!r} is still loading; try again in a moment.")

    def _watch(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._poll()
            # A watcher that died would never load anything again, and nobody would know.
            except Exception:
                _LOG.exception("model %s: looking for versions failed unexpectedly; trying again", self._config.name)
            once = self._options.poll_wait_s == 0 or self._options.explicit
            if once and self._retire():
                return
            if self._stopping.is_set():
                return
            self._wake.wait(_RETRY_S if once else self._options.poll_wait_s)
            if self._stopping.is_set():
                return

    def _retire(self) -> bool:
        """Whether the one look there is to be has been had, with the configuration in force."""
        with self._lock:
            self._watching = not self._polled
            return self._polled

    def _poll(self) -> None:
        with self._polling:
            config = self._config
            if self._stopping.is_set():
                return
            if self._enabled:
                self._look(config)
            else:
                self._complaint = self._not_asked()
                self._reconcile(())
                self._file_labels.settle(())
        with self._lock:
            self._polled = config is self._config
            self._lock.notify_all()

    def _look(self, config: ModelConfig) -> None:
        try:
            found: Sequence[AnyVersion] = list_versions(config.base_path)
        except OSError as exc:
            # Nothing is unloaded because a disk or a mount is away for a moment.
            hint = describe_base_path(config.base_path) if isinstance(exc, NotADirectoryError) else ""
            self._complain(f"base path {config.base_path} {hint or f'cannot be read: {exc.strerror or exc}'}")
        except ArtifactError as exc:
            self._complain(f"base path {config.base_path} cannot be read: {exc.message}")
        else:
            self._complain("" if found else self._empty(config))
            self._read_labels(config)
            self._reconcile_labelled(config, found)
            if self._file_labels.settle(self._available()):
                _LOG.info("model %s: labels in force: %s", config.name, dict(self.labels) or "none")
                # Where a label was, nothing may be needed any more.
                self._reconcile_labelled(config, found)

    def _reconcile_labelled(self, config: ModelConfig, found: Sequence[AnyVersion]) -> None:
        needed = self._file_labels.needed() | self._kept
        self._labelled = needed - {version.number for version in config.policy.aspired(found)}
        self._reconcile(config.policy.aspired(found, needed))

    def _read_labels(self, config: ModelConfig) -> None:
        complaint = ""
        try:
            labels = read_labels(config.base_path)
        except ArtifactError as exc:
            # As with versions: a file that is damaged changes nothing.
            complaint = exc.message
        else:
            clash = sorted(label for label in labels if config.labels.get(label, labels[label]) != labels[label])
            if clash:
                complaint = f"the model config wins over {LABELS_NAME} for the labels {', '.join(clash)}"
            self._file_labels.want({label: number for label, number in labels.items() if label not in config.labels})
        if complaint and complaint != self._label_complaint:
            _LOG.warning("model %s: %s", config.name, complaint)
        self._label_complaint = complaint

    def _available(self) -> tuple[int, ...]:
        with self._lock:
            return tuple(version.number for version in self._versions.values() if version.available)

    def _public(self, text: str) -> str:
        """What callers are told of a text, which the log has already."""
        return without_paths(text, (self._config.base_path, *self._cache.roots))

    def _not_asked(self) -> str:
        return f"it is loaded on request only: POST /v2/repository/models/{self._config.name}/load"

    def _empty(self, config: ModelConfig) -> str:
        hint = describe_base_path(config.base_path)
        return f"base path {config.base_path} {hint}" if hint else f"no version in {config.base_path} yet"

    def _complain(self, text: str) -> None:
        """Says once what is wrong, not at every poll."""
        if text and text != self._complaint:
            _LOG.warning("model %s: %s", self._config.name, text)
        self._complaint = text

    def _reconcile(self, aspired: Sequence[AnyVersion]) -> None:
        self._aspired = frozenset(item.number for item in aspired)
        self._unload_surplus()
        # The newest first: it is what most requests ask for.
        for item in reversed(aspired):
            if not self._stopping.is_set() and self._is_fresh(item):
                self._load_version(item)
                self._unload_surplus()

    def _is_fresh(self, item: AnyVersion) -> bool:
        known = self._versions.get(item.number)
        if known is None:
            return True
        if known.path != item.path:
            # The base path was changed, and the new one has a version of the same number.
            return known.rejected != (item.path, file_stamp(item.path))
        # A version that failed is tried again when its files change, one that was unloaded when it is aspired again.
        return known.state is VersionState.END and (known.error is None or known.stamp != file_stamp(item.path))

    def _unload_surplus(self) -> None:
        available = [version.number for version in self._versions.values() if version.available]
        aspired = self._aspired
        if self._labelled & aspired != aspired:
            # What is loaded for its label alone bridges no time until the newest version can answer.
            aspired, available = aspired - self._labelled, [each for each in available if each not in self._labelled]
        for number in surplus(aspired, available, resource_preserving=self._options.resource_preserving):
            self._unload(self._versions[number])

    def _load_version(self, item: AnyVersion) -> None:
        name = self._config.name
        version = Version(number=item.number, path=item.path, stamp=file_stamp(item.path))
        old = self._versions.get(item.number)
        if old is not None and self._options.resource_preserving:
            self._unload(old)
        with self._lock:
            if old is None or not old.available:
                if old is not None and old.suspended:
                    self._replaced.append(old)
                old = None
                self._versions[item.number] = version
        _LOG.info("loading model %s version %d from %s", name, item.number, item.path)
        started = time.perf_counter()
        result = self._try_load(item)
        if isinstance(result, ModelyardError):
            _LOG.error("model %s version %d cannot be served: %s", name, item.number, result.message)
            # From here on it is what callers are told.
            result.message = self._public(result.message)
        if isinstance(result, ArtifactError) and not isinstance(result, (IntegrityError, ManifestError, LoadError)):
            # The store was away: the next look is another try, though nothing has changed.
            version.stamp = ()
        with self._lock:
            if isinstance(result, Servable):
                version.servable, version.state = result, VersionState.AVAILABLE
                self._versions[item.number] = version
            elif old is not None:
                old.error, old.rejected = result, (version.path, version.stamp)
            else:
                version.error, version.state = result, VersionState.END
            self._lock.notify_all()
        if isinstance(result, Servable):
            if old is not None:
                self._unload(old)
            seconds = time.perf_counter() - started
            _LOG.info(
                "model %s version %d is AVAILABLE in %s after %.2f s", name, item.number, result.backend.name, seconds
            )

    def _try_load(self, item: AnyVersion) -> Servable | ModelyardError:
        config, tries = self._config, 0
        while True:
            try:
                with self._options.load_slots:
                    return self._load(config, item.number, self._cache.fetch(item))
            except ModelyardError as exc:
                return exc
            # The watcher must outlive whatever a model's files do to a runtime.
            except Exception as exc:
                _LOG.exception("loading model %s version %d failed unexpectedly", config.name, item.number)
                # Its text may hold anything.
                error = InternalError(f"Loading failed with {type(exc).__name__}. The server's log has the details.")
            tries += 1
            if tries > self._options.max_load_retries or self._stopping.wait(self._options.retry_interval_s):
                return error

    def _unload(self, version: Version, *, timeout_s: float | None = None) -> None:
        with self._lock:
            if not version.available:
                return
            version.state = VersionState.UNLOADING
            free = self._lock.wait_for(lambda: version.requests == 0 or version.suspended, timeout_s)
            if version.suspended or not free:
                return
            servable, version.servable = version.servable, None
            version.state = VersionState.END
        if servable is not None:
            servable.close()
            if not self._stopping.is_set():
                self._cache.forget(servable.path)
        _LOG.info("model %s version %d is unloaded", self._config.name, version.number)
