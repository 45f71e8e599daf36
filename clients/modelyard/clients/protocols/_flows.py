"""What every operation is: a flow of calls, with no I/O in it.

An operation is a generator: it yields a :class:`Call` (or a :class:`Pause`), receives an :class:`Answer`, and returns
the result. The client that drives it decides how bytes travel and how time passes, so that blocking and asynchronous
clients share every rule in here.

A :class:`Call` or an :class:`Answer` is never changed once it is sent. They are not frozen all the
same: every call makes some, and a frozen dataclass takes three times as long to make.
"""

from __future__ import annotations

import copy
import math
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NoReturn, TypeVar

from modelyard.clients.protocols._requests import DEFAULT_SIGNATURE, Target
from modelyard.clients.values import (
    Classification,
    InferenceTask,
    ModelConfig,
    ModelMetadata,
    ModelStatus,
    Prediction,
    Regression,
    SignatureInfo,
)
from modelyard.errors import (
    DeadlineExceededError,
    ModelNotFoundError,
    ModelyardError,
    UnavailableError,
    UnsupportedError,
)

_T = TypeVar("_T")

_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0
_LONGEST_POLL_S = 5.0
#: Signatures that are remembered, of all models that were asked for.
_MOST_KNOWN = 1000


@dataclass(kw_only=True, slots=True)
class Call:
    """One exchange with the server."""

    #: gRPC method, or path of the URL.
    path: str
    #: What is sent; None for a REST GET.
    body: bytes | None
    #: Seconds after which this one exchange counts as failed, its repetitions included, where that is sooner than the
    #: operation's deadline.
    at_most_s: float | None = None
    #: HTTP headers besides those of every call.
    headers: tuple[tuple[str, str], ...] = ()
    #: Whether sending it twice is the same as sending it once.
    retry: bool = True
    #: Whether it goes over a new connection. One that has waited may end at the very moment of the call, which could
    #: then not be sent again.
    fresh: bool = False
    #: Whether it only asks what the operation's own call needs to know.
    preparing: bool = False


@dataclass(slots=True)
class Answer:
    """What came back."""

    #: The message, or the HTTP body.
    body: bytes
    #: HTTP headers by lower-case name; empty over gRPC.
    headers: Mapping[str, str] = field(default_factory=dict)


class Question:
    """What one operation asks for all that need the same answer at the same time."""

    def __init__(self) -> None:
        self.answer: _Known | None = None
        self.error: ModelyardError | None = None
        self._lock = threading.Lock()
        self._waiting: list[Callable[[], object]] | None = []

    def then(self, wake: Callable[[], object]) -> None:
        """Calls a function when the question is over, at once where it is."""
        with self._lock:
            if self._waiting is not None:
                self._waiting.append(wake)
                return
        wake()

    def close(self) -> None:
        """Says that it is over: answered, failed or given up."""
        with self._lock:
            waiting, self._waiting = self._waiting or [], None
        for wake in waiting:
            wake()


@dataclass(frozen=True, kw_only=True)
class Pause:
    """Time to let pass, as far as the deadline lets it; less where a question is over sooner."""

    seconds: float
    until: Question | None = None


_Known = tuple[float, ModelMetadata]
Flow = Generator[Call | Pause, Answer, _T]


@dataclass(kw_only=True, slots=True)
class PredictCall:
    """The arguments of a predict; an empty signature is the default one, empty outputs are all."""

    target: Target
    inputs: Mapping[str, object]
    signature: str
    outputs: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class ExamplesCall:
    """The arguments of a classify, regress or multi-inference; ``context`` holds features that all examples share."""

    target: Target
    examples: object
    context: object
    signature: str = ""


class Protocol(ABC):
    """The operations over one protocol."""

    #: What it is called in messages.
    name = ""

    def __init__(self, *, metadata_ttl_s: float) -> None:
        self._ttl_s = metadata_ttl_s
        self._cache: dict[tuple[Target, str], _Known] = {}
        #: With the process: a fork leaves behind the threads that ask.
        self._questions: dict[tuple[int, Target, str], Question] = {}

    @abstractmethod
    def predict(self, call: PredictCall) -> Flow[Prediction]:
        """Computes outputs."""

    @abstractmethod
    def metadata(self, target: Target, signature: str = "") -> Flow[ModelMetadata]:
        """Describes a model's signatures, fresh from the server."""

    @abstractmethod
    def status(self, target: Target, at_most_s: float | None = None) -> Flow[ModelStatus]:
        """States of a model's versions."""

    @abstractmethod
    def probe(self) -> Flow[bool]:
        """Whether the server takes calls; the client that asks takes UNAVAILABLE for no."""

    def classify(self, call: ExamplesCall) -> Flow[Classification]:
        """Classifies examples."""
        self._unsupported("classify", "Use predict with the tensors of the signature.")

    def regress(self, call: ExamplesCall) -> Flow[Regression]:
        """Regresses examples."""
        self._unsupported("regress", "Use predict with the tensors of the signature.")

    def multi_inference(
        self, call: ExamplesCall, tasks: Sequence[InferenceTask]
    ) -> Flow[tuple[Classification | Regression, ...]]:
        """Runs several signatures over the same examples."""
        self._unsupported("multi_inference", "Use predict once for each signature.")

    def reload_config(self, models: Sequence[ModelConfig]) -> Flow[None]:
        """Replaces the server's list of models."""
        self._unsupported("reload_config", "TensorFlow Serving has it over gRPC only: connect to grpc://host:8500.")

    def wait_ready(self, target: Target, timeout_s: float) -> Flow[ModelStatus]:
        """Asks for the status until a version is available."""
        deadline = time.monotonic() + timeout_s
        pause = _FIRST_PAUSE_S
        last = "the server was not asked yet"
        while (left := deadline - time.monotonic()) > 0:
            try:
                status = yield from self.status(target, min(left, _LONGEST_POLL_S))
                if status.available:
                    return status
                states = [f"version {row.version} {row.state} {row.error_message}".rstrip() for row in status.versions]
                last = ", ".join(states) or "no versions"
            # Anything else (a wrong name of a host is UNAVAILABLE too) is not cured by waiting.
            except (UnavailableError, ModelNotFoundError, DeadlineExceededError) as exc:
                last = exc.message
            yield Pause(seconds=min(pause, max(0.0, deadline - time.monotonic())))
            pause = min(2 * pause, _LONGEST_PAUSE_S)
        raise DeadlineExceededError(f"Model {target.model!r} was not ready after {timeout_s:g} s: {last}")

    def known_signature(self, target: Target, name: str, *, fresh: bool = False) -> Flow[SignatureInfo | None]:
        """A signature from the cache or the server; None where the model has none of that name."""
        name = name or DEFAULT_SIGNATURE
        key = (target, name)
        found = self._cache.get(key)
        if fresh:
            found = yield from self._ask(key)
        elif found is None or (target.version is None and time.monotonic() - found[0] > self._ttl_s):
            found = yield from self._ask_once(key, found)
        return found[1].signatures.get(name)

    def _ask(self, key: tuple[Target, str]) -> Flow[_Known]:
        now = time.monotonic()
        metadata = yield from _preparing(self.metadata(*key))
        found = (now, metadata)
        if len(self._cache) > _MOST_KNOWN:
            # A server may name others in each of its answers.
            self._cache.clear()
        for known in (key[1], *metadata.signatures):
            self._cache[(key[0], known)] = found
        return found

    def _ask_once(self, key: tuple[Target, str], old: _Known | None) -> Flow[_Known]:
        """Asks, or waits for the answer to another operation that does."""
        asked = (os.getpid(), *key)
        while True:
            mine = Question()
            question = self._questions.setdefault(asked, mine)
            if question is mine:
                break
            yield Pause(seconds=math.inf, until=question)
            if question.answer is not None:
                return question.answer
            if question.error is not None:
                # Each has its own, which its client adds to.
                raise copy.copy(question.error) from question.error
            # The one that asked was cancelled or had less time: somebody else asks.
        try:
            found = self._cache.get(key)
            # Another thread may have ended its question between the look at the cache and the one for questions.
            if found is None or found is old:
                found = yield from self._ask(key)
            mine.answer = found
            return found
        except DeadlineExceededError:
            raise
        except ModelyardError as exc:
            mine.error = exc
            raise
        finally:
            del self._questions[asked]
            mine.close()
            # An error has this frame in its traceback: it would wait for the garbage collector.
            del mine, question

    def known_signatures(self, target: Target, name: str) -> Mapping[str, SignatureInfo]:
        """All signatures of a model, once :meth:`known_signature` has found one; none where it is forgotten again."""
        found = self._cache.get((target, name or DEFAULT_SIGNATURE))
        return {} if found is None else found[1].signatures

    def _unsupported(self, operation: str, cure: str) -> NoReturn:
        raise UnsupportedError(f"{self.name} has no {operation}. {cure}")


def _preparing(flow: Flow[_T]) -> Flow[_T]:
    """Marks the calls of a flow as preparations of another operation."""
    try:
        step = next(flow)
        while True:
            if isinstance(step, Call):
                step.preparing = True
            try:
                answer = yield step
            except ModelyardError as exc:
                step = flow.throw(exc)
            else:
                step = flow.send(answer)
    except StopIteration as stop:
        result: _T = stop.value
        return result
