"""How the counts of a run (summary.json) read: one plain line, or labelled lines for a terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rich import box
from rich.console import Group
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from eyas.errors import printable
from eyas.generate.tally import Tally
from eyas.metrics import share

UNKNOWN = "unknown"
_UNASKED = "like another row or behind a failed turn"
_PROBLEM_CHARACTERS = 120

Summary = Mapping[str, Any]


@dataclass(frozen=True)
class Labelled:
    """One line of a view."""

    label: str
    text: str
    style: str = ""
    """A rich style: a warning stands out."""


def plain_line(summary: Summary) -> str:
    """Everything that a log needs of a run, in one line."""
    rows = summary["rows"]
    run = Tally.from_json(summary["run"])
    waiting = [f"{rows['waiting']} wait for the gate"] if rows["waiting"] else []
    parts = [f"{rows['done']} of {rows['total']} rows", *waiting, f"{rows['in_flight']} in flight"]
    parts.append(speed(summary["rate"]["recent"]))
    parts.append(f"ETA {clock(summary['rate']['eta_s'])}")
    parts.append(f"reasoning {percent(run.reasoned_share)}{_median(run)}")
    parts.append(f"truncated {percent(run.truncated_share)}")
    parts.append(f"failed {rows['failed']}{_in_brackets(summary['failures'])}")
    if rows["unasked"]:
        parts.append(f"{rows['unasked']} {_UNASKED}")
    if summary["faults"]:
        parts.append(f"tried again {_sum(summary['faults'])}{_in_brackets(summary['faults'])}")
    return ", ".join(parts)


def labelled_lines(summary: Summary, tally: Tally) -> list[Labelled]:
    """The lines of a terminal's view; `tally` is of the answers that the lines about answers describe."""
    lines = [Labelled("rows", _rows(summary)), Labelled("speed", _speeds(summary))]
    if tally.answers:
        lines += answer_lines(tally)
    if summary["failures"]:
        lines.append(Labelled("failed", _failures(summary["failures"]), "red"))
    if summary["faults"]:
        lines.append(Labelled("tried again", _failures(summary["faults"]), "yellow"))
    return lines


def answer_lines(tally: Tally) -> list[Labelled]:
    """What answers are like: reasoning, how they end, tokens, flags."""
    lines = [
        Labelled("reasoning", _reasoning(tally)),
        Labelled("finish", _finish_reasons(tally), "yellow" if tally.finish_reasons["length"] else ""),
        Labelled("tokens", _tokens(tally)),
    ]
    if tally.flags:
        lines.append(Labelled("flags", _counted(tally.flags.most_common()), "yellow"))
    return lines


def run_view(name: str, summary: Summary, tally: Tally) -> Group:
    """A bar, labelled lines and the servers."""
    rows = summary["rows"]
    bar = Table.grid(padding=(0, 2))
    bar.add_row(
        Text(name, style="bold"), ProgressBar(max(1, rows["total"]), completed=rows["done"], width=60)
    )
    lines = labelled_grid(labelled_lines(summary, tally))
    return Group(bar, lines, *endpoint_tables(summary["endpoints"]))


def labelled_grid(lines: Iterable[Labelled]) -> Table:
    """Labels in one column, texts in the other."""
    grid = Table.grid(padding=(0, 2))
    for line in lines:
        grid.add_row(Text(line.label, style="dim"), Text(line.text, style=line.style))
    return grid


def endpoint_tables(endpoints: Sequence[Mapping[str, Any]]) -> list[Table]:
    """A table of the servers; none if nothing is known of them."""
    if not endpoints:
        return []
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("server")
    table.add_column("state")
    for column in ("in flight", "window", "answered", "failed attempts"):
        table.add_column(column, justify="right")
    for endpoint in endpoints:
        numbers = (endpoint["in_flight"], endpoint["window"], endpoint["answered"], endpoint["faults"])
        problem = endpoint.get("problem")
        state = endpoint["state"] + (f": {printable(problem[:_PROBLEM_CHARACTERS])}" if problem else "")
        # as Text: rich would read the address of [fe80::1] as markup
        table.add_row(Text(endpoint["url"]), Text(state), *(f"{number:,}" for number in numbers))
    return [table]


def speed(measured: Mapping[str, Any] | None) -> str:
    """Rows and tokens per second."""
    if measured is None:
        return f"{UNKNOWN} rows/s"
    tokens = measured["tokens_per_s"]
    rows = f"{rate(measured['rows_per_s'])} rows/s"
    return rows if tokens is None else f"{rows}, {rate(tokens)} tokens/s"


def rate(value: float) -> str:
    """Three significant digits at least: slow runs have small rates."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def percent(value: float | None) -> str:
    """A share; never rounded to none or all."""
    if value is None:
        return UNKNOWN
    text = f"{value:.0%}"
    return f"{value:.2%}" if 0 < value < 1 and text in ("0%", "100%") else text


def clock(seconds: float | None) -> str:
    """1:02:03, 2:03 or 0:03."""
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def age(seconds: float) -> str:
    """12 s, 3 min, 5 h, 2 days: in the largest unit of which there are two."""
    for unit, size_s in (("days", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= 2 * size_s:
            return f"{seconds / size_s:.0f} {unit}"
    return f"{max(0.0, seconds):.0f} s"


def _rows(summary: Summary) -> str:
    rows = summary["rows"]
    text = f"{rows['done']:,} of {rows['total']:,} done ({percent(share(rows['done'], rows['total']))})"
    text += f", {rows['kept']:,} of them before this run" if rows["kept"] else ""
    text += f", {rows['waiting']:,} wait for the gate's verdict" if rows["waiting"] else ""
    text += f", {rows['failed']:,} failed, {rows['left']:,} left, {rows['in_flight']:,} in flight"
    text += f", {rows['refused']:,} refused for good before" if rows["refused"] else ""
    return text + (f", {rows['unasked']:,} {_UNASKED}" if rows["unasked"] else "")


def _speeds(summary: Summary) -> str:
    rates = summary["rate"]
    whole = f"{speed(rates['mean'])} over {clock(summary['seconds'])}"
    if rates["recent"] is None:
        return whole
    return f"{speed(rates['recent'])}, ETA {clock(rates['eta_s'])}  (whole run: {whole})"


def _reasoning(tally: Tally) -> str:
    text = f"{percent(tally.reasoned_share)} of {tally.answers:,} answers"
    lengths = tally.reasoning
    if not tally.reasoned or lengths.mean is None:
        return text + (", token lengths unknown" if tally.reasoned else "")
    middle, high = lengths.quantile(0.5), lengths.quantile(0.9)
    return (
        f"{text}, tokens: median {middle:,}, mean {lengths.mean:,.0f}, "
        f"90 % up to {high:,}, {lengths.least:,} to {lengths.most:,}"
    )


def _finish_reasons(tally: Tally) -> str:
    shares = [
        f"{reason} {percent(count / tally.answers)}" for reason, count in tally.finish_reasons.most_common()
    ]
    cut = tally.finish_reasons["length"]
    return ", ".join(shares) + (f"  ({cut:,} cut by max_tokens or the context)" if cut else "")


def _tokens(tally: Tally) -> str:
    generated = UNKNOWN if tally.uncounted == tally.answers else f"{tally.generated_tokens:,}"
    text = f"{generated} generated, {tally.prompt_tokens:,} of prompts"
    return text + (f" ({tally.uncounted:,} answers uncounted)" if 0 < tally.uncounted < tally.answers else "")


def _failures(failures: Sequence[Mapping[str, Any]]) -> str:
    return ", ".join(f"{failure['reason']} {failure['count']:,} ({failure['kind']})" for failure in failures)


def _in_brackets(failures: Sequence[Mapping[str, Any]]) -> str:
    named = ", ".join(f"{failure['reason']} {failure['count']}" for failure in failures[:3])
    return f" ({named})" if named else ""


def _sum(failures: Sequence[Mapping[str, Any]]) -> int:
    return sum(failure["count"] for failure in failures)


def _counted(pairs: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{name} {count:,}" for name, count in pairs)


def _median(tally: Tally) -> str:
    middle = tally.reasoning.quantile(0.5)
    return "" if middle is None else f" (median {middle} tokens)"
