"""How far an extraction is: bars on a terminal, a line every 30 s elsewhere, and a small file for `eyas status`."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table

from eyas import paths
from eyas.extract.ranks import Ranks
from eyas.files import write_json

logger = logging.getLogger("eyas.extract")

LINE_S = 30.0
LIVE_S = 0.5
STATUS_S = 5.0
RECENT_S = 120.0
"""The speed of late is that of so many seconds."""


@dataclass(frozen=True)
class Total:
    """The whole work."""

    tokens: int
    bytes: int
    sequences: int


@dataclass(frozen=True)
class State:
    """One look at a running extraction; tokens and bytes are those of all ranks."""

    total: Total
    computed: int
    """Tokens that this run has computed."""
    resumed: int
    """Tokens of shards that an earlier run had finished."""
    written: int
    """Bytes of finished shards, resumed ones included."""
    tokens_per_s: float | None
    """Of late; None before the first batch."""

    @property
    def eta_s(self) -> float | None:
        """Seconds left at this speed."""
        left = self.total.tokens - self.computed - self.resumed
        return left / self.tokens_per_s if self.tokens_per_s else None

    def __str__(self) -> str:
        done = self.computed + self.resumed
        share = f"{done / self.total.tokens:.1%}" if self.total.tokens else "100.0%"
        text = f"{done:,} of {self.total.tokens:,} tokens ({share})"
        text += f", {self.resumed:,} of them resumed" if self.resumed else ""
        text += f", {self.written / 1e9:.2f} of {self.total.bytes / 1e9:.2f} GB written"
        if self.tokens_per_s is not None and self.eta_s is not None:
            text += f", {self.tokens_per_s:,.0f} tokens/s, {clock(self.eta_s)} left"
        return text

    def to_json(self) -> dict[str, Any]:
        """For the status file."""
        return {
            "tokens": {"total": self.total.tokens, "computed": self.computed, "resumed": self.resumed},
            "bytes": {"total": self.total.bytes, "written": self.written},
            "tokens_per_s": self.tokens_per_s,
            "eta_s": self.eta_s,
        }


@dataclass
class Progress:
    """Counts together with all ranks; rank 0 shows. A context: leaving it shows the whole."""

    total: Total
    ranks: Ranks
    folder: Path | None = None
    """Where the status file is kept; None: nowhere."""
    console: Console = field(default_factory=lambda: Console(stderr=True))
    _started: float = field(default_factory=time.monotonic)
    _samples: deque[tuple[float, int]] = field(default_factory=deque)
    _shown: dict[str, float] = field(default_factory=dict)
    _live: Live | None = None

    def __enter__(self) -> Self:
        self._started = time.monotonic()
        self._samples.append((self._started, self.ranks.count("computed", 0)))
        if self.ranks.rank == 0 and sys.stderr.isatty():
            self._live = Live(console=self.console, auto_refresh=False, transient=True)
            self._live.start()
        self._write_status("running")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        with suppress(Exception):  # the ranks may be gone; what ended the run counts
            self._write_status("finished" if error is None else "stopped")
            if self.ranks.rank == 0:
                seconds = time.monotonic() - self._started
                state = self.state()
                logger.info("%s after %s: %s", "done" if error is None else "stopped", clock(seconds), state)

    def computed(self, tokens: int) -> None:
        """Count a batch."""
        self.ranks.count("computed", tokens)
        self.show()

    def resumed(self, tokens: int, size: int) -> None:
        """Count the tokens and bytes of a shard that was finished before."""
        self.ranks.count("resumed", tokens)
        self.ranks.count("written", size)
        self.show()

    def written(self, size: int) -> None:
        """Count the bytes of a finished shard."""
        self.ranks.count("written", size)

    def state(self) -> State:
        """All counts now."""
        now, computed = time.monotonic(), self.ranks.count("computed", 0)
        self._samples.append((now, computed))
        while now - self._samples[0][0] > RECENT_S and len(self._samples) > 2:
            self._samples.popleft()
        before, earlier = self._samples[0]
        speed = (computed - earlier) / (now - before) if computed > earlier and now > before else None
        resumed, written = (self.ranks.count(name, 0) for name in ("resumed", "written"))
        return State(self.total, computed, resumed, written, speed)

    def show(self) -> None:
        """Show the counts on rank 0, not more often than is of use."""
        if self.ranks.rank != 0:
            return
        if self._live is not None and self._due("live", LIVE_S):
            self._live.update(_bar(self.state()), refresh=True)
        if self._live is None and self._due("line", LINE_S):
            logger.info("%s", self.state())
        if self._due("status", STATUS_S):
            self._write_status("running")

    def _due(self, what: str, interval_s: float) -> bool:
        now = time.monotonic()
        if now - self._shown.setdefault(what, self._started) < interval_s:
            return False
        self._shown[what] = now
        return True

    def _write_status(self, state: str) -> None:
        if self.folder is not None and self.ranks.rank == 0:
            values = {"state": state, "pid": os.getpid(), "updated": time.time(), **self.state().to_json()}
            write_json(self.folder / paths.STATUS, values)


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def _bar(state: State) -> Table:
    table = Table.grid()
    table.add_row(ProgressBar(max(1, state.total.tokens), completed=state.computed + state.resumed, width=60))
    table.add_row(str(state))
    return table
