"""Sections that show examples: confusion matrices and the worst of them as pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from modelyard.export._compare import WORST_EXAMPLES
from modelyard.export._reference import Reference
from modelyard.export._verification import Verification, WorstExample
from modelyard.export.report._charts import confusion_matrix
from modelyard.export.report._images import picture
from modelyard.export.report._markup import Markup, element, join, section, table

_MOST_CLASSES = 40
_MOST_VALUES = 4


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
    size = int(max(len(data.class_names), data.labels.max() + 1, first.classes_before.max() + 1))
    title = "Confusion before and after"
    if size > _MOST_CLASSES:
        return section(title, lead=f"Not drawn: {size} classes are more than the {_MOST_CLASSES} that fit.")
    names = [*data.class_names, *(str(index) for index in range(len(data.class_names), size))]
    charts = [_matrix("Trained model", data.labels, first.classes_before, size, names)]
    for name, check in checks.items():
        charts.append(_matrix(name, data.labels, check.classes_after, size, names))
    return section(
        title,
        element("div", {"class": "charts wide"}, *charts),
        lead=f"True classes down, predicted classes across; {len(data.labels):,} labelled examples of "
        f"{reference.measured}.",
    )


def worst_section(reference: Reference, checks: Mapping[str, Verification]) -> Markup:
    """The examples on which the formats differ most from the source; those of variants apart.

    Args:
        reference: Brings the examples.
        checks: By format or variant.
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
    found = [(key, worst) for key, check in checks.items() for worst in check.worst]
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
        rows.append((title, _value(source, place), _value(exported, place)))
    answers = table(("", "model", format), rows)
    return element("div", {"class": "card"}, image, element("div", None, *lines), answers)


def _value(value: npt.NDArray[Any], place: int | None) -> str:
    flat = value.ravel().tolist()
    shown = flat[:_MOST_VALUES] if place is None else [flat[place]]
    return " ".join(_text(item) for item in shown)


def _text(item: object) -> str:
    if isinstance(item, bytes):
        return item.decode("utf-8", "replace")
    return f"{item:.7f}" if isinstance(item, float) else str(item)
