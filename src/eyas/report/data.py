"""Panels of the data: what became of the answers, and what the sequences are made of."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.report.charts import Axis, Series, bars, lines
from eyas.report.contents import Contents, Row
from eyas.report.panel import Panel, Table, number, percent


def data_panels(contents: Contents) -> list[Panel]:
    """Panels of reports/reassembly; none before that stage."""
    panels = []
    if rows := contents.tables.get("rows"):
        panels.append(
            _grouped(rows, "outcome", "rows", "What became of the answers", "Answers, by dataset.", "answers")
        )
    if rows := contents.tables.get("kinds"):
        panels.append(
            _grouped(
                rows, "kind", "share", "Tokens by kind", "Only tokens that are no prompt are learnt.", "share"
            )
        )
    if rows := contents.tables.get("lengths"):
        panels.append(_lengths(rows))
    return panels


def _grouped(rows: Sequence[Row], group: str, value: str, title: str, text: str, label: str) -> Panel:
    datasets = list(dict.fromkeys(row["dataset"] for row in rows))
    found = {(row["dataset"], row[group]): float(row[value]) for row in rows}
    groups = [
        name
        for name in dict.fromkeys(row[group] for row in rows)
        if any(found.get((dataset, name)) for dataset in datasets)
    ]
    series = [
        Series(name.replace("_", " "), datasets, [found.get((dataset, name)) for dataset in datasets])
        for name in groups
    ]
    return Panel(
        title,
        text,
        bars(series, Axis("", label, from_zero=True)),
        Table(["", *datasets], [[one.name, *(_shown(y, value) for y in one.y)] for one in series]),
    )


def _shown(amount: float | None, column: str) -> str:
    return percent(amount) if column == "share" else number(amount, 0)


def _lengths(rows: Sequence[Row]) -> Panel:
    datasets = dict.fromkeys(row["dataset"] for row in rows)
    series = []
    for dataset in datasets:
        own = [row for row in rows if row["dataset"] == dataset]
        series.append(Series(dataset, [float(r["length"]) for r in own], [float(r["rows"]) for r in own]))
    table = [[one.name, number(sum(y or 0 for y in one.y), 0)] for one in series]
    return Panel(
        "Sequence lengths",
        "Prompt and answer together.",
        lines(series, Axis("tokens (first of the bin)", "sequences", from_zero=True), points=False),
        Table(["", "sequences"], table),
    )
