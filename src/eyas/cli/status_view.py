"""How the status of journals looks: a table of all, every detail of one, or a plain line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from eyas.cli.observer import Status
from eyas.generate.view import (
    Labelled,
    age,
    answer_lines,
    clock,
    endpoint_tables,
    labelled_grid,
    labelled_lines,
    percent,
    rate,
)

MISSING = "-"
_WIDEST = 10_000
STYLES = {
    "starting": "cyan",
    "running": "green",
    "finishing": "cyan",
    "finished": "",
    "stopped": "yellow",
    "failed": "bold red",
    "killed": "bold red",
    "unknown": "yellow",
}


@dataclass(frozen=True)
class Fitting:
    """A table, or lines where the terminal is too narrow for it: rich would leave out whole columns."""

    table: Table
    lines: Sequence[str]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        needed = Measurement.get(console, options.update(max_width=_WIDEST), self.table).minimum
        yield self.table if needed <= options.max_width else Text("\n".join(self.lines))


def overview(statuses: Sequence[Status]) -> RenderableType:
    """A table with a line per journal, and what to do about those that did not end well."""
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, padding=(0, 1, 0, 0))
    table.add_column("dataset", overflow="fold", min_width=10)
    table.add_column("state", no_wrap=True)
    for column in ("done", "failed", "rows/s", "ETA", "thinks", "cut", "last row"):
        table.add_column(column, justify="right", no_wrap=True)
    several = len({status.journal.dataset for status in statuses}) < len(statuses)
    for status in statuses:
        name = status.journal.dataset + (f" {status.journal.fingerprint}" if several else "")
        table.add_row(Text(name), Text(status.condition.name, STYLES[status.condition.name]), *_cells(status))
    notes = [
        Text(
            f"{status.journal.dataset} {status.condition.name}: {status.condition.detail}",
            STYLES[status.condition.name],
        )
        for status in statuses
        if status.condition.name in ("failed", "killed", "stopped")
    ]
    fitting = Fitting(table, [plain(status) for status in statuses])
    return Group(fitting, Text(), *notes) if notes else fitting


def details(status: Status) -> RenderableType:
    """Everything about one journal."""
    journal, tally, summary = status.journal, status.tally, status.summary
    title = Text.assemble(
        (journal.dataset, "bold"),
        "  ",
        (status.condition.name, STYLES[status.condition.name]),
        f"  {status.condition.detail}",
    )
    parts: list[RenderableType] = [title]
    if summary is None:
        lines = [
            Labelled("rows", _rows_without_summary(status)),
            *(answer_lines(tally) if tally.answers else []),
        ]
    else:
        rows = summary["rows"]
        bar = Table.grid()
        bar.add_row(ProgressBar(max(1, rows["total"]), completed=rows["done"], width=78))
        parts.append(bar)
        lines = labelled_lines(summary, tally)
    parts.append(labelled_grid([*lines, *_surroundings(status)]))
    if summary is not None:
        parts += endpoint_tables(summary["endpoints"])
    return Group(*parts, "")


def plain(status: Status) -> str:
    """One line, for logs."""
    done, failed, rows_per_s, eta, reasoning, truncated, last = _cells(status)
    return (
        f"{status.journal.dataset}: {status.condition.name}, {done} rows, {failed} failed, {rows_per_s} rows/s, "
        f"ETA {eta}, reasoning {reasoning}, truncated {truncated}, last row {last} ago"
    )


def _cells(status: Status) -> list[str]:
    """Rows done, failed, speed, ETA, shares of answers that think and that were cut, age of the last row."""
    tally, summary = status.tally, status.summary
    done, failed, eta = tally.answers, len(status.count.failing), MISSING
    total = MISSING if status.prompts is None else f"{status.prompts:,}"
    if summary is not None:
        rows, seconds = summary["rows"], summary["rate"]["eta_s"]
        done, failed, total = rows["done"], rows["failed"], f"{rows['total']:,}"
        eta = MISSING if seconds is None else clock(seconds)
    return [
        f"{done:,}/{total}",
        f"{failed:,}",
        _rows_per_s(status),
        eta,
        percent(tally.reasoned_share) if tally.answers else MISSING,
        percent(tally.truncated_share) if tally.answers else MISSING,
        MISSING if status.last_row_age_s is None else age(status.last_row_age_s),
    ]


def _rows_per_s(status: Status) -> str:
    """Of late while it runs, of the whole run afterwards."""
    rates: dict[str, Any] = status.summary["rate"] if status.summary else {}
    speed = rates.get("recent" if status.condition.name == "running" else "mean")
    return MISSING if speed is None else rate(speed["rows_per_s"])


def _rows_without_summary(status: Status) -> str:
    text = f"{status.tally.answers:,} answers in the journal"
    text += f", {len(status.count.failing):,} keys failed" if status.count.failing else ""
    return text + ("" if status.prompts is None else f"; the prompt table has {status.prompts:,} rows")


def _surroundings(status: Status) -> list[Labelled]:
    lines = []
    if status.last_row_age_s is not None:
        lines.append(Labelled("last row", f"{age(status.last_row_age_s)} ago"))
    if status.count.damaged:
        lines.append(
            Labelled("damaged", f"{status.count.damaged:,} lines of rows.jsonl are no entries", "bold red")
        )
    if status.published is not None:
        rows = "an unknown number of" if status.published.rows is None else f"{status.published.rows:,}"
        lines.append(
            Labelled(
                "published", f"{rows} rows, {age(status.published.age_s)} ago: {status.published.path.parent}"
            )
        )
    lines.append(Labelled("journal", f"{status.journal.path}  ({_megabytes(status)})"))
    return lines


def _megabytes(status: Status) -> str:
    size = status.count.size
    return f"{size / 1e6:,.1f} MB" if size < 1e9 else f"{size / 1e9:,.2f} GB"
