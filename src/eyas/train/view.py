"""What a run shows while it trains: a bar on a terminal, a plain line every 30 s and after each validation elsewhere."""

from __future__ import annotations

import logging
import sys
import time
from dataclasses import dataclass, field

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.text import Text

from eyas.train.module import StepOutcome
from eyas.train.record import Record

logger = logging.getLogger("eyas.train")

LINE_EVERY_S = 30.0


@dataclass
class View:
    """Shows one run of this process; a resumed run's rate counts its own work only."""

    record: Record
    steps: int
    """Of the whole training."""
    tokens: int
    """Of the whole training, all epochs."""
    epochs: int
    started: float = field(default_factory=time.monotonic)
    _before: tuple[int, int] = field(init=False)
    _shown: float = field(default_factory=time.monotonic)
    _live: Live | None = field(init=False, default=None)
    _last: StepOutcome | None = field(init=False, default=None)

    def __post_init__(self) -> None:
        self._before = (self.record.tokens, self.record.labels)
        if sys.stderr.isatty():
            self._live = Live(get_renderable=self._screen, console=Console(stderr=True))
            self._live.start()

    def step(self, outcome: StepOutcome) -> None:
        """Take note of a step; shown at once on a terminal, else every 30 s."""
        self._last = outcome
        if self._live is None and time.monotonic() - self._shown >= LINE_EVERY_S:
            self.show()

    def show(self) -> None:
        """A line that stays, now."""
        self._shown = time.monotonic()
        if self._live is not None:
            self._live.console.print(Text(self.line()))
        else:
            logger.info("%s", self.line())

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self._live is not None:
            self._live.stop()

    def _screen(self) -> Group:
        bar = ProgressBar(total=self.tokens, completed=self.record.tokens)
        return Group(bar, Text(self.line()))  # the text wraps where the terminal is narrow

    def line(self) -> str:
        """Everything in one line."""
        record, last = self.record, self._last
        elapsed = max(time.monotonic() - self.started, 1e-9)
        rate = (record.tokens - self._before[0]) / elapsed
        trained = (record.labels - self._before[1]) / elapsed
        parts = [f"step {record.step}/{self.steps}"]
        if last is not None:
            steps = " ".join(f"{loss:.2f}" for loss in last.step_losses)
            parts.append(f"loss {last.loss:.3f} ({steps})")
        parts.append(_acceptance(record))
        if rate > 0:
            left = (self.tokens - record.tokens) / rate
            parts.append(f"{rate:,.0f} tokens/s ({trained:,.0f} trained), {_clock(left)} left")
        return "  ".join(parts)


def _acceptance(record: Record) -> str:
    best = record.best
    if best is None:
        untrained = record.untrained
        return (
            f"acceptance length {untrained.acceptance_length:.3f} untrained"
            if untrained
            else "not yet validated"
        )
    last = record.validations[-1]
    more = "" if best is last else f" (best {best.acceptance_length:.3f})"
    return f"acceptance length {last.acceptance_length:.3f}{more}"


def _clock(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
