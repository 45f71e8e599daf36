"""What a run leaves behind: one entry for each request, and what else was seen."""

from __future__ import annotations

import dataclasses
from array import array
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from modelyard.loadtests.generate._outcomes import Outcome
from modelyard.loadtests.options import Check, Measured, interruption

_REASONS = 200
#: Fields of a log with an entry for each request.
_ARRAYS = ("kind", "intended", "sent", "done", "outcome", "rows", "matches")


class Recorder:
    """Records the outcome of each request, cheaply."""

    def __init__(self) -> None:
        self.kinds: dict[str, int] = {}
        self.kind = array("H")
        self.intended = array("d")
        self.sent = array("d")
        self.done = array("d")
        self.outcome = array("B")
        self.rows = array("L")
        self.matches = array("L")
        self.reasons: Counter[str] = Counter()

    def add(
        self, kind: str, intended: float, sent: float, done: float, outcome: Outcome, rows: int, matches: int
    ) -> None:
        """Add a request; see :class:`Log` for the arguments, with times of the run's clock."""
        self.kind.append(self.kinds.setdefault(kind, len(self.kinds)))
        self.intended.append(intended)
        self.sent.append(sent)
        self.done.append(done)
        self.outcome.append(outcome)
        self.rows.append(rows)
        self.matches.append(matches)

    def reason(self, kind: str, text: str) -> None:
        """Counts why requests failed; of endlessly many reasons the first ones are kept."""
        key = f"{kind}: {text}"
        if key in self.reasons or len(self.reasons) < _REASONS:
            self.reasons[key] += 1
        else:
            self.reasons["other reasons"] += 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Log:
    """Every request of a run, in the order in which they ended."""

    #: Kinds of request.
    kinds: tuple[str, ...]
    #: Index into ``kinds``, uint16 ``[n]``.
    kind: npt.NDArray[np.uint16]
    #: When it was due, seconds since the begin, float64 ``[n]``.
    intended: npt.NDArray[np.float64]
    #: When it was sent, float64 ``[n]``.
    sent: npt.NDArray[np.float64]
    #: When its answer was there, float64 ``[n]``.
    done: npt.NDArray[np.float64]
    #: :class:`Outcome`, uint8 ``[n]``.
    outcome: npt.NDArray[np.uint8]
    #: Rows in a right answer of which it is known how they must be answered, int64 ``[n]``.
    rows: npt.NDArray[np.int64]
    #: How many of them were answered so, int64 ``[n]``.
    matches: npt.NDArray[np.int64]
    #: Length of the part of the run in which requests were due.
    seconds: float
    #: Length that it was to have, where it was interrupted; else None.
    planned: float | None = None
    #: Why requests failed, and how often.
    reasons: Mapping[str, int] = field(default_factory=dict)

    @property
    def latency_ms(self) -> npt.NDArray[np.float64]:
        """From the moment at which a request was due to its answer, float64 ``[n]``."""
        found: npt.NDArray[np.float64] = (self.done - self.intended) * 1000
        return found

    @property
    def ok(self) -> npt.NDArray[np.bool_]:
        """Whether each was answered rightly, bool ``[n]``."""
        return self.outcome == Outcome.OK

    @property
    def late_ms(self) -> npt.NDArray[np.float64]:
        """How late the generator itself was with each request, float64 ``[n]``."""
        found: npt.NDArray[np.float64] = (self.sent - self.intended) * 1000
        return found

    def part(self, chosen: npt.NDArray[np.bool_], seconds: float) -> Log:
        """Some of the requests, which were due within so many seconds."""
        arrays = {name: getattr(self, name)[chosen] for name in _ARRAYS}
        return dataclasses.replace(self, seconds=seconds, **arrays)

    def measured(self, name: str = "all") -> Measured:
        """The run, or a part of it, in one row."""
        ok = self.ok
        p50, p95, p99 = percentiles(self.latency_ms[ok], (50, 95, 99))
        return Measured(
            name=name,
            requests=len(ok),
            failures=int(np.sum(~ok)),
            refused=int(np.sum(self.outcome == Outcome.REFUSED)),
            p50_ms=p50,
            p95_ms=p95,
            p99_ms=p99,
            known=int(self.rows.sum()),
            matches=int(self.matches.sum()),
            seconds=self.seconds,
        )

    def interruption(self) -> list[Check]:
        """A broken limit where the run was interrupted."""
        return [] if self.planned is None else [interruption(self.seconds, self.planned)]

    def expecting(self, kinds: Iterable[str]) -> Log:
        """The same log, with a row also for those of the kinds of which no request was sent."""
        return dataclasses.replace(self, kinds=tuple(dict.fromkeys((*self.kinds, *kinds))))

    def by_kind(self) -> list[Measured]:
        """One row for each kind of request."""
        return [self.part(self.kind == index, self.seconds).measured(kind) for index, kind in enumerate(self.kinds)]


def percentiles(values: npt.NDArray[np.float64], wanted: Sequence[float]) -> list[float]:
    """Percentiles; 0 for no values."""
    return [0.0] * len(wanted) if not len(values) else [float(each) for each in np.percentile(values, wanted)]


def log_from(recorder: Recorder, begin: float, seconds: float) -> Log:
    """The recorded requests, with times since the clock's ``begin``."""
    return Log(
        kinds=tuple(recorder.kinds),
        kind=np.array(recorder.kind, dtype=np.uint16),
        intended=np.array(recorder.intended) - begin,
        sent=np.array(recorder.sent) - begin,
        done=np.array(recorder.done) - begin,
        outcome=np.array(recorder.outcome, dtype=np.uint8),
        rows=np.array(recorder.rows, dtype=np.int64),
        matches=np.array(recorder.matches, dtype=np.int64),
        seconds=seconds,
        reasons=dict(recorder.reasons.most_common()),
    )
