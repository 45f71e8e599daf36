"""Random outputs: many draws of the source and of a format, and whether they are of one distribution.

Sixteen examples, spread over the data, are asked 512 times each, most draws as rows of a batch and some alone. Of an
output at most 64 elements are looked at, and their mean, in which elements that share their noise differ from elements
that do not. Every element is held to three two-sample Kolmogorov-Smirnov tests:

- of each example alone, the p-values combined by Fisher's method: it finds what
  is wrong on some examples, such as a mean that is another one;
- of all examples together, each centred by its median and divided by its mean
  deviation, of both samples: it finds another shape;
- of the absolute values of those: it finds another scale.

The smallest p-value, times the number of tests of the output (Bonferroni), must not be below 0.0001: of ten thousand
right exports one is refused by chance. Of normal noise a scale that is wrong by a fifth is found, and a shift by a
fifth of the standard deviation. Draws are compared with the tolerance that floats have: rounding is no other
distribution.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from modelyard.artifact import StochasticOutput
from modelyard.errors import VerificationError

EXAMPLES = 16
DRAWS = 512
SIGNIFICANCE = 1e-4
_ELEMENTS = 64
#: So many draws come in calls of their own.
_ALONE = 32
#: Less than this share of the different answers of the source is a repetition.
_FRESH = 0.5

Floats = npt.NDArray[np.float64]
Arrays = Mapping[str, npt.NDArray[np.generic]]


def take_draws(
    call: Callable[[Arrays], Mapping[str, npt.NDArray[np.generic]]],
    inputs: Arrays,
    outputs: tuple[str, ...],
    *,
    batch_size: int,
) -> dict[str, Floats]:
    """Asks for the same examples many times."""
    count = len(next(iter(inputs.values())))
    found: dict[str, list[list[Floats]]] = {name: [] for name in outputs}
    for index in np.unique(np.linspace(0, count - 1, min(EXAMPLES, count)).round().astype(np.int64)):
        drawn: dict[str, list[Floats]] = {name: [] for name in outputs}
        for size in _sizes(batch_size):
            answers = call({key: np.repeat(values[index : index + 1], size, axis=0) for key, values in inputs.items()})
            for name in outputs:
                if answers[name].shape[:1] != (size,):
                    raise VerificationError(
                        f"Output {name!r} is listed in --stochastic (ExportOptions.stochastic) and has the shape "
                        f"{list(answers[name].shape)} for {size} examples; only outputs with a row for each example "
                        "can be compared in distribution."
                    )
                drawn[name].append(_elements(answers[name]))
        for name, parts in drawn.items():
            found[name].append(parts)
    try:
        return {name: np.stack([np.concatenate(parts) for parts in values]) for name, values in found.items()}
    except ValueError as exc:
        raise VerificationError(
            f"The random outputs {', '.join(outputs)} have other shapes in other calls; only outputs of one shape can "
            "be compared in distribution."
        ) from exc


def compare_draws(signature: str, output: str, ours: Floats, theirs: Floats, *, slack: float) -> StochasticOutput:
    """Holds the draws of a format to those of its source."""
    examples, draws, elements = ours.shape
    place = f"random output {output!r} of signature {signature!r}"
    distinct = [sum(len(np.unique(example, axis=0)) for example in each) for each in (ours, theirs)]
    if distinct[1] < _FRESH * distinct[0]:
        raise VerificationError(
            f"{place} repeats itself: {distinct[1]} different answers in {examples * draws} draws, where the source "
            f"has {distinct[0]}. It does not draw anew for every call and row."
        )
    lowest, distance = 1.0, 0.0
    for element in range(elements):
        first, second = ours[:, :, element], theirs[:, :, element]
        p, d = _test(first, second, slack)
        if p < lowest or (p == lowest and d > distance):
            lowest, distance = p, d
    p_value = min(1.0, 3 * elements * lowest)
    if p_value < SIGNIFICANCE:
        spreads = [float(np.median(each.std(axis=1))) for each in (ours, theirs)]
        raise VerificationError(
            f"{place} has another distribution than in the source: two-sample Kolmogorov-Smirnov tests on {examples} "
            f"examples with {draws} draws each give p = {p_value:.2g}, expected at least {SIGNIFICANCE:g} (largest "
            f"distance {distance:.3f}; standard deviation {spreads[0]:.4g} in the source, {spreads[1]:.4g} here)."
        )
    return StochasticOutput(
        signature=signature, output=output, examples=examples, draws=draws, elements=elements, distance=distance,
        p_value=p_value, significance=SIGNIFICANCE,
    )  # fmt: skip


def _sizes(batch_size: int) -> Iterator[int]:
    together = DRAWS - _ALONE
    while together > 0:
        yield min(batch_size, together)
        together -= batch_size
    yield from [1] * _ALONE


def _elements(values: npt.NDArray[np.generic]) -> Floats:
    """Some elements of each row, and the mean of all; of text, numbers that stand for it."""
    rows = values.reshape(len(values), -1)
    if rows.dtype.kind not in "OSU":
        wide = rows.astype(np.float64)
        return np.column_stack([wide[:, _spread(wide.shape[1])], wide.mean(axis=1)])
    chosen = rows[:, _spread(rows.shape[1])]
    numbers = [int.from_bytes(hashlib.sha256(bytes(item)).digest()[:6]) for item in chosen.ravel().tolist()]
    return np.array(numbers, np.float64).reshape(chosen.shape)


def _spread(count: int) -> npt.NDArray[np.int64]:
    return np.unique(np.linspace(0, count - 1, min(_ELEMENTS, count)).round().astype(np.int64))


def _test(first: Floats, second: Floats, slack: float) -> tuple[float, float]:
    """The smallest p-value of the three tests of one element ``[examples, draws]``, and the largest distance."""
    alone = [_distance(a, b, np.full(len(a), slack)) for a, b in zip(first, second, strict=True)]
    draws = first.shape[1]
    p_alone = _combined([_p_value(each, draws) for each in alone])
    both = np.concatenate([first, second], axis=1)
    center = np.median(both, axis=1, keepdims=True)
    scale = np.abs(both - center).mean(axis=1, keepdims=True)
    scale = np.where(scale > 0, scale, 1.0)
    a, b = (((each - center) / scale).ravel() for each in (first, second))
    slacks = np.broadcast_to(slack / scale, first.shape).ravel()
    together = [_distance(a, b, slacks), _distance(np.abs(a), np.abs(b), slacks)]
    return min(p_alone, *(_p_value(each, len(a)) for each in together)), max(together)


def _distance(a: Floats, b: Floats, slack: Floats) -> float:
    """The Kolmogorov-Smirnov distance of two samples of one size; values are alike that differ by the slack."""
    size = len(a)
    heights = np.arange(1, size + 1) / size
    found = 0.0
    for one, other in ((a, b), (b, a)):
        above = np.searchsorted(np.sort(other - slack), np.sort(one), "right") / size
        found = max(found, float((heights - above).max()))
    return found


def _p_value(distance: float, size: int) -> float:
    """Of two samples of one size, by Kolmogorov's limit."""
    x = distance * math.sqrt(size / 2)
    if x < 0.3:
        # The series needs many terms there, and its sum is 1 to five digits.
        return 1.0
    return min(1.0, 2 * sum((-1) ** (k - 1) * math.exp(-2 * (k * x) ** 2) for k in range(1, 20)))


def _combined(p_values: list[float]) -> float:
    """Fisher's method: minus two log p sums up to chi-squared with two degrees of freedom each, an Erlang sum."""
    half = -sum(math.log(max(each, 1e-300)) for each in p_values)
    logs = [
        k * math.log(half) - math.lgamma(k + 1) if half else (0.0 if k == 0 else -math.inf)
        for k in range(len(p_values))
    ]
    return min(1.0, sum(math.exp(each - half) for each in logs))
