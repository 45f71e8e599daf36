"""Charts put numbers where they belong, and templates escape what they are given."""

from __future__ import annotations

import math
import sys
from xml.etree import ElementTree

import pytest

from modelyard.errors import MissingDependencyError
from modelyard.reports import Series, chart_file, line_chart, render_page

SVG = "{http://www.w3.org/2000/svg}"


def test_points_are_in_proportion() -> None:
    chart = line_chart(
        [Series(name="a", x=[0, 5, 10], y=[0, math.nan, 100])], x_label="s", y_label="ms", level=50, marks=[(5, "half")]
    )
    assert chart is not None
    ((name, points),) = chart.lines
    assert name == "a" and len(points) == 2
    (left, bottom), (right, top) = points.tolist()
    assert (left, bottom) == (64, 246) and right == 744
    assert chart.level == pytest.approx((bottom + top) / 2)
    assert chart.marks == [(404.0, "half")]
    assert [text for _, text in chart.x_ticks] == ["0", "2", "4", "6", "8", "10"]


def test_decades_are_equally_long() -> None:
    chart = line_chart([Series(name="a", x=[1, 2, 3, 4], y=[1, 10, 100, 0])], x_label="", y_label="", log_y=True)
    assert chart is not None
    heights = chart.lines[0][1][:, 1]
    assert len(heights) == 3
    assert heights[0] - heights[1] == pytest.approx(heights[1] - heights[2])
    assert {"1", "2", "5", "10", "100"} <= {text for _, text in chart.y_ticks}


def test_areas_lie_on_each_other() -> None:
    areas = [Series(name=name, x=[0, 1], y=[2, 2]) for name in "ab"]
    chart = line_chart(areas, x_label="", y_label="", stacked=True)
    assert chart is not None
    lower, upper = (points[:, 1] for _, points in chart.lines)
    assert lower[0] == pytest.approx(upper[-1]) and upper[0] < lower[0] < 246


def test_nothing_to_draw() -> None:
    assert line_chart([], x_label="", y_label="") is None
    assert line_chart([Series(name="a", x=[1], y=[math.nan])], x_label="", y_label="") is None
    assert line_chart([Series(name="a", x=[1], y=[0])], x_label="", y_label="", log_y=True) is None


def test_a_file_is_valid_and_what_it_is_given_is_escaped() -> None:
    chart = line_chart(
        [Series(name="<b>", x=[1, 2], y=[1, 2])], x_label="&", y_label='"', points=True, marks=[(1, "<script>")]
    )
    assert chart is not None
    root = ElementTree.fromstring(chart_file(chart, extra="loadtests"))
    assert {"<b>", "&", '"'} <= {text.text for text in root.iter(f"{SVG}text")}
    assert len(list(root.iter(f"{SVG}circle"))) == 2


def test_without_jinja2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingDependencyError, match=r"Writing a report needs .*'jinja2'.*modelyard\[loadtests\]"):
        render_page("modelyard.reports", "page.html", extra="loadtests")
    chart = line_chart([Series(name="a", x=[1], y=[1])], x_label="", y_label="")
    assert chart is not None
    with pytest.raises(MissingDependencyError):
        chart_file(chart, extra="export")
