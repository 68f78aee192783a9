from __future__ import annotations

import re

import pytest

from eyas.report.charts import Axis, Series, bars, lines

AXIS = Axis("tokens", "rate", from_zero=True, reference=0.5)


def texts(svg: str) -> list[str]:
    return re.findall(r"<text[^>]*>(.*?)</text>", svg)


def test_bars_stand_where_the_values_are() -> None:
    svg = bars([Series("one", ["a", "b"], [1.0, 2.0]), Series("two", ["a", "b"], [None, 4.0])], AXIS)
    heights = []
    for path in re.findall(r'<path d="(M [^"]*z)[^>]*clip-path', svg.replace("\n", " ")):
        ys = [float(y) for y in re.findall(r"[ML] \S+ (\S+)", path)]
        heights.append(max(ys) - min(ys))
    first, second, missing, last = heights
    assert second / first == pytest.approx(2, rel=1e-3)
    assert last / first == pytest.approx(4, rel=1e-3)
    assert missing == 0
    assert {"a", "b", "one", "two", "tokens", "rate"} <= set(texts(svg))


def test_lines_skip_what_is_missing_and_name_their_series() -> None:
    svg = lines([Series("one", [0, 1, 2], [1.0, None, 3.0]), Series("two", [0, 1], [2.0, 2.0])], AXIS)
    assert {"one", "two"} <= set(texts(svg))
    assert "nan" not in svg.lower()


def test_one_series_has_no_legend() -> None:
    assert "only" not in texts(lines([Series("only", [0, 1], [1.0, 2.0])], AXIS))


def test_the_band_is_drawn_behind_its_line() -> None:
    plain = lines([Series("a", [0, 1], [1.0, 2.0])], AXIS)
    banded = lines([Series("a", [0, 1], [1.0, 2.0], low=[0.5, 1.5], high=[1.5, 2.5])], AXIS)
    assert "FillBetweenPolyCollection" in banded
    assert "FillBetweenPolyCollection" not in plain
