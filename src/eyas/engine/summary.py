"""The table that a person sees at the end of the stage."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

UNKNOWN = "-"


def summary(engine: Mapping[str, Any], speed: Mapping[str, Any]) -> list[str]:
    """Lines: acceptance length simulated and measured and the speed-up by concurrency, dataset by dataset; then whether
    answers stayed the same, and the fastest number of draft tokens.

    Args:
        engine: contents of reports/engine.json.
        speed: contents of reports/speed.json.
    """
    levels = list(speed["by_concurrency"])
    header = ["dataset", "simulated", "engine", *(f"speed-up at {level}" for level in levels)]
    rows = [
        [name, *_lengths(entry), *(_times(_speedup(speed, level, name)) for level in levels)]
        for name, entry in engine["datasets"].items()
    ]
    rows.append(
        [
            "all",
            *_lengths(engine["overall"]),
            *(_times(speed["by_concurrency"][level]["speedup"]) for level in levels),
        ]
    )
    return [*_aligned([header, *rows]), *_answers(engine), *_sweep(speed)]


def _lengths(entry: Mapping[str, Any]) -> list[str]:
    """Simulated and measured, both without what lies behind the ends of answers if the engine tells."""
    measured = (entry["in_answers"] or entry)["acceptance"]["length"]
    return [_length(entry["simulated"]["length"]), _length(measured)]


def _answers(engine: Mapping[str, Any]) -> Iterator[str]:
    answers = engine["answers"]["with_drafter_as_without"]
    if answers is not None:
        near = f", {answers['near_ties']} differ at a near tie" if answers["near_ties"] else ""
        yield f"same answers with the drafter as without: {answers['identical']} of {answers['answers']}{near}"


def _sweep(speed: Mapping[str, Any]) -> Iterator[str]:
    for level, best in speed["best_draft_tokens"].items():
        measured = {key: each["by_concurrency"][level] for key, each in speed["by_draft_tokens"].items()}
        if best is None or len(measured) < 2:
            continue
        speeds = ", ".join(
            f"{key}: {each['tokens_per_s']:.1f}"
            for key, each in measured.items()
            if each["tokens_per_s"] is not None
        )
        gain = measured[str(best)]["speedup"]
        slower = ", slower than without drafter" if gain is not None and gain < 1 else ""
        yield f"fastest at {level} in flight: {best} draft tokens (tokens/s by draft tokens: {speeds}){slower}"


def _speedup(speed: Mapping[str, Any], level: str, name: str) -> float | None:
    found: float | None = speed["by_concurrency"][level]["datasets"].get(name, {}).get("speedup")
    return found


def _length(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.3f}"


def _times(value: float | None) -> str:
    return UNKNOWN if value is None else f"{value:.2f}x"


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    """Names to the left, numbers to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if place == 0 else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in rows
    ]
