"""The configured models, and a watcher for each."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager

from modelyard.errors import (
    InvalidModelSpecError,
    ModelNotFoundError,
    ModelNotReadyError,
    ServerError,
    UnavailableError,
    UnsupportedError,
)
from modelyard.serving.config import ModelConfig, WatchOptions
from modelyard.serving.repository._versions import VersionState, VersionStatus
from modelyard.serving.repository._watcher import Loader, ModelWatcher
from modelyard.serving.requests import ModelSpec
from modelyard.serving.servables import Servable

#: Answers requests that wait for a version: its servable, the threads that compute in it for longer than so many
#: seconds, and the text of the error.
GiveUp = Callable[[Servable, Sequence[int], float, str], None]

#: Longest wait at the end for versions that are being loaded, in seconds.
_STOP_S = 3.0


class ModelManager:
    """Keeps the configured models loaded and hands out their servables.

    Args:
        configs: The models.
        load: Loads one version; called on a model's own thread.
        options: How base paths are watched.
        allow_new_labels: A new label may point to a version that is not loaded.
        tell_names: Who asks for a model that is not there is told which there are.

    Raises:
        ModelNotReadyError: There are labels, and they may not point to versions that are not loaded.
    """

    def __init__(
        self,
        configs: Sequence[ModelConfig],
        load: Loader,
        options: WatchOptions,
        *,
        allow_new_labels: bool = False,
        tell_names: bool = True,
    ) -> None:
        self._load = load
        self._options = options
        self._allow_new_labels = allow_new_labels
        self._tell_names = tell_names
        self._reloading = threading.Lock()
        #: By model, what its traffic rule prefers and keeps; also for models that are added later.
        self._preferred: Mapping[str, tuple[ModelSpec | None, frozenset[int]]] = {}
        # Replaced, never changed: readers need no lock.
        self._watchers: dict[str, ModelWatcher] = {}
        for config in configs:
            self._check_labels(config)
        self._watchers = {config.name: self._watcher(config) for config in configs}
        # Models that a reload removed still answer status requests.
        self._retired: dict[str, ModelWatcher] = {}
        # Those that a reload added.
        self._added: frozenset[ModelWatcher] = frozenset()
        self._stopped = False
        #: Whether the server is about to stop.
        self.leaving = False
        self._give_up: list[GiveUp] = []
        self._when_configured: list[Callable[[str], None]] = []
        self._when_moved: list[Callable[[str], None]] = []
        self._when_gone: list[Callable[[str], None]] = []

    def when_configured(self, tell: Callable[[str], None]) -> None:
        """Calls ``tell`` with the name of each model whose configuration changes or goes, on any thread."""
        self._when_configured.append(tell)

    def when_moved(self, tell: Callable[[str], None]) -> None:
        """Calls ``tell`` with the name of a model as soon as requests may get another version, on any thread."""
        self._when_moved.append(tell)

    def when_gone(self, tell: Callable[[str], None]) -> None:
        """Calls ``tell`` with the name of a model that has left the configuration and is unloaded, on any thread."""
        self._when_gone.append(tell)

    def _leave(self, watcher: ModelWatcher) -> None:
        name = watcher.config.name
        if watcher.stop() and name not in self._watchers:
            for tell in self._when_gone:
                tell(name)

    def _moved(self, name: str) -> None:
        for tell in self._when_moved:
            tell(name)

    def _watcher(self, config: ModelConfig) -> ModelWatcher:
        watcher = ModelWatcher(config, self._load, self._options, self._moved)
        watcher.prefer(*self._preferred.get(config.name, (None, frozenset())))
        return watcher

    def prefer(self, preferred: Mapping[str, tuple[ModelSpec | None, frozenset[int]]]) -> None:
        """Sets by model the version of requests without one, and versions to keep; others use their newest version."""
        with self._reloading:
            self._preferred = dict(preferred)
            for name, watcher in self._watchers.items():
                watcher.prefer(*self._preferred.get(name, (None, frozenset())))

    def resolve(self, spec: ModelSpec) -> int | None:
        """The version that a spec means, where it can answer now; else None."""
        watcher = self._watchers.get(spec.name)
        if watcher is None:
            return None
        return watcher.number_of(spec)

    def start(self) -> None:
        """Starts to watch the base paths."""
        for watcher in self._watchers.values():
            watcher.start()

    def leave(self) -> None:
        """Reports nothing as ready from now on, and goes on serving: the server is about to stop."""
        self.leaving = True

    def loaded(self) -> list[Servable]:
        """Every version in memory, also of models that are not configured any more."""
        return [servable for watcher in self._all_watchers() for servable in watcher.loaded()]

    def _all_watchers(self) -> list[ModelWatcher]:
        # A copy: another thread may retire a model meanwhile.
        return [*self._watchers.values(), *list(self._retired.values())]

    def before_suspending(self, give_up: GiveUp) -> None:
        """Calls ``give_up`` whenever a batch takes too long, on the thread that found it."""
        self._give_up.append(give_up)

    def suspend(self, servable: Servable, text: str, *, threads: Sequence[int], limit_s: float) -> None:
        """Takes a version out of service until :meth:`resume`, and answers requests that wait for it.

        Args:
            servable: One of :meth:`loaded`.
            text: The error that they are answered with.
            threads: Threads whose batches take too long.
            limit_s: Seconds that these have taken at least.
        """
        for watcher in self._all_watchers():
            watcher.suspend(servable, UnavailableError(text))
        for give_up in self._give_up:
            give_up(servable, threads, limit_s, text)

    def resume(self, servable: Servable) -> None:
        """Ends what :meth:`suspend` began."""
        for watcher in self._all_watchers():
            watcher.resume(servable)

    def look(self) -> None:
        """Polls the base paths of all models now."""
        for watcher in self._watchers.values():
            watcher.look()

    def stop(self) -> bool:
        """Stops watching, and unloads every version once no request holds it.

        Returns:
            Whether everything is unloaded; a version that loads or computes for more than a few seconds is left behind.
        """
        with self._reloading:
            self._stopped = True
            watchers = self._all_watchers()
        for watcher in watchers:
            watcher.request_stop(keep_copies=True)
        end = time.monotonic() + _STOP_S
        return all([watcher.stop(max(0.0, end - time.monotonic())) for watcher in watchers])

    @property
    def names(self) -> tuple[str, ...]:
        """The configured models."""
        return tuple(self._watchers)

    @property
    def configs(self) -> tuple[ModelConfig, ...]:
        """The configuration in force."""
        return tuple(watcher.config for watcher in self._watchers.values())

    def labels(self, name: str) -> Mapping[str, int]:
        """The labels of a model that requests may name: of its configuration, and of ``labels.json``."""
        watcher = self._watchers.get(name)
        return {} if watcher is None else watcher.labels

    def reload(self, configs: Sequence[ModelConfig], *, timeout_s: float) -> None:
        """Replaces the configuration: models that are not in it are unloaded.

        Labels are checked first, against the versions that are loaded now; nothing is changed where one of them fails.
        What a model served before stays served until its new base path has something better.

        Args:
            configs: The new models.
            timeout_s: Seconds to wait until new base paths are looked at, and
                until what is gone is unloaded; 0 only begins with it.

        Raises:
            ModelNotReadyError: A label points to a version that is not loaded.
            ServerError: The configuration is in force, but a new model or one
                with a new base path did not become available while it was waited for.
        """
        end = time.monotonic() + timeout_s
        with self._reloading:
            if self._stopped:
                return
            for config in configs:
                self._check_labels(config)
            before = self._watchers
            watchers = {config.name: before.get(config.name) or self._watcher(config) for config in configs}
            new = [watcher for name, watcher in watchers.items() if name not in before]
            changed = [(watchers[config.name], config) for config in configs if watchers[config.name].config != config]
            moved = [watcher for watcher, config in changed if watcher.config.base_path != config.base_path]
            gone = [watcher for name, watcher in before.items() if name not in watchers]
            self._added = self._added.intersection(watchers.values()).union(new)
            self._retired |= {watcher.config.name: watcher for watcher in gone}
            for watcher in new:
                watcher.start()
            for watcher, config in changed:
                watcher.configure(config)
            for name in (*(config.name for _, config in changed), *(watcher.config.name for watcher in gone)):
                for tell in self._when_configured:
                    tell(name)
            # Before anything is waited for: one model that loads slowly keeps no other from coming or going.
            self._watchers = watchers
        leaving = [threading.Thread(target=self._leave, args=(watcher,), daemon=True) for watcher in gone]
        for thread in leaving:
            thread.start()
        if timeout_s == 0:
            return
        for watcher in (*new, *(watcher for watcher, _ in changed)):
            watcher.wait_until_polled(end - time.monotonic())
        for thread in leaving:
            thread.join(end - time.monotonic())
        reasons = {each.config.name: each.failure() for each in (*new, *moved) if each.enabled}
        failures = [f"{{{name}: {reason}}}" for name, reason in reasons.items() if reason]
        if failures:
            raise ServerError(f"{len(failures)} servable(s) did not become available: {{{', '.join(failures)}}}")

    def _check_labels(self, config: ModelConfig) -> None:
        known = self._watchers.get(config.name)
        for label, version in config.labels.items():
            if known is not None and known.is_available(version):
                continue
            current = None if known is None else known.config.labels.get(label)
            if not self._allow_new_labels or current not in (None, version):
                raise ModelNotReadyError(
                    f"Request to assign label {label!r} to version {version} of model {config.name}, which is not "
                    "currently available for inference. Load the version first, then set the label; new labels may be "
                    "set before with --allow_version_labels_for_unavailable_models."
                )

    def count_states(self) -> list[tuple[dict[str, str], int]]:
        """Versions of each model by state, for the metrics; without those that were unloaded."""
        found = []
        for name, watcher in self._watchers.items():
            counts = dict.fromkeys(("available", "loading", "unloading", "failed"), 0)
            for status in watcher.statuses():
                if status.state is VersionState.END:
                    counts["failed"] += status.error is not None
                else:
                    counts[status.state.name.lower()] += 1
            found += [({"model": name, "state": state}, count) for state, count in counts.items()]
        return found

    def ready(self, name: str) -> bool:
        """Whether a model has a version that can answer."""
        watcher = self._watchers.get(name)
        return not self.leaving and watcher is not None and watcher.is_ready()

    def is_settled(self, name: str) -> bool:
        """Whether a model is meant to be loaded, and nothing of it that was there is still to be tried."""
        watcher = self._watchers.get(name)
        return watcher is not None and watcher.is_settled()

    def all_ready(self) -> bool:
        """Whether every enabled model can answer; one that was added counts once it could.

        Otherwise a bad model, or one that is still copied, would take a server that answers for others out of service.
        A model whose batch does not end does not make the others unready: it counts where it is the only one.
        """
        watchers = [watcher for watcher in self._watchers.values() if watcher.enabled]
        others = [watcher for watcher in watchers if not watcher.is_suspended()]
        all_others = all(watcher.is_ready() or self._is_coming(watcher) for watcher in others)
        return not self.leaving and all_others and (bool(others) or not watchers)

    def is_starting(self, name: str) -> bool:
        """Whether a model that the server was started with could not answer yet."""
        watcher = self._watchers.get(name)
        return watcher is not None and not watcher.has_been_ready and not self._is_coming(watcher)

    def _is_coming(self, watcher: ModelWatcher) -> bool:
        return not watcher.has_been_ready and (watcher in self._added or self._options.explicit)

    def load_model(self, name: str) -> None:
        """Loads a model's aspired versions, on the calling thread; in explicit mode only.

        Raises:
            LoadError: A version cannot be loaded, or there is none.
            ModelNotFoundError: The model is not configured.
            UnsupportedError: The server is not in explicit mode.
        """
        self._controlled(name).enable()

    def unload_model(self, name: str) -> None:
        """Unloads a model, on the calling thread, once no request holds it; in explicit mode only.

        Raises:
            ModelNotFoundError: The model is not configured.
            UnsupportedError: The server is not in explicit mode.
        """
        self._controlled(name).disable()

    def _controlled(self, name: str) -> ModelWatcher:
        if not self._options.explicit:
            raise UnsupportedError(
                "Models are not loaded or unloaded on request here; start the server with "
                "--model_control_mode=explicit for that."
            )
        watcher = self._watchers.get(name)
        if watcher is None:
            raise ModelNotFoundError(f"Model {name!r} is not configured{self._hint()}")
        return watcher

    def wait_until_polled(self, timeout_s: float) -> bool:
        """Waits until every model's versions were tried once."""
        end = time.monotonic() + timeout_s
        return all(watcher.wait_until_polled(end - time.monotonic()) for watcher in self._watchers.values())

    def acquire(self, spec: ModelSpec) -> AbstractContextManager[Servable]:
        """A context with a servable, which stays loaded until the context ends.

        Raises:
            InvalidModelSpecError: No name, or an unknown version label.
            ModelNotFoundError: Unknown model or version.
            UnavailableError: The model is configured but was not loaded yet.
        """
        return self.watcher(spec).acquire(spec)

    def watcher(self, spec: ModelSpec) -> ModelWatcher:
        """The watcher of a model, for callers that hold a servable across callbacks.

        Raises:
            InvalidModelSpecError: No name.
            ModelNotFoundError: Unknown model.
        """
        if not spec.name:
            raise InvalidModelSpecError("ModelSpec has no name specified.")
        watcher = self._watchers.get(spec.name)
        if watcher is None:
            raise ModelNotFoundError(f"Servable not found for request: {spec.describe()}{self._hint()}")
        return watcher

    def status(self, name: str, version: int | None = None) -> tuple[VersionStatus, ...]:
        """States of a model's versions, newest first.

        Args:
            name: The model.
            version: One version; None for all.

        Raises:
            InvalidModelSpecError: No model name.
            ModelNotFoundError: Unknown model or version.
        """
        if not name:
            raise InvalidModelSpecError("ModelSpec has no name specified.")
        watcher = self._watchers.get(name) or self._retired.get(name)
        statuses = () if watcher is None else watcher.statuses()
        if not statuses:
            raise ModelNotFoundError(
                f"Could not find any versions of model {name}" + (self._hint() if watcher is None else "")
            )
        if version is None:
            return statuses
        found = tuple(status for status in statuses if status.version == version)
        if not found:
            raise ModelNotFoundError(
                f"Could not find version {version} of model {name}; it has {[status.version for status in statuses]}."
            )
        return found

    def _hint(self) -> str:
        if not self._tell_names:
            return ""
        names = ", ".join(sorted(self._watchers))
        return f"; the models here are: {names}." if names else "; there are no models here."
