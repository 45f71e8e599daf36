"""Watches the base path of one model, loads aspired versions and unloads the others.

A new version is loaded before the old one is unloaded (or the other way round, where the options say that memory is
scarce), and the old one stays where the new one fails.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from modelyard.artifact import LABELS_NAME, AnyVersion, Location, read_labels
from modelyard.errors import ArtifactError, IntegrityError, InternalError, LoadError, ManifestError, ModelyardError
from modelyard.serving.backends import NoRoomError
from modelyard.serving.config import Complaints, ModelConfig, WatchOptions, describe_base_path
from modelyard.serving.repository._table import VersionTable
from modelyard.serving.repository._versions import Version, VersionFinder, VersionState, file_stamp, surplus
from modelyard.serving.servables import Servable

_LOG = logging.getLogger("modelyard.serving")

#: Loads a version of a model from its directory.
Loader = Callable[[ModelConfig, int, Path], Servable]

#: Seconds until the next poll where the only one failed.
_RETRY_S = 1.0


class ModelWatcher(VersionTable):
    """Keeps one model loaded, on a thread of its own: no other model waits for it.

    As soon as requests may get another version, and before an old one is unloaded, ``moved`` is called with its name.
    """

    def __init__(
        self,
        config: ModelConfig,
        load: Loader,
        options: WatchOptions,
        moved: Callable[[str], None] = lambda name: None,
    ) -> None:
        super().__init__(config, options.cache_dir, options.trusted_keys)
        self._load = load
        self._moved = moved
        self._options = options
        self._watching = False
        self._finder = VersionFinder()
        #: Whether a version could answer at any time since the model was last asked for.
        self.has_been_ready = False
        self._enabled = not options.explicit
        #: Whether this poll is a request's: what is loaded is loaded again where its files were replaced.
        self._asked = False
        #: Those of the aspired versions that the policy alone would not have loaded.
        self._labelled: frozenset[int] = frozenset()
        self._complaints = Complaints(_LOG, logging.WARNING)
        self._failures = Complaints(_LOG)
        #: Of versions that could not be loaded, whose files may be right: tries so far, and when the next is due.
        self._retries: dict[Location, tuple[int, float]] = {}
        self._problem = "" if self._enabled else self._not_requested()
        # Requests to load and the model's own thread must not reconcile at the same time.
        self._polling = threading.Lock()
        self._stopping = threading.Event()
        #: Whether copies of remote versions stay at a stop.
        self._keep_copies = False
        self._thread = self._new_thread()

    def _new_thread(self) -> threading.Thread:
        return threading.Thread(target=self._watch, name=f"modelyard-watch-{self._config.name}", daemon=True)

    def configure(self, config: ModelConfig) -> None:
        """Changes base path, policy and labels, and polls at once."""
        with self._lock:
            self._config = config
        self.look()

    def look(self) -> None:
        """Polls the base path now, whenever the next poll would be."""
        never = self._options.poll_wait_s < 0 and not self._options.explicit
        with self._lock:
            self._polled = never
            if not self._watching and not never:
                # Base paths are polled once only: this is another poll.
                self._watching, self._thread = True, self._new_thread()
                self._thread.start()
            # Under the lock: a thread that is about to end sees it.
            self._wake.set()

    @property
    def enabled(self) -> bool:
        """Whether the model is meant to be loaded; in explicit mode only after a request for it."""
        return self._enabled

    def is_settled(self) -> bool:
        """Whether the model is meant to be loaded, and its aspired versions were tried."""
        with self._lock:
            return self._enabled and self._polled

    def enable(self) -> None:
        """Loads the aspired versions, on the calling thread."""
        with self._lock:
            self._enabled, self._polled = True, False
        with self._polling:
            self._retries, self._asked = dict.fromkeys(self._retries, (0, 0.0)), True
        self._poll()
        reason = self.failure()
        if reason:
            raise LoadError(f"Model {self._config.name!r} cannot be loaded: {reason}")

    def disable(self) -> None:
        """Unloads every version, on the calling thread, once no request holds it."""
        self._enabled = False
        self._poll()
        # The next load is as the first one: nobody waits for it.
        self.has_been_ready = False

    def start(self) -> None:
        if self._options.explicit or self._options.poll_wait_s < 0:
            # Nothing will be loaded: requests must not be told to wait.
            self._polled = True
            if not self._options.explicit:
                self._complain("its base path is never polled: --file_system_poll_wait_seconds is negative")
            return
        with self._lock:
            if not self._watching:
                self._watching = True
                self._thread.start()

    def request_stop(self, *, keep_copies: bool) -> None:
        """Tells the thread to end, and wakes up the threads that wait for it; copies may serve the next start."""
        with self._lock:
            if not self._stopping.is_set():
                self._keep_copies = keep_copies
            self._stopping.set()
            self._lock.notify_all()
        self._wake.set()

    def stop(self, timeout_s: float | None = None) -> bool:
        """Ends the thread and unloads everything, once no request holds it; whether that was done in time."""
        # What was said before of copies stays.
        self.request_stop(keep_copies=False)
        end = None if timeout_s is None else time.monotonic() + timeout_s
        # On the model's own thread, or on that of a request to load it.
        idle = self._polling.acquire(timeout=-1 if timeout_s is None else timeout_s)
        if idle:
            self._polling.release()
        else:
            _LOG.warning("model %s: not waiting any longer for a version that is being loaded", self._config.name)
        for version in (*self._versions.values(), *self._replaced):
            self._unload(version, timeout_s=None if end is None else end - time.monotonic())
        return idle and not self.loaded()

    def wait_until_polled(self, timeout_s: float) -> bool:
        """Waits until the aspired versions were tried once, or the watcher stops; whether they were tried."""
        with self._lock:
            self._lock.wait_for(lambda: self._polled or self._stopping.is_set(), timeout_s)
            return self._polled

    def resume(self, servable: Servable) -> None:
        """Puts a suspended version in service again, or unloads it where it is not aspired any more."""
        for version in self._restore(servable):
            if version.number not in self._aspired or version in self._replaced or self._stopping.is_set():
                # Not by the caller, who watches for batches that hang: one of this version may be another of them.
                threading.Thread(target=self._unload, args=(version,), name="modelyard-unload", daemon=True).start()

    def _watch(self) -> None:
        while True:
            self._wake.clear()
            try:
                self._poll()
            # A thread that ended would never load anything again, and nothing would show it.
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
        """Whether the only poll has been made, with the configuration in force, and nothing is to be tried again."""
        with self._lock:
            self._watching = not self._polled or bool(self._retries) or self._wake.is_set()
            return not self._watching

    def _poll(self) -> None:
        with self._polling:
            config = self._config
            if self._stopping.is_set():
                return
            if self._enabled:
                self._look(config)
                self._asked = False
            else:
                self._problem = self._not_requested()
                self._reconcile(())
                self._file_labels.settle(())
        with self._lock:
            self._polled = config is self._config
            self._lock.notify_all()

    def _look(self, config: ModelConfig) -> None:
        try:
            found = self._finder.find(config.base_path)
        except OSError as exc:
            # Nothing is unloaded because a disk or a mount is away for a moment.
            hint = describe_base_path(config.base_path) if isinstance(exc, NotADirectoryError) else ""
            self._complain(f"base path {config.base_path} {hint or f'cannot be read: {exc.strerror or exc}'}")
        except ArtifactError as exc:
            self._complain(f"base path {config.base_path} cannot be read: {exc.message}")
        else:
            hint = "" if found else describe_base_path(config.base_path)
            empty = f"base path {config.base_path} {hint}" if hint else f"no version in {config.base_path} yet"
            self._complain("" if found else empty)
            self._read_labels(config)
            self._reconcile_labelled(config, found)
            if self._file_labels.settle(self._available()):
                _LOG.info("model %s: labels in force: %s", config.name, dict(self.labels) or "none")
                self._moved(config.name)
                # Versions that a label has left may not be needed any more.
                self._reconcile_labelled(config, found)
            self._complaints.say("dangling", self.dangling())

    def _reconcile_labelled(self, config: ModelConfig, found: Sequence[AnyVersion]) -> None:
        self._found = frozenset(version.number for version in found)
        needed = self._file_labels.needed() | self._kept
        aspired = config.policy.aspired(found, needed)
        by_policy = {version.number for version in config.policy.aspired(found)}
        self._labelled = frozenset(version.number for version in aspired if version.number not in by_policy)
        self._reconcile(aspired)
        self._load_last_good(config, found)

    def _load_last_good(self, config: ModelConfig, found: Sequence[AnyVersion]) -> None:
        """Loads an older version where no aspired one can be: a server that started before would have kept it."""
        if config.policy.specific is not None or self._options.explicit or self._options.resource_preserving:
            return
        if self.is_suspended() or set(self._available()) - self._labelled:
            return
        for item in reversed(found):
            if self.is_available(item.number) or self._stopping.is_set():
                return
            if item.number not in self._aspired and self._is_fresh(item):
                self._load_version(item)
                if self.is_available(item.number):
                    _LOG.warning("model %s: version %d is served until a newer one can be", config.name, item.number)
                    return

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
        self._complaints.say("labels", complaint and f"model {config.name}: {complaint}")

    def _not_requested(self) -> str:
        return f"it is loaded on request only: POST /v2/repository/models/{self._config.name}/load"

    def _complain(self, text: str) -> None:
        self._problem = text
        self._complaints.say("versions", text and f"model {self._config.name}: {text}")

    def _reconcile(self, aspired: Sequence[AnyVersion]) -> None:
        self._aspire(item.number for item in aspired)
        paths = [item.path for item in aspired]
        self._retries = {path: retry for path, retry in self._retries.items() if path in paths}
        self._unload_surplus()
        # The newest first: it is what most requests ask for.
        for item in reversed(aspired):
            known = self._versions.get(item.number)
            if known is not None and known.available and known.path == item.path:
                # What could not replace it is not asked for any more.
                known.error = known.rejected = None
            if not self._stopping.is_set() and self._is_fresh(item):
                self._load_version(item)
                self._unload_surplus()

    def _is_fresh(self, item: AnyVersion) -> bool:
        known = self._versions.get(item.number)
        if known is None or (item.path in self._retries and time.monotonic() >= self._retries[item.path][1]):
            return True
        return known.is_outdated(item.path, asked=self._asked)

    def _unload_surplus(self) -> None:
        aspired, available = self._aspired, self._available()
        if unlabelled := aspired - self._labelled:
            # A version that is loaded for its label alone does not stand in for the newest one.
            aspired, available = unlabelled, set(available) - self._labelled
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
        if isinstance(result, Servable) and isinstance(item.path, Path) and file_stamp(item.path) != version.stamp:
            # Half of a copy, or of a removal: a version whose manifest goes first must not be served unchecked.
            result.close()
            result = ArtifactError(f"{item.path} changed while it was loaded.")
        problem = ""
        if isinstance(result, ModelyardError):
            problem = f"model {name} version {item.number} cannot be served: {result.message}"
            # From here on, callers see it; its frames would keep what was read of the model.
            result.message = self._public(result.message)
            result.__traceback__ = result.__cause__ = result.__context__ = None
        self._failures.say(str(item.path), problem)
        if isinstance(result, ArtifactError) and not isinstance(result, (IntegrityError, ManifestError, LoadError)):
            # It could not be read, or not as it was: the next look is another try, though nothing has changed.
            version.stamp = ()
        with self._lock:
            if isinstance(result, Servable):
                version.servable, version.state = result, VersionState.AVAILABLE
                self._versions[item.number] = version
                if old is not None and old.servable is not None:
                    # Where its last batch does not end, that is seen here.
                    self._replaced.append(old)
            elif old is not None:
                old.error, old.rejected = result, (version.path, version.stamp)
            else:
                version.error, version.state = result, VersionState.END
            self._lock.notify_all()
        if isinstance(result, Servable):
            self.has_been_ready = True
            self._moved(name)
            if old is not None:
                self._unload(old)
            seconds, backend = time.perf_counter() - started, result.backend.name
            _LOG.info("model %s version %d is AVAILABLE in %s after %.2f s", name, item.number, backend, seconds)

    def _try_load(self, item: AnyVersion) -> Servable | ModelyardError:
        config = self._config
        tries, _ = self._retries.pop(item.path, (0, 0.0))
        copied = False
        error: ModelyardError
        try:
            # Outside of the slot: a store that stalls keeps no other model from loading.
            path = self._cache.fetch(item)
            copied = True
            with self._options.load_slots:
                return self._load(config, item.number, path)
        except ModelyardError as exc:
            # What was damaged on its way, or found no disk, may be whole in the store; memory may be left later.
            error, again = exc, isinstance(exc, NoRoomError if copied else (IntegrityError, LoadError))
        except OSError as exc:
            error, again = ArtifactError(f"{item.path} could not be read: {exc}"), False
        except MemoryError:
            error, again = LoadError(f"{item.path} needs more memory than there is."), True
        # The watcher must outlive whatever a model's files do to a runtime.
        except Exception as exc:
            _LOG.exception("loading model %s version %d failed unexpectedly", config.name, item.number)
            # Its text may contain anything.
            error = InternalError(f"Loading failed with {type(exc).__name__}. The server's log has the details.")
            again = True
        if again and tries < self._options.max_load_retries:
            # No request waits for it meanwhile: a newer version may be there before.
            self._retries[item.path] = (tries + 1, time.monotonic() + self._options.retry_interval_s)
        elif copied:
            self._cache.forget(path)
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
            version.state, version.error, version.rejected = VersionState.END, None, None
            self._replaced = [each for each in self._replaced if each is not version]
        if servable is None:
            return  # Its batch hung twice, and each time a thread was to unload it: the other one did.
        servable.close()
        # A replacement with the same content has the same copy.
        if not (self._keep_copies or any(each.path == servable.path for each in self.loaded())):
            self._cache.forget(servable.path)
        _LOG.info("model %s version %d is unloaded", self._config.name, version.number)
