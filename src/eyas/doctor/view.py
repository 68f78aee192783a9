"""A diagnosis for people and as JSON."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from eyas.acceptance import AcceptanceCounts
from eyas.doctor.causes import CAUSES, title
from eyas.doctor.diagnosis import Diagnosis, Suspect

HUGE = 1e6
"""Likelihood ratios are not said more exactly than this: the model of chance is not that good."""
COLOURS = {"fault": "bold red", "doubt": "yellow", "note": "dim"}


def as_json(diagnosis: Diagnosis) -> dict[str, Any]:
    """Everything, with the verdict and rates; likelihood ratios as natural logarithms."""
    return {
        "cause": diagnosis.cause,
        "verdict": diagnosis.verdict,
        "engine_follows_folder": diagnosis.engine_follows,
        "suspects": [
            {
                **asdict(each),
                "title": title(each.cause),
                "source": CAUSES[each.cause].source,
                "then": each.then.report() if each.then else None,
            }
            for each in diagnosis.suspects
        ],
        "findings": [asdict(each) for each in diagnosis.findings],
        "simulated": diagnosis.as_is.report() if diagnosis.as_is else None,
        "accuracy_by_draft_step": diagnosis.accuracy,
        "engine": diagnosis.engine.counts.report() if diagnosis.engine else None,
        "deviations": diagnosis.fit.deviations if diagnosis.fit else None,
        "skipped": diagnosis.skipped,
    }


def view(diagnosis: Diagnosis) -> RenderableType:
    """Verdict, line to change, likelihoods, acceptance side by side, findings."""
    return Group(*_parts(diagnosis))


def _parts(diagnosis: Diagnosis) -> Iterator[RenderableType]:
    yield Text(diagnosis.verdict, style="bold red" if diagnosis.suspects else "bold")
    for place, suspect in enumerate(diagnosis.suspects):
        yield Text("")
        yield from _suspect(place, suspect)
    yield Text("")
    yield _acceptance(diagnosis)
    for finding in diagnosis.findings:
        yield Text(f"{finding.severity}: {finding.text}", style=COLOURS[finding.severity])
    for reason in diagnosis.skipped:
        yield Text(f"not tried: {reason}", style="dim")


def _suspect(place: int, suspect: Suspect) -> Iterator[Text]:
    yield Text(f"{place + 1}. {title(suspect.cause)}", style="bold")
    yield Text(f"   {suspect.where}: {suspect.what}")
    if suspect.change is not None:
        yield Text(f"   change: {suspect.change.text}")
    yield Text(f"   {likelihood(suspect)}")
    if suspect.then is not None:
        label = "acceptance with the repair" if suspect.where == "folder" else "acceptance it would give"
        yield Text(f"   {label}: {_rates(suspect.then)}")
    yield Text(f"   seen in: {CAUSES[suspect.cause].source}", style="dim")


def likelihood(suspect: Suspect) -> str:
    """How sure it is, in words."""
    if suspect.log_ratio is None or suspect.against_next is None:
        return "certain: read off the folder"
    return (
        f"{ratio(suspect.log_ratio)} times as likely as no fault, "
        f"{ratio(suspect.against_next)} times as likely as the next explanation"
    )


def ratio(logarithm: float) -> str:
    """A likelihood ratio from its natural logarithm."""
    value = math.exp(min(logarithm, math.log(HUGE)))
    return f"more than {HUGE:,.0f}" if value >= HUGE else f"{value:,.0f}" if value >= 10 else f"{value:.1f}"


def _acceptance(diagnosis: Diagnosis) -> Table:
    table = Table(box=None, pad_edge=False)
    steps = max(len(diagnosis.accuracy), len(diagnosis.engine.counts.accepted_at) if diagnosis.engine else 0)
    for name in ("", "drafts", "length", *(f"at {place}" for place in range(1, steps + 1))):
        table.add_column(name, justify="left" if not name else "right")
    for name, counts in (
        ("simulated, folder as it is", diagnosis.as_is),
        ("engine", diagnosis.engine.counts if diagnosis.engine else None),
    ):
        if counts is not None:
            rates = [f"{rate:.3f}" for rate in counts.rates if rate is not None]
            table.add_row(name, f"{counts.drafts:,}", f"{counts.length or 1:.3f}", *rates)
    if diagnosis.fit is not None:
        deviations = [f"{each:+.1f}" for each in diagnosis.fit.deviations]
        table.add_row("difference, standard deviations", "", "", *deviations)
    if diagnosis.accuracy:
        table.add_row(
            "right by step, fed with the truth", "", "", *(f"{each:.3f}" for each in diagnosis.accuracy)
        )
    return table


def _rates(counts: AcceptanceCounts) -> str:
    rates = ", ".join(f"{rate:.3f}" for rate in counts.rates if rate is not None)
    return f"length {counts.length or 1:.3f} ({rates})"
