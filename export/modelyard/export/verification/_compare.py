"""Compares answers of a format with answers of its source, one signature at a time."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.artifact import Signature, TensorSpec
from modelyard.errors import VerificationError
from modelyard.export.sources import FLOATS, is_constant
from modelyard.export.verification._verification import ERROR_EDGES, WorstExample

WORST_EXAMPLES = 16
# Relative error of a value near zero says nothing: below this the absolute error is what counts.
_RELATIVE_FLOOR = 1e-6
# Logits are masked by -1e9 and by the least number that there is.
_MASK = 1e8
# Roundings in a row, each of half a unit in the last place of a float32.
_ROUNDING = 32

Answers = Mapping[str, npt.NDArray[Any]]


@dataclass(kw_only=True)
class Comparison:
    """Sums up every comparison of one format."""

    #: For messages.
    format: str
    #: Allowed in a float output that spreads over 1 or less.
    max_abs_error: float
    #: Allowed as a share of the spread.
    max_spread_error: float = 1.0
    #: Only NaN, infinity and outputs that became constant are failures: how far everything else may be off is for a
    #: budget to say.
    lossy: bool = False
    worst_abs: float = 0.0
    worst_rel: float = 0.0
    #: Largest absolute error.
    by_signature: dict[str, float] = field(default_factory=dict)
    #: By signature, the largest error as a share of its output's spread.
    spread_error: dict[str, float] = field(default_factory=dict)
    #: By signature, the largest share of examples of which an integer or string output changed.
    changed: dict[str, float] = field(default_factory=dict)
    #: Values in each decade of absolute error.
    histogram: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(len(ERROR_EDGES) + 1, np.int64))
    worst: list[WorstExample] = field(default_factory=list)

    def add(
        self,
        name: str,
        signature: Signature,
        batch_size: int,
        expected: Answers,
        received: Answers,
        *,
        count: int,
        random: Collection[str] = (),
    ) -> None:
        """Compares all answers of one signature at one batch size."""
        expected = {key: values for key, values in expected.items() if key not in random}
        findings: list[tuple[float, str]] = []
        rows, largest = np.zeros(count), 0.0
        for spec in signature.outputs:
            if spec.name in random:
                continue
            ours, theirs = expected[spec.name], received[spec.name]
            if spec.dtype not in FLOATS:
                finding = _compare_exactly(spec, ours, theirs)
                self.changed[name] = max([self.changed.get(name, 0.0), *(share for share, _ in finding)])
                findings += [] if self.lossy else finding
                continue
            error, finding = self._compare_floats(name, spec, ours, theirs)
            largest = max(largest, float(error.max(initial=0.0)))
            if len(error) == count:
                rows = np.maximum(rows, error.reshape(count, -1).max(axis=1, initial=0.0))
            findings += finding
        if findings:
            findings.sort(key=lambda finding: -finding[0])
            details = " ".join(text for _, text in findings)
            raise VerificationError(
                f"Format {self.format}, signature {name!r}, batch size {batch_size}: it does not compute what its "
                f"source computes. Worst output first: {details} Nothing was published from it."
            )
        self.by_signature[name] = max(self.by_signature.get(name, 0.0), largest)
        if all(len(values) == count for values in expected.values()):
            self._keep_worst(name, rows, expected, received)

    def _compare_floats(
        self, name: str, spec: TensorSpec, ours: npt.NDArray[Any], theirs: npt.NDArray[Any]
    ) -> tuple[npt.NDArray[np.float64], list[tuple[float, str]]]:
        source, exported = ours.astype(np.float64), theirs.astype(np.float64)
        finite = np.isfinite(source)
        different = ~((np.isfinite(exported) & finite) | (exported == source) | (np.isnan(exported) & np.isnan(source)))
        if different.any():
            bad = len({*np.nonzero(different)[0].tolist()})
            text = (
                f"output {spec.name!r} is NaN or infinite in {bad} of {len(ours)} examples where the source is not, or "
                "the other way round: an error without bound."
            )
            return np.zeros_like(source), [(float("inf"), text)]
        # What the source masks, by NaN, infinity or a large number that stands for it, is equal, and says nothing of
        # how far the other values spread.
        shown = finite & ~((np.abs(source) >= _MASK) & (source == exported))
        spread = float(np.ptp(source[shown])) if shown.any() else 0.0
        source, exported = np.where(shown, source, 0.0), np.where(shown, exported, 0.0)
        error = np.abs(exported - source)
        worst = float(error.max(initial=0.0))
        allowed, limit = self.max_abs_error * max(1.0, spread), float("inf")
        if spread > 0:
            # What rounding alone does to values far from zero is no fault of a converter.
            rounding = _ROUNDING * float(np.abs(source).max()) * float(np.finfo(np.float32).eps)
            limit = max(self.max_spread_error * spread, rounding)
            allowed = min(allowed, limit)
        lost = is_constant(exported) and not is_constant(source)
        if self.lossy:
            allowed = float("inf")
            if lost:
                text = f"output {spec.name!r} is the same for every example, which it is not in the source."
                return error, [(worst, text)]
        share = worst / spread if spread else 0.0 if worst == 0 else 1.0
        self.spread_error[name] = max(self.spread_error.get(name, 0.0), share)
        if worst > allowed:
            place = np.unravel_index(int(error.argmax()), error.shape)
            text = (
                f"output {spec.name!r} has an absolute error of {worst:.3g}, allowed is {allowed:.3g} "
                f"where the source spreads over {spread:.3g} (example {int(place[0])}: source {source[place]:.6g}, "
                f"{self.format} {exported[place]:.6g})."
            )
            if lost:
                text += " It is the same for every example: the converter has lost the weights."
            elif worst <= limit:
                enough = 1.1 * worst / max(1.0, spread)
                text += f" To allow it: --tolerance {enough:.2g} (in Python ExportOptions.max_abs_error)."
            return error, [(worst, text)]
        self.worst_abs = max(self.worst_abs, worst)
        self.worst_rel = max(
            self.worst_rel, float((error / np.maximum(np.abs(source), _RELATIVE_FLOOR)).max(initial=0))
        )
        self.histogram += np.bincount(
            np.searchsorted(ERROR_EDGES, error.ravel(), "right"), minlength=len(self.histogram)
        )
        return error, []

    def _keep_worst(self, name: str, rows: npt.NDArray[np.float64], expected: Answers, received: Answers) -> None:
        for index in np.argsort(-rows, kind="stable")[:WORST_EXAMPLES].tolist():
            if any(each.signature == name and each.index == index and each.error >= rows[index] for each in self.worst):
                continue
            # The same example at another batch size: keep its larger error.
            self.worst = [each for each in self.worst if (each.signature, each.index) != (name, index)]
            self.worst.append(
                WorstExample(
                    signature=name,
                    index=index,
                    error=float(rows[index]),
                    source={key: values[index] for key, values in expected.items()},
                    exported={key: received[key][index] for key in expected},
                )
            )
        self.worst.sort(key=lambda each: -each.error)
        del self.worst[WORST_EXAMPLES:]


def check_answer(format: str, name: str, signature: Signature, expected: Answers, received: Answers) -> None:
    """Checks names, dtypes and shapes of one answer."""
    place = f"Format {format}, signature {name!r}"
    if set(received) != set(expected):
        raise VerificationError(f"{place}: outputs are {sorted(received)}; expected {sorted(expected)}.")
    for spec in signature.outputs:
        ours, theirs = expected[spec.name], received[spec.name]
        if theirs.dtype != ours.dtype or theirs.shape != ours.shape:
            raise VerificationError(
                f"{place}: output {spec.name!r} is {theirs.dtype} {list(theirs.shape)}; expected {ours.dtype} "
                f"{list(ours.shape)}."
            )


def _compare_exactly(spec: TensorSpec, ours: npt.NDArray[Any], theirs: npt.NDArray[Any]) -> list[tuple[float, str]]:
    if not ours.size:
        return []
    different = np.nonzero((ours != theirs).reshape(len(ours), -1).any(axis=1))[0]
    if not len(different):
        return []
    index = int(different[0])
    text = (
        f"output {spec.name!r} differs in {len(different)} of {len(ours)} examples, all must be equal "
        f"(example {index}: source {ours[index]}, exported {theirs[index]})."
    )
    # Sorted after a float output that is worse than 1, before one that is nearly right.
    return [(len(different) / len(ours), text)]
