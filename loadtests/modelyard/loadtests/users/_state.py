"""What users of one process share: the options, the requests and the count of answers that agree."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gevent.event import Event
from locust.env import Environment

from modelyard.errors import LoadTestError
from modelyard.loadtests.options import LoadTestOptions
from modelyard.loadtests.traffic import Request

#: Attribute of Locust's environment that holds the state, and key of its messages between processes.
KEY = "modelyard"


@dataclass(kw_only=True)
class State:
    """Shared by the users of one process."""

    options: LoadTestOptions
    #: Where the requests come from, in a line.
    text: str
    #: Kinds of request that are sent.
    kinds: tuple[str, ...] = ()
    #: What is sent, by kind.
    requests: Mapping[str, Sequence[Request]] = field(default_factory=dict)
    #: A recording to send instead.
    recorded: tuple[Request, ...] = ()
    interrupted: bool = False
    _next: int = 0
    #: Rows in correct answers by kind of request, of those whose answer is known.
    counted: Counter[str] = field(default_factory=Counter)
    #: How many of them were answered as expected.
    matches: Counter[str] = field(default_factory=Counter)

    def next_recorded(self) -> Request:
        """The next recorded request; after the last comes the first."""
        request = self.recorded[self._next % len(self.recorded)]
        self._next += 1
        return request

    def take(self) -> dict[str, dict[str, int]]:
        """The counts so far, which start again from zero."""
        counts = {"counted": dict(self.counted), "matches": dict(self.matches)}
        self.counted.clear()
        self.matches.clear()
        return counts

    def add(self, counts: dict[str, dict[str, int]]) -> None:
        """Adds what another process counted."""
        self.counted.update(counts.get("counted", {}))
        self.matches.update(counts.get("matches", {}))


def state_of(environment: Environment) -> State:
    """The state that was installed in an environment of Locust.

    Waits for it: a worker is connected, and may be told to start users, before it has made its requests.
    """
    ready = getattr(environment.events, KEY, None)
    if not isinstance(ready, Event):
        raise LoadTestError("The locustfile must call modelyard.loadtests.users.install(locust.events).")
    ready.wait()
    found: State = getattr(environment, KEY)
    return found
