"""Panels of the acceptance: what the simulation says, and beside it the engine."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.report.charts import Axis, Series, bars, lines
from eyas.report.contents import Contents, Row
from eyas.report.panel import Panel, Table, number, percent, signed
from eyas.reports import counted_alike


def acceptance_panels(contents: Contents) -> list[Panel]:
    """Panels of reports/acceptance.json, reports/engine.json and their tables; none before the evaluate stage."""
    simulated = contents.reports.get("acceptance")
    if simulated is None:
        return []
    measured = contents.reports.get("engine") or {"datasets": {}}
    panels = [
        _by_draft_position(name, entry, measured["datasets"].get(name))
        for name, entry in simulated["datasets"].items()
    ]
    if rows := contents.tables.get("by_draft_tokens"):
        panels.append(_by_draft_tokens(rows))
    for name, column, title, text in (
        ("by_position", "position", "Along the answer", "Acceptance length of the drafts that start there."),
        ("by_context", "context", "By context length", "Acceptance length by tokens before the draft, prompt included."),
    ):  # fmt: skip
        if rows := contents.tables.get(name):
            panels.append(_along(rows, column, title, text))
    if rows := contents.tables.get("by_kind"):
        panels.append(_by_kind(rows))
    return panels


def _by_draft_position(
    dataset: str, simulated: Mapping[str, Any], measured: Mapping[str, Any] | None
) -> Panel:
    rates = _rates(simulated)
    positions = [str(position) for position in range(1, len(rates) + 1)]
    series = [Series("simulated", positions, rates, dashed=True, colour=0)]
    engine: Sequence[float | None] = [None] * len(rates)
    differences: Mapping[str, float | None] = {}
    if measured is not None:
        engine = _rates(measured)
        differences = measured.get("difference") or {}
        series.append(Series("engine", positions, engine, colour=0))
    rows = [
        [f"token {position}", percent(ours, 2), percent(theirs, 2), signed(differences.get(f"at_{position}"))]
        for position, ours, theirs in zip(positions, rates, engine, strict=True)
    ]
    lengths = [
        simulated["acceptance"]["length"],
        counted_alike(measured)["acceptance"]["length"] if measured is not None else None,
    ]
    rows.append(
        ["acceptance length", number(lengths[0]), number(lengths[1]), signed(differences.get("length"))]
    )
    rows.append(["drafts", number(simulated["drafts"]), number(measured["drafts"] if measured else None), ""])
    return Panel(
        title=f"{dataset}: acceptance by drafted token",
        text="Share of all drafts in which the tokens up to this one were accepted. Two bars that differ: the "
        "integration is at fault; two low bars: the drafter.",
        svg=bars(series, Axis("drafted token", "share of drafts", from_zero=True)),
        table=Table(["", "simulated", "engine", "difference"], rows),
    )


def _rates(entry: Mapping[str, Any]) -> list[float | None]:
    values = counted_alike(entry)["acceptance"]
    places = sorted(int(key.removeprefix("at_")) for key in values if key.startswith("at_"))
    return [values[f"at_{place}"] for place in places]


def _by_draft_tokens(rows: Sequence[Row]) -> Panel:
    series = []
    for place, (dataset, own) in enumerate(_by_dataset(rows)):
        series.append(
            Series(
                dataset,
                [float(row["draft_tokens"]) for row in own],
                [_float(row["acceptance_length"]) for row in own],
                low=[_float(row["low"]) for row in own],
                high=[_float(row["high"]) for row in own],
                colour=place,
            )
        )
    return Panel(
        title="By number of drafted tokens",
        text="Simulated acceptance length, with the 95 % interval over sequences.",
        svg=lines(series, Axis("drafted tokens", "acceptance length")),
        table=_table(rows),
    )


def _along(rows: Sequence[Row], column: str, title: str, text: str) -> Panel:
    series = [
        Series(
            dataset,
            [float(row[column]) for row in own],
            [_float(row["acceptance_length"]) for row in own],
            colour=place,
        )
        for place, (dataset, own) in enumerate(_by_dataset(rows))
    ]
    return Panel(
        title,
        text,
        lines(series, Axis(f"{column} (first token of the bin)", "acceptance length")),
        _table(rows),
    )


def _by_kind(rows: Sequence[Row]) -> Panel:
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    series = []
    for place, (dataset, own) in enumerate(_by_dataset(rows)):
        lengths = {row["kind"]: _float(row["acceptance_length"]) for row in own}
        series.append(Series(dataset, kinds, [lengths.get(kind) for kind in kinds], colour=place))
    return Panel(
        title="By kind of token",
        text="Acceptance length of the drafts that start at a token of this kind.",
        svg=bars(series, Axis("", "acceptance length")),
        table=_table(rows),
    )


def _by_dataset(rows: Sequence[Row]) -> list[tuple[str, list[Row]]]:
    names = dict.fromkeys(row["dataset"] for row in rows)
    return [(name, [row for row in rows if row["dataset"] == name]) for name in names]


def _float(text: str) -> float | None:
    return float(text) if text else None


def _table(rows: Sequence[Row]) -> Table:
    header = list(rows[0])
    return Table(
        [name.replace("_", " ") for name in header], [[row[name] for name in header] for row in rows]
    )
