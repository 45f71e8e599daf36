"""The page must be whole, self-contained and safe to open."""

from __future__ import annotations

import base64
import io
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from modelyard.artifact import Latency, Source
from modelyard.export import Reference, verify
from modelyard.export.report import ReportContent, render_report
from tests.export.conftest import OPTIONS


class Reader(HTMLParser):
    """Collects tags and text, and fails where tags do not nest."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in ("img", "meta"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] not in ("style",):
            self.text.append(data)


@pytest.fixture(scope="module")
def content(reference: Reference, converted: Path) -> ReportContent:
    checks = {name: verify(reference, converted, format=name, options=OPTIONS) for name in ("onnx", "tflite")}
    latency = tuple(
        Latency(format=format, runtime=runtime, signature=name, batch_size=1, threads=1, p50_us=time)
        for format, runtime, time in (("onnx", "onnxruntime", 34.0), ("tflite", "litert", 1234.0))
        for name in reference.source.signatures
    )
    return ReportContent(
        model="<script>alert(1)</script>",
        number=7,
        created="2026-01-02T03:04:05+00:00",
        source=Source(task="toy & co", config={"path": "<i>"}, metrics={"accuracy": 0.5}),
        reference=reference,
        checks=checks,
        skipped={"saved_model": 'because of "<b>"'},
        latency=latency,
        max_abs_error=1e-5,
    )


@pytest.fixture(scope="module")
def page(content: ReportContent) -> str:
    return render_report(content)


def test_it_is_well_formed_and_whole(page: str) -> None:
    reader = Reader(page)
    assert reader.open == []
    text = " ".join(reader.text)
    for heading in (
        "Formats",
        "Errors",
        "Latency",
        "Signatures",
        "Confusion before and after",
        "Accuracy of each class",
        "Worst 16 examples",
    ):
        assert heading in text
    assert "version 7" in text and "onnxruntime" in text and "1.23 ms" in text and "34 µs" in text
    # One histogram for each format, bars for each signature, three confusion matrices.
    assert [tag for tag, _ in reader.tags].count("svg") == 2
    assert (page.count('<div class="bars">'), page.count('<table class="matrix">')) == (3, 3)


def test_what_comes_from_outside_is_escaped(page: str) -> None:
    reader = Reader(page)
    assert not {"script", "b", "i", "a", "iframe", "link"} & {tag for tag, _ in reader.tags}
    text = "".join(reader.text)
    for shown in ("<script>alert(1)</script>", "toy & co", '"<i>"', 'because of "<b>"', "<b>fish</b>"):
        assert shown in text


def test_it_fetches_nothing(page: str) -> None:
    for _, attributes in Reader(page).tags:
        assert not {"href", "srcset", "action", "onclick", "onload"} & set(attributes)
        assert str(attributes.get("src", "data:")).startswith("data:image/png;base64,") or "src" not in attributes
    assert not re.search(r"url\(|@import|https?:", page)


def worst_of(content: ReportContent, **values: Any) -> str:
    """The page with a single worst example."""
    check = content.checks["onnx"]
    worst = replace(check.worst[0], **values)
    return render_report(replace(content, checks={"onnx": replace(check, worst=(worst,))}))


def test_values_are_in_lines_and_short(content: ReportContent) -> None:
    page = worst_of(content, signature="embed", index=3)
    # In a column as wide as an image they would be broken after ten letters.
    assert re.search(r'<div class="none"><p>image: ([-0-9.e]{1,10} ){6}…</p><p>scale: [-0-9.e]{1,10}</p></div>', page)
    inputs = {**content.reference.data.inputs, "embed": {"word": np.array([b"one", b"x" * 100], object)}}
    reference = replace(content.reference, data=replace(content.reference.data, inputs=inputs))
    for index, text in ((0, "one"), (1, f"{'x' * 40}…")):
        page = worst_of(replace(content, reference=reference), signature="embed", index=index)
        assert f'<div class="none"><p>word: {text}</p></div>' in page


def test_no_examples_where_nothing_differs(content: ReportContent) -> None:
    same = {
        name: replace(check, worst=tuple(replace(each, error=0.0) for each in check.worst))
        for name, check in content.checks.items()
    }
    assert "Worst" in render_report(content)
    assert "Worst" not in render_report(replace(content, checks=same))


def test_examples_are_pictures(page: str) -> None:
    sources = [str(attributes["src"]) for tag, attributes in Reader(page).tags if tag == "img"]
    # The signature with two inputs has no picture; the others show one each.
    assert sources
    for source in sources:
        image = Image.open(io.BytesIO(base64.b64decode(source.partition(",")[2])))
        image.load()
        assert max(image.size) <= 144


def test_without_labels_there_is_no_confusion(content: ReportContent) -> None:
    data = replace(content.reference.data, labels=None)
    plain = replace(content, reference=replace(content.reference, data=data, measured=None), source=Source())
    page = render_report(plain)
    assert (
        "Confusion" not in page
        and "each class" not in page
        and "true:" not in page
        and "Where it came from" not in page
    )


def test_too_many_classes_are_said_not_drawn(content: ReportContent) -> None:
    data = replace(content.reference.data, class_names=tuple(str(index) for index in range(41)))
    page = render_report(replace(content, reference=replace(content.reference, data=data)))
    assert "41 classes are more than the 40 that fit" in page


def test_accuracy_of_each_class(content: ReportContent) -> None:
    labels, names = content.reference.data.labels, content.reference.data.class_names
    assert labels is not None and len(names) == 3
    # A format of a model that is always right, which has lost the first class.
    lost = replace(content.checks["onnx"], classes_before=labels, classes_after=np.where(labels == 0, 1, labels))
    page = render_report(replace(content, checks={"onnx": lost})).partition("Accuracy of each class")[2]
    rows = [row.split("</td>") for row in page.partition("</tbody>")[0].split("<tr>")[2:]]
    for index, row in enumerate(rows):
        after = "<strong>0.0%</strong>" if index == 0 else "100.0%"
        cells = [cell.rpartition('"n">')[2].strip() for cell in row[1:4]]
        assert cells == [f"{(labels == index).sum():,}", "100.0%", after]
    assert len(rows) == 3


def test_classes_that_change_most_where_there_are_many(content: ReportContent) -> None:
    count = 50
    labels = np.repeat(np.arange(count), 4)
    after = labels.copy()
    # Class 49 changes most, 48 less.
    after[-4:], after[-8] = 0, 0
    data = replace(content.reference.data, labels=labels, class_names=())
    check = replace(content.checks["onnx"], classes_before=labels, classes_after=after)
    page = render_report(replace(content, reference=replace(content.reference, data=data), checks={"onnx": check}))
    shown = re.findall(r"<tr><td>(\d+)</td>", page.partition("Accuracy of each class")[2])
    assert len(shown) == 40 and shown[:2] == ["49", "48"]
    assert "The 40 of 50 classes that change most" in page


@pytest.mark.parametrize(
    ("error", "expected"), [(0.25, "0.0015882"), (1.7e-6, "0.0015882"), (9.31e-10, "0.00158820123")]
)
def test_as_many_digits_as_show_the_error(content: ReportContent, error: float, expected: str) -> None:
    page = worst_of(content, error=error, source={"y": np.array([0.00158820123])}, exported={"y": np.array([0.0])})
    assert f"<td>{expected}</td>" in page


def test_charts_show_the_figures(content: ReportContent) -> None:
    check = replace(content.checks["onnx"], histogram=(1, 0, 999, *[0] * 8))
    page = render_report(replace(content, checks={"onnx": check}))
    (svg,) = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    heights = [float(height) for height in re.findall(r'<rect [^>]*height="([\d.]+)"', svg)]
    assert len(heights) == 2 and heights[0] < heights[1]
    texts = re.findall(r">([^<>]+)</text>", svg)
    assert {"&lt;1%", "100%", "allowed 1e-05", "1e-10", "1e-1"} <= set(texts)
    shares = [float(share) for share in re.findall(r'<span class="bar c\d" style="--share: ([\d.]+)"', page)]
    assert shares == pytest.approx([34 / 1234 * 100, 100] * 3, abs=0.01)


@pytest.mark.parametrize(("value", "text"), [(3.456, "3.46 µs"), (340.6, "341 µs"), (1234.0, "1.23 ms")])
def test_times_for_people(content: ReportContent, value: float, text: str) -> None:
    latency = (replace(content.latency[0], p50_us=value),)
    assert f"</span>{text}</div>" in render_report(replace(content, latency=latency))
