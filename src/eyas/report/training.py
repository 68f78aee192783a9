"""Panels of the training."""

from __future__ import annotations

from collections.abc import Sequence

from eyas.report.charts import Axis, Series, lines
from eyas.report.contents import Contents, Row
from eyas.report.panel import Panel, Table, number


def training_panels(contents: Contents) -> list[Panel]:
    """Panels of reports/train; none before the train stage."""
    panels = []
    if rows := contents.tables.get("validations"):
        panels.append(_validations(rows))
    losses = {name: rows for name, rows in contents.curves.items() if name.startswith("loss_step_") and rows}
    if losses:
        panels.append(
            _curves(
                losses,
                "Loss by draft step",
                "Soft cross-entropy or what `train.objective` says, in nats.",
                "loss",
            )
        )
    if rate := contents.curves.get("lr"):
        panels.append(_curves({"lr": rate}, "Learning rate", "Of the matrices.", "learning rate"))
    return panels


def _validations(rows: Sequence[Row]) -> Panel:
    epochs = [float(row["epoch"]) for row in rows]
    columns = list(rows[0])
    return Panel(
        title="Acceptance length on the val split",
        text="Simulated on whole answers that no training step has seen; epoch 0 is the untrained drafter.",
        svg=lines(
            [Series("val", epochs, [float(row["acceptance_length"]) for row in rows])],
            Axis("epoch", "acceptance length"),
        ),
        table=Table(
            [name.replace("_", " ") for name in columns],
            [[_short(row[name]) for name in columns] for row in rows],
        ),
    )


def _curves(curves: dict[str, list[Row]], title: str, text: str, label: str) -> Panel:
    series = [
        Series(
            name.replace("_", " "),
            [float(row["step"]) for row in rows],
            [float(row[name]) for row in rows],
        )
        for name, rows in curves.items()
    ]
    last = [[one.name, number(one.y[0], 5), number(one.y[-1], 5)] for one in series]
    return Panel(
        title,
        text,
        lines(series, Axis("optimiser step", label), points=False),
        Table(["", "first", "last"], last),
    )


def _short(text: str) -> str:
    return text if text.isdigit() else f"{float(text):.4f}" if text else "–"
