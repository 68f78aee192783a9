"""Progress of a run: a bar on a terminal, a plain line every 30 s elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.text import Text

from eyas.generate.gate import Outcome
from eyas.metrics import share

logger = logging.getLogger(__name__)

PLAIN_INTERVAL_S = 30.0


@dataclass
class Counts:
    """What a run has done so far."""

    total: int
    """Rows of the dataset."""
    kept: int
    """Rows that were answered before this run."""
    answered: int = 0
    truncated: int = 0
    reasoned: int = 0
    tokens: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    """Failed rows by reason."""
    started: float = field(default_factory=time.monotonic)

    @property
    def failed(self) -> int:
        return self.failures.total()

    def add(self, outcome: Outcome) -> None:
        if outcome.answer is None:
            assert outcome.failure is not None
            self.failures[outcome.failure.reason] += 1
            return
        self.answered += 1
        self.truncated += outcome.answer.finish_reason == "length"
        self.reasoned += outcome.answer.reasoning is not None
        self.tokens += len(outcome.answer.token_ids)

    def line(self) -> str:
        """Rates, expected time left, and shares of this run's answers."""
        seconds = max(time.monotonic() - self.started, 1e-9)
        finished = self.answered + self.failed
        left = self.total - self.kept - finished
        parts = [f"{finished / seconds:.2f} rows/s", f"{self.tokens / seconds:.0f} tokens/s"]
        parts.append(f"ETA {_clock(left * seconds / finished)}" if finished else "ETA unknown")
        parts.append(f"truncated {_percent(self.truncated, self.answered)}")
        parts.append(f"reasoning {_percent(self.reasoned, self.answered)}")
        errors = ", ".join(f"{reason} {count}" for reason, count in self.failures.most_common(3))
        parts.append(f"failed {self.failed}" + (f" ({errors})" if errors else ""))
        return ", ".join(parts)


class Display:
    """Context manager that shows counts; call `refresh` about once a second."""

    def __init__(self, name: str, counts: Counts) -> None:
        self._name = name
        self._counts = counts
        self._shown_at = time.monotonic()
        self._live: Live | None = None
        if sys.stderr.isatty():
            self._live = Live(get_renderable=self._view, console=Console(stderr=True), refresh_per_second=2)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._live is not None:
            self._live.stop()
        self._log()

    def refresh(self) -> None:
        """Log a plain line if there is no terminal and it is time; a terminal refreshes itself."""
        if self._live is None and time.monotonic() - self._shown_at >= PLAIN_INTERVAL_S:
            self._log()

    def _view(self) -> Group:
        bar = Progress(TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
        done = self._counts.kept + self._counts.answered
        bar.add_task(self._name, total=self._counts.total, completed=done)
        return Group(bar.get_renderable(), Text(self._counts.line()))

    def _log(self) -> None:
        self._shown_at = time.monotonic()
        counts = self._counts
        logger.info(
            "%s: %d of %d rows, %s", self._name, counts.kept + counts.answered, counts.total, counts.line()
        )


def _percent(part: int, whole: int) -> str:
    value = share(part, whole)
    return "unknown" if value is None else f"{value:.0%}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
