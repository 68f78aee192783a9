"""Charts as SVG texts: lines with bands, grouped bars. Equal values give equal bytes."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import matplotlib as mpl
import numpy as np
from cycler import cycler
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

WIDTH, HEIGHT = 5.6, 3.1
COLOURS = ("#2f6fb3", "#d9742b", "#3b8f5a", "#8d5aa8", "#b23b4e", "#7a7a7a")
STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "eyas",
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e4e4e4",
    "axes.prop_cycle": cycler(color=COLOURS),
    "legend.frameon": False,
}


@dataclass(frozen=True)
class Series:
    """One line, or one colour of bars. A value that is None is left out."""

    name: str
    x: Sequence[float] | Sequence[str]
    y: Sequence[float | None]
    low: Sequence[float | None] = field(default=())
    """Lower ends of the intervals of `y`; empty: none are drawn."""
    high: Sequence[float | None] = field(default=())
    dashed: bool = False
    colour: int | None = None
    """Place in COLOURS; None: that of the series in the chart."""

    def colour_at(self, place: int) -> str:
        """The colour as the series at this place of a chart."""
        return COLOURS[(place if self.colour is None else self.colour) % len(COLOURS)]


@dataclass(frozen=True)
class Axis:
    """Titles of both axes, and what else is drawn."""

    x: str
    y: str
    from_zero: bool = False
    reference: float | None = None
    """A horizontal line for comparison."""
    logarithmic_x: bool = False


def lines(series: Sequence[Series], axis: Axis, *, points: bool = True) -> str:
    """A line chart."""
    with _figure(axis) as drawing:
        for place, one in enumerate(series):
            colour = one.colour_at(place)
            drawing.axes.plot(
                one.x,
                _values(one.y),
                "--" if one.dashed else "-",
                marker="o" if points else None,
                markersize=3.5,
                linewidth=1.4,
                color=colour,
                label=one.name,
            )
            if one.low:
                band = _values(one.low), _values(one.high)
                drawing.axes.fill_between(one.x, *band, color=colour, alpha=0.15, linewidth=0)
        drawing.legend = len(series) > 1
    return drawing.svg


def bars(series: Sequence[Series], axis: Axis) -> str:
    """Bars side by side: a group for each x (the same in all series), a bar for each series."""
    with _figure(axis) as drawing:
        groups = [str(x) for x in series[0].x]
        width = 0.8 / len(series)
        for place, one in enumerate(series):
            offset = (place - (len(series) - 1) / 2) * width
            drawing.axes.bar(
                np.arange(len(groups)) + offset,
                _values(one.y),
                width * 0.92,
                color=one.colour_at(place),
                alpha=0.55 if one.dashed else 1.0,
                label=one.name,
            )
        drawing.axes.set_xticks(range(len(groups)), groups)
        drawing.axes.grid(visible=False, axis="x")
        drawing.legend = len(series) > 1
    return drawing.svg


@dataclass
class _Drawing:
    axes: Axes
    svg: str = ""
    legend: bool = False


@contextmanager
def _figure(axis: Axis) -> Iterator[_Drawing]:
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(WIDTH, HEIGHT), layout="constrained")
        drawing = _Drawing(figure.add_subplot())
        if axis.reference is not None:
            drawing.axes.axhline(axis.reference, color="#555555", linewidth=0.9, linestyle=":")
        yield drawing
        drawing.axes.set_xlabel(axis.x)
        drawing.axes.set_ylabel(axis.y)
        if axis.logarithmic_x:
            drawing.axes.set_xscale("log", base=2)
        if axis.from_zero:
            drawing.axes.set_ylim(bottom=0)
        if drawing.legend:
            drawing.axes.legend(fontsize=8)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata=_NO_DATE)
        drawing.svg = text.getvalue()


_NO_DATE: Mapping[str, None] = {"Date": None}


def _values(values: Sequence[float | None]) -> NDArray[np.float64]:
    """Matplotlib leaves out what is not a number."""
    return np.array([np.nan if value is None else value for value in values], dtype=np.float64)
