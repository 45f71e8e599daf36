"""Sections that show examples: what becomes of each class, and the worst of them as pictures."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.export.report._charts import confusion_matrix
from modelyard.export.report._images import picture
from modelyard.export.report._markup import Markup, element, join, section, table
from modelyard.export.sources import Reference
from modelyard.export.verification import WORST_EXAMPLES, Verification, WorstExample

_MOST_CLASSES = 40
_MOST_VALUES = 4
_DECIMALS, _MOST_DECIMALS = 7, 12


def confusion_section(reference: Reference, checks: Mapping[str, Verification]) -> Markup:
    """Confusion matrices of the source and of every format.

    Args:
        reference: Brings labels and class names.
        checks: By format.

    Returns:
        Nothing where there are no labels.
    """
    data = reference.data
    if data.labels is None or reference.measured is None:
        return Markup("")
    first = next(iter(checks.values()))
    names = _class_names(reference, first)
    size = len(names)
    title = "Confusion before and after"
    if size > _MOST_CLASSES:
        return section(title, lead=f"Not drawn: {size} classes are more than the {_MOST_CLASSES} that fit.")
    charts = [_matrix("Trained model", data.labels, first.classes_before, size, names)]
    for name, check in checks.items():
        charts.append(_matrix(name, data.labels, check.classes_after, size, names))
    return section(
        title,
        element("div", {"class": "charts wide"}, *charts),
        lead=f"True classes down, predicted classes across; {len(data.labels):,} labelled examples of "
        f"{reference.measured}.",
    )


def class_section(reference: Reference, checks: Mapping[str, Verification]) -> Markup:
    """Accuracy of the source and of every format on each class.

    Args:
        reference: Brings labels and class names.
        checks: By format.

    Returns:
        Nothing where there are no labels.
    """
    data = reference.data
    if data.labels is None or reference.measured is None:
        return Markup("")
    first = next(iter(checks.values()))
    answers = [first.classes_before, *(check.classes_after for check in checks.values())]
    rows = []
    for index, name in enumerate(_class_names(reference, first)):
        of_class = data.labels == index
        count = int(of_class.sum())
        if count:
            right = [int((classes[of_class] == index).sum()) for classes in answers]
            rows.append((max(abs(each - right[0]) / count for each in right), name, count, right))
    lead = "Share of the examples of each class that are recognized; bold where a format differs from the model."
    if len(rows) > _MOST_CLASSES:
        lead += f" The {_MOST_CLASSES} of {len(rows)} classes that change most."
        rows = sorted(rows, key=lambda row: (-row[0], row[3][0] / row[2]))[:_MOST_CLASSES]
    cells = [
        (name, f"{count:,}", *(_share(each, count, changed=each != right[0]) for each in right))
        for _, name, count, right in rows
    ]
    header = ("Class", "Examples", "Trained model", *checks)
    return section("Accuracy of each class", table(header, cells, numbers=frozenset(range(1, len(header)))), lead=lead)


def _share(right: int, count: int, *, changed: bool) -> Markup:
    text = f"{right / count:.1%}"
    return element("strong", None, text) if changed else Markup(text)


def _class_names(reference: Reference, check: Verification) -> list[str]:
    data = reference.data
    highest = max(int(each.max(initial=-1)) for each in (np.asarray(data.labels), check.classes_before))
    return [*data.class_names, *(str(index) for index in range(len(data.class_names), highest + 1))]


def worst_section(reference: Reference, checks: Mapping[str, Verification]) -> Markup:
    """The examples on which the formats differ most from the source; those of variants apart.

    Args:
        reference: Brings the examples.
        checks: By format or variant.

    Returns:
        Nothing of formats without an error.
    """
    exact = {key: check for key, check in checks.items() if check.precision == "float32"}
    variants = {key: check for key, check in checks.items() if check.precision != "float32"}
    return join(
        (
            _worst(reference, exact, "", "Where an exported format is furthest from the trained model."),
            _worst(reference, variants, " of the variants", "Where lower precision is furthest from it."),
        )
    )


def _worst(reference: Reference, checks: Mapping[str, Verification], what: str, lead: str) -> Markup:
    found = [(key, worst) for key, check in checks.items() for worst in check.worst if worst.error > 0]
    found.sort(key=lambda each: -each[1].error)
    cards = [_card(reference, key, worst) for key, worst in found[:WORST_EXAMPLES]]
    if not cards:
        return Markup("")
    return section(f"Worst {len(cards)} examples{what}", element("div", {"class": "cards"}, *cards), lead=lead)


def _matrix(
    name: str, labels: npt.NDArray[np.int64], classes: npt.NDArray[np.int64], size: int, names: list[str]
) -> Markup:
    matrix = np.zeros((size, size), np.int64)
    np.add.at(matrix, (labels, classes), 1)
    accuracy = float((labels == classes).mean())
    chart = confusion_matrix(matrix, names, title=f"Confusion matrix of {name}")
    return element("div", {"class": "chart"}, element("h3", None, f"{name}: {accuracy:.2%}"), chart)


def _card(reference: Reference, format: str, worst: WorstExample) -> Markup:
    data = reference.data
    image = picture(reference.source.signatures[worst.signature], dict(data.inputs[worst.signature]), worst.index)
    lines = [
        element("p", {"class": "error"}, f"{worst.error:.2e} in {format}"),
        element("p", {"class": "quiet"}, f"{worst.signature}, example {worst.index}"),
    ]
    if data.labels is not None and worst.index < len(data.labels):
        label = int(data.labels[worst.index])
        name = data.class_names[label] if label < len(data.class_names) else str(label)
        lines.append(element("p", None, f"true: {name}"))
    rows = []
    for name in sorted(worst.source):
        source, exported = np.asarray(worst.source[name]), np.asarray(worst.exported[name])
        # Of a long vector the largest entry is what people look for.
        place = int(np.argmax(source)) if source.dtype.kind == "f" and source.size > _MOST_VALUES else None
        title = name if place is None else f"{name}[{place}]"
        rows.append((title, *(_value(each, place, _decimals(worst.error)) for each in (source, exported))))
    answers = table(("", "model", format), rows)
    what = element("div", {"class": "what"}, *lines)
    # A picture is beside the words, values are below them.
    parts = (image, what) if image.startswith("<img") else (what, image)
    return element("div", {"class": "card"}, *parts, answers)


def _value(value: npt.NDArray[Any], place: int | None, decimals: int) -> str:
    flat = value.ravel().tolist()
    shown = flat[:_MOST_VALUES] if place is None else [flat[place]]
    return " ".join(_text(item, decimals) for item in shown)


def _decimals(error: float) -> int:
    """As many as it takes to see an error."""
    if not 0 < error < 1:
        return _DECIMALS
    return min(max(_DECIMALS, 1 - math.floor(math.log10(error))), _MOST_DECIMALS)


def _text(item: object, decimals: int) -> str:
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    return f"{item:.{decimals}f}" if isinstance(item, float) else str(item)
