"""What is known of a journal from outside: its summary, the rows behind it, and whether its writer lives."""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas import paths
from eyas.cli.condition import Condition, condition
from eyas.cli.journals import JournalDirectory
from eyas.generate.linefacts import UNJUDGED
from eyas.generate.summary import RowCount, count_further, count_rows, read_summary
from eyas.generate.tally import Tally
from eyas.target.spec import ThinkFormat

QUANTILES = {"median": 0.5, "p90": 0.9, "p99": 0.99}


@dataclass(frozen=True)
class Published:
    """What stands in data/responses."""

    path: Path
    rows: int | None
    """None if its server profile does not say."""
    age_s: float


@dataclass(frozen=True)
class Status:
    """One look at a journal."""

    journal: JournalDirectory
    condition: Condition
    pid: int | None
    """Of the process that holds the journal, or held it last."""
    summary: dict[str, Any] | None
    """Brought up to the last row; None if no run has left one."""
    count: RowCount
    prompts: int | None
    """Without a summary: rows of the prompt table, if there is one."""
    published: Published | None
    summary_age_s: float | None
    last_row_age_s: float | None
    """Since the last answer; None if there is none."""

    @property
    def tally(self) -> Tally:
        """Of all answers in the journal."""
        return self.count.tally

    def to_json(self) -> dict[str, Any]:
        counted = self.summary or {}
        return {
            "dataset": self.journal.dataset,
            "fingerprint": self.journal.fingerprint,
            "directory": str(self.journal.path),
            "state": self.condition.name,
            "detail": self.condition.detail,
            "alive": self.condition.is_live,
            "pid": self.pid,
            "summary_age_s": self.summary_age_s,
            "last_row_age_s": self.last_row_age_s,
            **{key: counted.get(key) for key in ("rows", "rate", "failures", "faults", "endpoints", "run")},
            "answers": _answers(self.tally),
            "damaged_lines": self.count.damaged,
            "published": self.published
            and {
                "path": str(self.published.path),
                "rows": self.published.rows,
                "age_s": self.published.age_s,
            },
        }


class Observer:
    """Looks at one journal again and again; rows that were counted once are not read again."""

    def __init__(self, journal: JournalDirectory, think: ThinkFormat | None) -> None:
        self._journal = journal
        self._think = think
        self._count = RowCount()

    def look(self) -> Status:
        holder = self._journal.holder()
        summary = read_summary(self._journal.path)
        count = self._rows(summary)
        now = time.time()
        state = condition(summary, holder, now)
        return Status(
            journal=self._journal,
            condition=state,
            pid=holder.pid if holder else None,
            summary=None if summary is None else _brought_up(summary, count, state),
            count=count,
            prompts=_prompts(self._journal.dataset) if summary is None else None,
            published=_published(self._journal.dataset, now),
            summary_age_s=None if summary is None else max(0.0, now - summary["written_at"]),
            last_row_age_s=_last_row_age(self._journal, count.tally, now),
        )

    def _rows(self, summary: dict[str, Any] | None) -> RowCount:
        if summary is not None:
            return count_rows(self._journal.path, summary, self._think)
        self._count = count_further(self._journal.rows, self._count, self._think)
        return self._count


def _brought_up(summary: dict[str, Any], count: RowCount, state: Condition) -> dict[str, Any]:
    """The summary with the rows that came after it; what only a living run has is taken from a dead one."""
    failures = [dict(failure) for failure in summary["failures"]]
    waiting = 0
    for failure, number in count.failures.items():
        if failure.reason == UNJUDGED:  # an answer that the gate has not judged yet
            waiting += number
        else:
            failures.append({"kind": failure.kind, "reason": failure.reason, "count": number})
    rows = dict(summary["rows"])
    judged = min(rows["waiting"], count.new_answers)  # all that waits is judged before the next answer counts
    rows["done"] += count.new_answers
    rows["waiting"] += waiting - judged
    rows["failed"] += len(count.failing) - waiting
    rows["left"] = max(0, rows["left"] - count.new_answers + judged - len(count.failing))
    with_outcome = rows["done"] + rows["waiting"] + rows["failed"] + rows["refused"] + rows["left"]
    rows["unasked"] = max(0, rows["total"] - with_outcome)
    brought_up = summary | {"rows": rows, "failures": _merged(failures)}
    return brought_up if state.name == "running" else brought_up | _at_rest(brought_up)


def _at_rest(summary: dict[str, Any]) -> dict[str, Any]:
    """What only a running run has, taken away."""
    return {
        "rows": summary["rows"] | {"in_flight": 0},
        "rate": summary["rate"] | {"recent": None, "eta_s": None},
        "endpoints": [
            endpoint | {"state": f"was {endpoint['state']}", "in_flight": 0, "window": 0}
            for endpoint in summary["endpoints"]
        ],
    }


def _merged(failures: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per kind and reason."""
    merged: dict[str, dict[str, Any]] = {}
    for failure in failures:
        known = merged.setdefault(f"{failure['kind']} {failure['reason']}", failure | {"count": 0})
        known["count"] += failure["count"]
    return list(merged.values())


def _answers(tally: Tally) -> dict[str, Any]:
    lengths = tally.reasoning
    return tally.to_json() | {
        "reasoned_share": tally.reasoned_share,
        "truncated_share": tally.truncated_share,
        "reasoning_tokens": {
            "known_of_answers": lengths.count,
            "mean": lengths.mean,
            **{name: lengths.quantile(part) for name, part in QUANTILES.items()},
        },
    }


def _last_row_age(journal: JournalDirectory, tally: Tally, now: float) -> float | None:
    if not tally.answers:
        return None
    at = tally.last_at if tally.last_at is not None else journal.rows.stat().st_mtime
    return max(0.0, now - at)


def _published(dataset: str, now: float) -> Published | None:
    path = paths.root() / paths.raw_responses(dataset)
    if not path.exists():
        return None
    try:
        profile = json.loads((paths.root() / paths.server_profile(dataset)).read_bytes())
        rows = profile.get("rows")
    except (OSError, ValueError, AttributeError):
        rows = None
    return Published(path, rows, max(0.0, now - path.stat().st_mtime))


def _prompts(dataset: str) -> int | None:
    """Rows of the prompt table. Polars is imported only here: it takes as long as all the rest."""
    path = paths.root() / paths.prompts(dataset)
    if not path.exists():
        return None
    import polars as pl

    try:
        return int(pl.scan_parquet(path).select(pl.len()).collect().item())
    except (pl.exceptions.PolarsError, OSError):
        return None
