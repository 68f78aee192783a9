"""What a run has done so far, shown on a terminal, logged every 30 s elsewhere, and kept in summary.json."""

from __future__ import annotations

import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TextIO

from rich.console import Console
from rich.live import Live

from eyas.errors import EyasError, Interrupted
from eyas.generate.failure import RowFailure
from eyas.generate.gate import Outcome
from eyas.generate.rate import Rate, Speed
from eyas.generate.record import Answer
from eyas.generate.summary import VERSION, count_rows, read_summary, write_summary
from eyas.generate.tally import AnswerFacts, Tally, answer_facts
from eyas.generate.view import plain_line, run_view
from eyas.journal import Journal
from eyas.target.spec import ThinkFormat

logger = logging.getLogger(__name__)

PLAIN_INTERVAL_S = 30.0


@dataclass(frozen=True)
class Failure:
    """A class of failures, as they are counted."""

    kind: str
    """transient | permanent | content."""
    reason: str


@dataclass
class Counts:
    """Counters of one run; the answers that the journal held before are counted apart."""

    total: int
    """Rows of the dataset."""
    kept: int
    """Rows that were answered before this run."""
    think: ThinkFormat | None = None
    refused: int = 0
    """Rows that have no answer and are not asked again: a server refused them for good, or a turn before them."""
    before: Tally = field(default_factory=Tally)
    """All answers that the journal held when the run began."""
    run: Tally = field(default_factory=Tally)
    failures: Counter[Failure] = field(default_factory=Counter)
    """Failed rows."""
    faults: Counter[Failure] = field(default_factory=Counter)
    """Failed attempts that were tried again."""
    answered_by: Counter[str] = field(default_factory=Counter)
    """Answers by server URL."""
    faults_by: Counter[str] = field(default_factory=Counter)
    """Failed attempts by server URL."""
    waiting: int = 0
    """Answers that have arrived and do not count before the gate's verdict."""
    endpoints: Callable[[], Sequence[Mapping[str, Any]]] = tuple
    """The servers as they are now: `url`, `state`, `in_flight`, `window` (most requests at a time), `problem`."""
    all_asked: bool = False
    """The run has come to its end: what has no outcome shares its request with another row, or stands behind a failed
    turn of its conversation."""
    started: float = field(default_factory=time.monotonic)
    """Of the monotonic clock."""
    rate: Rate = field(init=False)

    def __post_init__(self) -> None:
        self.rate = Rate(self.started)

    @classmethod
    def resumed(
        cls, total: int, kept: int, directory: Path, think: ThinkFormat | None, refused: int = 0
    ) -> Self:
        """Counts of a run that goes on with a journal directory."""
        before = count_rows(directory, read_summary(directory), think).tally
        return cls(total, kept, think, refused, before)

    @property
    def answered(self) -> int:
        """Rows answered in this run."""
        return self.run.answers

    @property
    def failed(self) -> int:
        return self.failures.total()

    @property
    def done(self) -> int:
        return self.kept + self.answered

    @property
    def left(self) -> int:
        """Rows that this run still has to ask."""
        return 0 if self.all_asked else self._without_outcome

    @property
    def _without_outcome(self) -> int:
        return self.total - self.done - self.waiting - self.failed - self.refused

    @property
    def in_flight(self) -> int:
        return sum(endpoint["in_flight"] for endpoint in self.endpoints())

    def add(self, outcome: Outcome, url: str | None = None) -> None:
        """Count what became of a row; `url` is the server that answered."""
        if outcome.answer is None:
            assert outcome.failure is not None
            self.failures[_failure(outcome.failure)] += 1
            return
        self.run.add(_facts(outcome.answer, self.think))
        if url is not None:
            self.answered_by[url] += 1

    def add_fault(self, failure: RowFailure, url: str) -> None:
        """Count a failed attempt that is tried again."""
        self.faults[_failure(failure)] += 1
        self.faults_by[url] += 1

    def mark(self) -> None:
        """Note the moment for the rates; about once a second."""
        rows = self.answered + self.waiting + self.failed
        self.rate.mark(time.monotonic(), rows, self.run.generated_tokens)

    def to_json(self) -> dict[str, Any]:
        """The part of summary.json that counts."""
        return {
            "rows": {
                "total": self.total,
                "done": self.done,
                "kept": self.kept,
                "waiting": self.waiting,
                "failed": self.failed,
                "refused": self.refused,
                "left": self.left,
                "unasked": self._without_outcome - self.left,
                "in_flight": self.in_flight,
            },
            "seconds": time.monotonic() - self.started,
            "rate": self._rate(),
            "failures": _listed(self.failures),
            "faults": _listed(self.faults),
            "endpoints": [self._endpoint(endpoint) for endpoint in self.endpoints()],
            "run": self.run.to_json(),
        }

    def _rate(self) -> dict[str, Any]:
        recent, mean = self.rate.recent(), self.rate.mean()
        speed = recent if recent is not None and recent.rows_per_s > 0 else mean
        return {
            "recent": self._speed(recent),
            "mean": self._speed(mean),
            "eta_s": None if speed is None else self.left / speed.rows_per_s,
        }

    def _speed(self, speed: Speed | None) -> dict[str, Any] | None:
        if speed is None:
            return None
        unknown = 0 < self.run.answers == self.run.uncounted
        return asdict(speed) | ({"tokens_per_s": None} if unknown else {})

    def _endpoint(self, endpoint: Mapping[str, Any]) -> dict[str, Any]:
        url = endpoint["url"]
        return {**endpoint, "answered": self.answered_by[url], "faults": self.faults_by[url]}


def _facts(answer: Answer, think: ThinkFormat | None) -> AnswerFacts:
    return answer_facts(vars(answer) | {"usage": vars(answer.usage)}, think, time.time())


def _failure(failure: RowFailure) -> Failure:
    return Failure(str(failure.kind), failure.reason)


def _listed(failures: Counter[Failure]) -> list[dict[str, Any]]:
    return [asdict(failure) | {"count": count} for failure, count in failures.most_common()]


class Display:
    """Context manager that shows counts and writes the summary; call `refresh` about once a second."""

    def __init__(self, name: str, counts: Counts, journal: Journal | None = None) -> None:
        """`journal`: where the rows go; its directory gets the summary."""
        self._name = name
        self._counts = counts
        self._journal = journal
        self._began_at = time.time()
        self._shown_at = time.monotonic()
        self._live: Live | None = None
        self._redirected: list[logging.StreamHandler[Any]] = []
        if sys.stderr.isatty():
            # refreshed by refresh() alone: a thread of its own would read counters while they change
            self._live = Live(console=Console(stderr=True), auto_refresh=False)

    def __enter__(self) -> Self:
        if self._live is not None:
            before = sys.stderr
            self._live.start()
            self._redirected = _redirect_logging(before, sys.stderr)
        self._show("running", None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._counts.all_asked = error is None
        state = "stopped" if isinstance(error, Interrupted) else "finished" if error is None else "failed"
        self._show(state, _message(error))
        if self._live is None:
            self._log()
            return
        self._live.stop()
        for handler in self._redirected:
            handler.setStream(sys.stderr)

    def refresh(self) -> None:
        """Write the summary and show it: on a terminal now, as a plain line every 30 s elsewhere."""
        self._show("running", None)
        if self._live is None and time.monotonic() - self._shown_at >= PLAIN_INTERVAL_S:
            self._log()

    def _show(self, state: str, message: str | None) -> None:
        self._counts.mark()
        counted = self._counts.to_json()
        if self._journal is not None:
            self._write(self._journal, counted | {"state": state, "message": message})
        if self._live is not None:
            self._live.update(run_view(self._name, counted, self._counts.run), refresh=True)

    def _write(self, journal: Journal, counted: dict[str, Any]) -> None:
        head = {
            "version": VERSION,
            "dataset": self._name,
            "pid": os.getpid(),
            "started_at": self._began_at,
            "written_at": time.time(),
        }
        tally = self._counts.before.merged(self._counts.run)
        rows = {"journal": {"bytes": journal.size, "tally": tally.to_json()}}
        try:
            write_summary(journal.directory, head | counted | rows)
        except OSError as error:  # a full disk is the journal's to report; a summary can be missed
            logger.debug("no summary: %s", error)

    def _log(self) -> None:
        self._shown_at = time.monotonic()
        logger.info("%s: %s", self._name, plain_line(self._counts.to_json()))


def _message(error: BaseException | None) -> str | None:
    """What ended a run, in words."""
    if error is None or isinstance(error, EyasError | Interrupted):
        return None if error is None else str(error)
    return f"{type(error).__name__}: {error}"


def _redirect_logging(before: TextIO, after: TextIO) -> list[logging.StreamHandler[Any]]:
    """Let log lines scroll above a live display instead of through it; returns the changed handlers."""
    handlers = [
        handler
        for handler in logging.getLogger().handlers
        if isinstance(handler, logging.StreamHandler) and handler.stream is before
    ]
    for handler in handlers:
        handler.setStream(after)
    return handlers
