"""What the page is made of: a chart with the numbers behind it."""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Table:
    """Numbers as texts."""

    header: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Panel:
    """A chart, what it says, and its numbers."""

    title: str
    text: str
    """What is counted, and what to look for."""
    svg: str | None
    """None: only the table."""
    table: Table

    @property
    def source(self) -> str | None:
        """The chart as a data URI, so that ids inside two charts can't meet."""
        if self.svg is None:
            return None
        return "data:image/svg+xml;base64," + base64.b64encode(self.svg.encode()).decode()


@dataclass(frozen=True)
class Section:
    """Panels under one heading."""

    title: str
    panels: Sequence[Panel] = field(default=())


def number(value: float | None, digits: int = 3) -> str:
    """A number for people; a dash where there is none."""
    if value is None:
        return "–"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share as per cent; a dash where there is none."""
    return "–" if value is None else f"{value:.{digits}%}"


def signed(value: float | None, digits: int = 2) -> str:
    """A relative difference as per cent with its sign; a dash where there is none."""
    return "–" if value is None else f"{value:+.{digits}%}"
