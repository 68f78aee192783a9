"""Panels of the engine's speed, with and without the drafter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.report.charts import Axis, Series, bars, lines
from eyas.report.contents import Contents
from eyas.report.panel import Panel, Table, number

ALL = "all prompts"
SIDES = (("without drafter", "without_drafter"), ("with drafter", "with_drafter"))


def speed_panels(contents: Contents) -> list[Panel]:
    """Panels of reports/speed.json; none before the engine stage."""
    report = contents.reports.get("speed")
    if report is None:
        return []
    levels = sorted(report["by_concurrency"].items(), key=lambda level: int(level[0]))
    panels = [_speedup(levels), _throughput(levels)]
    sweep = report.get("by_draft_tokens") or {}
    if len(sweep) > 1:
        panels.append(_sweep(sweep, report.get("best_draft_tokens") or {}))
    return panels


def _speedup(levels: Sequence[tuple[str, Mapping[str, Any]]]) -> Panel:
    names = list(dict.fromkeys(name for _, level in levels for name in level["datasets"]))
    concurrencies = [concurrency for concurrency, _ in levels]
    values = {ALL: [level["speedup"] for _, level in levels]}
    for name in names:
        values[name] = [level["datasets"].get(name, {}).get("speedup") for _, level in levels]
    series = [Series(name, concurrencies, values[name]) for name in [*names, ALL]]
    return Panel(
        title="Speed-up by concurrency",
        text="Tokens per second with the drafter, divided by those without, on the same prompts. Below the dotted "
        "line the drafter costs more than it brings.",
        svg=bars(series, Axis("requests at a time", "times as fast", from_zero=True, reference=1.0)),
        table=Table(
            ["", *(f"{concurrency} at a time" for concurrency in concurrencies)],
            [[one.name, *(number(value, 2) for value in one.y)] for one in series],
        ),
    )


def _throughput(levels: Sequence[tuple[str, Mapping[str, Any]]]) -> Panel:
    series = [
        Series(
            title,
            [concurrency for concurrency, _ in levels],
            [(level[side] or {}).get("tokens_per_s") for _, level in levels],
            dashed=side == "without_drafter",
            colour=0,
        )
        for title, side in SIDES
    ]
    rows = []
    for concurrency, level in levels:
        for dataset, entry in [*level["datasets"].items(), (ALL, level)]:
            for title, side in SIDES:
                if entry[side]:
                    rows.append([concurrency, dataset, title, *_numbers(entry[side])])
    return Panel(
        title="Throughput",
        text="Generated tokens per second over all prompts.",
        svg=bars(series, Axis("requests at a time", "tokens/s", from_zero=True)),
        table=Table(
            [
                "at a time", "prompts", "server", "requests", "tokens", "tokens/s",
                "first token p50", "first token p90", "per token p50", "per token p90",
            ],
            rows,
        ),
    )  # fmt: skip


def _sweep(sweep: Mapping[str, Mapping[str, Any]], best: Mapping[str, int | None]) -> Panel:
    counts = sorted(sweep, key=int)
    concurrencies = sorted({c for entry in sweep.values() for c in entry["by_concurrency"]}, key=int)
    series = [
        Series(
            f"{concurrency} at a time",
            [float(count) for count in counts],
            [sweep[count]["by_concurrency"].get(concurrency, {}).get("speedup") for count in counts],
        )
        for concurrency in concurrencies
    ]
    winners = ", ".join(f"{number(best.get(c))} at concurrency {c}" for c in concurrencies)
    rows = [
        [count, number(sweep[count]["acceptance_length"]), *(number(one.y[place], 2) for one in series)]
        for place, count in enumerate(counts)
    ]
    return Panel(
        title="By number of drafted tokens",
        text=f"Measured speed-up. The best number of drafted tokens: {winners}.",
        svg=lines(series, Axis("drafted tokens", "times as fast", reference=1.0)),
        table=Table(
            ["drafted tokens", "acceptance length", *(f"speed-up, {one.name}" for one in series)], rows
        ),
    )


def _numbers(entry: Mapping[str, Any]) -> list[str]:
    first = entry.get("time_to_first_token_s") or {}
    each = entry.get("time_per_token_s") or {}
    return [
        number(entry["requests"]),
        number(entry["tokens"]),
        number(entry["tokens_per_s"], 1),
        *(_milliseconds(values.get(quantile)) for values in (first, each) for quantile in ("p50", "p90")),
    ]


def _milliseconds(seconds: float | None) -> str:
    return "–" if seconds is None else f"{seconds * 1000:,.0f} ms"
