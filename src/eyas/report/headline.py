"""The numbers at the top of the page."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.paths import SPLITS
from eyas.report.contents import Contents
from eyas.report.panel import number, percent, signed
from eyas.reports import counted_alike


@dataclass(frozen=True)
class Fact:
    """One number with its name."""

    name: str
    value: str
    note: str = ""


def headline(contents: Contents) -> list[Fact]:
    """The facts that decide whether the drafter is worth serving; those that are not known yet are left out."""
    return [
        *_lengths(contents),
        *_speedups(contents),
        *_identical(contents),
        *_exactness(contents),
    ]


def _lengths(contents: Contents) -> list[Fact]:
    simulated = contents.reports.get("acceptance")
    if simulated is None:
        return []
    engine = (contents.reports.get("engine") or {}).get("datasets", {})
    facts = []
    for name, entry in simulated["datasets"].items():
        measured = engine.get(name)
        length = counted_alike(measured)["acceptance"]["length"] if measured else None
        if measured and length is not None:
            value = number(length, 2)
            note = f"in the engine; {signed(measured['difference']['length'])} against the simulation"
        else:
            value, note = number(entry["acceptance"]["length"], 2), "simulated"
        facts.append(Fact(f"acceptance length, {name}", value, note))
    return facts


def _speedups(contents: Contents) -> list[Fact]:
    report: Mapping[str, Any] = contents.reports.get("speed") or {"by_concurrency": {}}
    levels = sorted(report["by_concurrency"].items(), key=lambda level: int(level[0]))
    return [
        Fact(
            f"speed-up at concurrency {concurrency}",
            number(level["speedup"], 2) + "×",
            ", ".join(f"{name} {number(entry['speedup'], 2)}×" for name, entry in level["datasets"].items()),
        )
        for concurrency, level in levels
        if level["speedup"] is not None
    ]


def _identical(contents: Contents) -> list[Fact]:
    answers = ((contents.reports.get("engine") or {}).get("answers") or {}).get("with_drafter_as_without")
    if not answers:
        return []
    return [
        Fact(
            "same answers with the drafter",
            f"{answers['identical']} of {answers['answers']}",
            "token by token",
        )
    ]


def _exactness(contents: Contents) -> list[Fact]:
    facts = []
    if report := contents.reports.get("reassembly"):
        facts.append(
            Fact(
                "sequences exact by ids",
                percent(report["exact_share"]),
                f"of {number(report['rows'])} answers",
            )
        )
    if report := contents.reports.get("extraction"):
        generated, agreeing = 0, 0.0
        splits = [report[name] for name in SPLITS if name in report]
        for split in splits:
            for entry in split["datasets"].values():
                if entry["agreement"] is not None:
                    generated += entry["generated_tokens"]
                    agreeing += entry["agreement"] * entry["generated_tokens"]
        if generated:
            facts.append(
                Fact(
                    "answers that the stored states predict",
                    percent(agreeing / generated, 2),
                    f"of {number(generated)} tokens",
                )
            )
    return facts
