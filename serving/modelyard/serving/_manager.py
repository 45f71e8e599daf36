"""The model manager: watches base paths, loads what is aspired, unloads what is not, and hands out servables.

A new version is loaded before the old one is unloaded, and the old one stays
where the new one fails. A servable that a request holds is unloaded only when
the last request has let go of it. One model's trouble never touches another's.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from modelyard.artifact import ModelVersion, list_versions
from modelyard.errors import (
    InternalError,
    InvalidModelSpecError,
    ModelNotFoundError,
    ModelyardError,
    UnavailableError,
)
from modelyard.serving._requests import ModelSpec
from modelyard.serving._servable import Servable
from modelyard.serving._states import VersionState, VersionStatus

_LOG = logging.getLogger("modelyard.serving")

Loader = Callable[[str, int, Path], Servable]


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """One model to serve.

    Attributes:
        name: Its name in requests.
        base_path: The directory with its versions.
        num_versions: How many of the newest versions to serve.
        labels: Version labels.
    """

    name: str
    base_path: Path
    num_versions: int = 1
    labels: Mapping[str, int] = field(default_factory=dict)


@dataclass
class _Version:
    """A version that the manager knows of."""

    number: int
    path: Path
    stamp: tuple[int, ...]
    state: VersionState = VersionState.START
    error: ModelyardError | None = None
    servable: Servable | None = None
    requests: int = 0


@dataclass
class _Model:
    """A model and its versions."""

    config: ModelConfig
    versions: dict[int, _Version] = field(default_factory=dict)
    polled: bool = False
    complaint: str = ""


class ModelManager:
    """Keeps the configured models loaded.

    Args:
        configs: The models.
        load: Loads one version; called on the manager's thread.
        poll_wait_s: Seconds between two looks at the base paths; 0 looks once,
            a negative number never looks.
    """

    def __init__(self, configs: Sequence[ModelConfig], load: Loader, *, poll_wait_s: float) -> None:
        self._load = load
        self._poll_wait_s = poll_wait_s
        self._lock = threading.Condition()
        self._models = {config.name: _Model(config=config) for config in configs}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="modelyard-manager", daemon=True)

    def start(self) -> None:
        """Starts to watch the base paths, on a thread of its own."""
        self._thread.start()

    def stop(self) -> None:
        """Stops watching and unloads everything, once no request holds it."""
        self._stopping.set()
        if self._thread.is_alive():
            self._thread.join()
        for model in self._models.values():
            for version in list(model.versions.values()):
                self._unload(model, version)

    def wait_until_polled(self, timeout_s: float) -> bool:
        """Waits until every model was looked at once and its versions were tried.

        Args:
            timeout_s: Seconds to wait at most.

        Returns:
            Whether that happened in time.
        """
        with self._lock:
            return self._lock.wait_for(lambda: all(model.polled for model in self._models.values()), timeout_s)

    @property
    def names(self) -> tuple[str, ...]:
        """The configured models."""
        return tuple(self._models)

    def ready(self, name: str) -> bool:
        """Whether a model has a version that can answer.

        Args:
            name: The model.
        """
        with self._lock:
            model = self._models.get(name)
            return model is not None and any(_is_available(version) for version in model.versions.values())

    @contextmanager
    def acquire(self, spec: ModelSpec) -> Iterator[Servable]:
        """Lends a servable; it stays loaded until it is given back.

        Args:
            spec: Which one.

        Yields:
            The servable.

        Raises:
            InvalidModelSpecError: No name, or an unknown version label.
            ModelNotFoundError: Unknown model or version.
            UnavailableError: The model is configured but was not loaded yet.
        """
        with self._lock:
            version = self._resolve(spec)
            version.requests += 1
            servable = version.servable
        if servable is None:
            raise InternalError(f"Version {version.number} of {spec.name!r} is AVAILABLE but empty. This is a bug.")
        try:
            yield servable
        finally:
            with self._lock:
                version.requests -= 1
                if version.requests == 0:
                    self._lock.notify_all()

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
        with self._lock:
            model = self._models.get(name)
            if model is None or not model.versions:
                raise ModelNotFoundError(f"Could not find any versions of model {name}{self._hint(name)}")
            versions = sorted(model.versions.values(), key=lambda item: item.number, reverse=True)
            if version is not None:
                versions = [item for item in versions if item.number == version]
                if not versions:
                    raise ModelNotFoundError(
                        f"Could not find version {version} of model {name}; it has {sorted(model.versions)}."
                    )
            return tuple(VersionStatus(version=item.number, state=item.state, error=item.error) for item in versions)

    def _resolve(self, spec: ModelSpec) -> _Version:
        if not spec.name:
            raise InvalidModelSpecError("ModelSpec has no name specified.")
        model = self._models.get(spec.name)
        if model is None:
            raise ModelNotFoundError(f"Servable not found for request: {spec.describe()}{self._hint(spec.name)}")
        wanted = spec.version
        if spec.label is not None:
            wanted = model.config.labels.get(spec.label)
            if wanted is None:
                known = ", ".join(sorted(model.config.labels)) or "no labels"
                raise InvalidModelSpecError(
                    f"Unrecognized servable version label: {spec.label}; model {spec.name!r} has {known}."
                )
        available = {number: version for number, version in model.versions.items() if _is_available(version)}
        if wanted is None and available:
            return available[max(available)]
        if wanted is not None and wanted in available:
            return available[wanted]
        if not available and not model.polled:
            raise UnavailableError(f"Model {spec.name!r} is still loading; try again in a moment.")
        if available:
            raise ModelNotFoundError(
                f"Servable not found for request: {spec.describe()}; loaded versions: {sorted(available)}."
            )
        reasons = [f"version {item.number}: {item.error.message}" for item in model.versions.values() if item.error]
        reason = "; ".join(reasons) or model.complaint or f"no version in {model.config.base_path}"
        raise ModelNotFoundError(f"Servable not found for request: {spec.describe()}; nothing is loaded: {reason}")

    def _hint(self, name: str) -> str:
        return "" if name in self._models else f"; the models here are: {', '.join(sorted(self._models))}."

    def _watch(self) -> None:
        while not self._stopping.is_set() and self._poll_wait_s >= 0:
            for model in self._models.values():
                if not self._stopping.is_set():
                    self._poll(model)
            if self._poll_wait_s == 0:
                return
            self._stopping.wait(self._poll_wait_s)

    def _poll(self, model: _Model) -> None:
        try:
            found = list_versions(model.config.base_path)
        except OSError as exc:
            # Nothing is unloaded because a disk or a mount is away for a moment.
            self._complain(model, f"base path {model.config.base_path} cannot be read: {exc.strerror}")
        else:
            self._complain(model, "" if found else f"no version in {model.config.base_path} yet")
            self._reconcile(model, found[-model.config.num_versions :])
        with self._lock:
            model.polled = True
            self._lock.notify_all()

    def _complain(self, model: _Model, text: str) -> None:
        """Says once what is wrong, not at every poll."""
        if text and text != model.complaint:
            _LOG.warning("model %s: %s", model.config.name, text)
        model.complaint = text

    def _reconcile(self, model: _Model, aspired: Sequence[ModelVersion]) -> None:
        numbers = {item.number for item in aspired}
        for item in aspired:
            known = model.versions.get(item.number)
            if known is None or (known.state is VersionState.END and known.stamp != _stamp(item.path)):
                self._load_version(model, item)
        replaced = not numbers or any(_is_available(model.versions[number]) for number in numbers)
        for version in list(model.versions.values()):
            if version.number not in numbers and replaced and _is_available(version):
                self._unload(model, version)

    def _load_version(self, model: _Model, item: ModelVersion) -> None:
        name = model.config.name
        version = _Version(number=item.number, path=item.path, stamp=_stamp(item.path), state=VersionState.LOADING)
        with self._lock:
            model.versions[item.number] = version
        _LOG.info("loading model %s version %d from %s", name, item.number, item.path)
        started = time.perf_counter()
        error: ModelyardError | None = None
        servable: Servable | None = None
        try:
            servable = self._load(name, item.number, item.path)
        except ModelyardError as exc:
            error = exc
        # The manager's thread serves every model: it must outlive whatever one model's files do to a runtime.
        except Exception as exc:
            _LOG.exception("loading model %s version %d failed unexpectedly", name, item.number)
            error = InternalError(f"Loading failed with {type(exc).__name__}: {exc}")
        with self._lock:
            version.servable, version.error = servable, error
            version.state = VersionState.AVAILABLE if servable is not None else VersionState.END
            self._lock.notify_all()
        if error is not None:
            _LOG.error("model %s version %d cannot be served: %s", name, item.number, error.message)
        elif servable is not None:
            _LOG.info(
                "model %s version %d is AVAILABLE in %s after %.2f s",
                name, item.number, servable.backend.name, time.perf_counter() - started,
            )  # fmt: skip

    def _unload(self, model: _Model, version: _Version) -> None:
        with self._lock:
            if not _is_available(version):
                return
            version.state = VersionState.UNLOADING
            self._lock.wait_for(lambda: version.requests == 0)
            servable, version.servable = version.servable, None
            version.state = VersionState.END
        if servable is not None:
            servable.close()
        _LOG.info("model %s version %d is unloaded", model.config.name, version.number)


def _is_available(version: _Version) -> bool:
    return version.state is VersionState.AVAILABLE


def _stamp(path: Path) -> tuple[int, ...]:
    """Changes when files of a version are replaced: a failed version is tried again only then."""
    try:
        stats = [item.stat() for item in sorted(path.rglob("*")) if item.is_file()]
    except OSError:
        return ()
    return tuple(value for stat in stats for value in (stat.st_mtime_ns, stat.st_size, stat.st_ino))
