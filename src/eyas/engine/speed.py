"""reports/speed.json: timings, which come out differently on every rerun."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from eyas.engine.measure import Measurement
from eyas.engine.questions import Level
from eyas.engine.runs import Runs, Variant
from eyas.engine.timing import Timing


def speed_report(runs: Runs, levels: Sequence[Level]) -> dict[str, Any]:
    """The contents of reports/speed.json: speed by concurrency and dataset, with and without drafter, and the sweep.

    Args:
        runs: the measurements.
        levels: what was asked in all rounds together.
    """
    by_concurrency = {
        str(level.concurrency): {
            **_speeds(runs, level.concurrency, list(level.datasets)),
            "datasets": {name: _speeds(runs, level.concurrency, [name]) for name in level.datasets},
        }
        for level in levels
    }
    sweep = {str(variant): _swept(runs, variant, levels) for variant in runs.measured}
    return {
        "rounds": len(runs.rounds),
        "by_concurrency": by_concurrency,
        "by_draft_tokens": sweep,
        "best_draft_tokens": {level: _best(sweep, level) for level in by_concurrency},
    }


def _speeds(runs: Runs, concurrency: int, datasets: Sequence[str]) -> dict[str, Any]:
    without = timing(runs.without_drafter, concurrency, datasets)
    with_drafter = timing(runs.with_drafter, concurrency, datasets)
    return {
        "without_drafter": without.report() if without else None,
        "with_drafter": with_drafter.report() if with_drafter else None,
        "speedup": _speedup(without, with_drafter),
        "speedup_by_round": [
            _speedup(
                timing(each.get(None), concurrency, datasets),
                timing(each.get(runs.draft_tokens), concurrency, datasets),
            )
            for each in runs.rounds
        ]
        if runs.draft_tokens is not None
        else None,
    }


def _swept(runs: Runs, variant: Variant, levels: Sequence[Level]) -> dict[str, Any]:
    """One number of draft tokens: at the highest concurrency, where acceptance is counted, and at each level."""
    run = runs.side(variant)
    speeds = {
        str(level.concurrency): _tokens_and_speedup(
            timing(runs.without_drafter, level.concurrency, list(level.datasets)),
            timing(run, level.concurrency, list(level.datasets)),
        )
        for level in levels
    }
    counts = list(run.acceptance.values()) if run and run.acceptance else []
    return {
        "acceptance_length": reduce(add, counts).length if counts else None,
        **speeds[str(levels[0].concurrency)],
        "by_concurrency": speeds,
    }


def _best(sweep: Mapping[str, Mapping[str, Any]], level: str) -> int | None:
    """The number of draft tokens with the most tokens/s; None if none was measured."""
    measured = [
        (speed, -int(variant))
        for variant, each in sweep.items()
        if (speed := each["by_concurrency"][level]["tokens_per_s"]) is not None
    ]
    return -max(measured)[1] if measured else None


def timing(run: Measurement | None, concurrency: int, datasets: Iterable[str]) -> Timing | None:
    """Of some datasets at a concurrency; None where one of them was not asked."""
    measured = run.timings.get(concurrency, {}) if run else {}
    found = [measured.get(name) for name in datasets]
    known = [each for each in found if each is not None]
    return reduce(add, known) if known and len(known) == len(found) else None


def _tokens_and_speedup(without: Timing | None, with_drafter: Timing | None) -> dict[str, float | None]:
    return {
        "tokens_per_s": with_drafter.tokens_per_s if with_drafter else None,
        "speedup": _speedup(without, with_drafter),
    }


def _speedup(without: Timing | None, with_drafter: Timing | None) -> float | None:
    return with_drafter.tokens_per_s / without.tokens_per_s if without and with_drafter else None
