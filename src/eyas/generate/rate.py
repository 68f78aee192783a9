"""How fast a run is now: over its last minute, or its last 20 rows where a minute holds fewer."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

WINDOW_S = 60.0
WINDOW_ROWS = 20


@dataclass(frozen=True)
class Mark:
    """What was done by a moment."""

    at: float
    """Of the monotonic clock, in seconds."""
    rows: int
    tokens: int


@dataclass(frozen=True)
class Speed:
    """Rows and tokens per second over a time."""

    rows_per_s: float
    tokens_per_s: float
    window_s: float


class Rate:
    """Marks of the recent past, from the start of the run on if it is young."""

    def __init__(self, started: float) -> None:
        self._first = Mark(started, 0, 0)
        self._marks = deque([self._first])

    def mark(self, at: float, rows: int, tokens: int) -> None:
        """Note what has been done by now; about once a second."""
        self._marks.append(Mark(at, rows, tokens))
        while len(self._marks) > 2:
            second = self._marks[1]
            if at - second.at < WINDOW_S or rows - second.rows < WINDOW_ROWS:
                return
            self._marks.popleft()

    def recent(self) -> Speed | None:
        """Over the window; None before the first row."""
        return _speed(self._marks[0], self._marks[-1])

    def mean(self) -> Speed | None:
        """Over the whole run."""
        return _speed(self._first, self._marks[-1])


def _speed(first: Mark, last: Mark) -> Speed | None:
    seconds = last.at - first.at
    if seconds <= 0 or last.rows == 0:
        return None
    return Speed((last.rows - first.rows) / seconds, (last.tokens - first.tokens) / seconds, seconds)
