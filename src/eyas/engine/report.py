"""The reports of the engine stage: counts that come out the same on a rerun, and timings that do not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from operator import add
from typing import Any

from eyas.acceptance import FORMULA, AcceptanceCounts
from eyas.engine.agreement import differences
from eyas.engine.compare import Comparison, compare
from eyas.engine.measure import Measurement, Timing
from eyas.engine.questions import Level
from eyas.engine.run import Runs
from eyas.metrics import share


def engine_report(
    runs: Runs, levels: Sequence[Level], simulated: Mapping[str, Any], dtype: str
) -> dict[str, Any]:
    """The contents of reports/engine.json; what was not measured is None.

    Args:
        runs: the measurements.
        levels: what was asked.
        simulated: contents of reports/acceptance.json.
        dtype: of the target.
    """
    measured = runs.with_drafter.acceptance if runs.with_drafter else None
    total = reduce(add, measured.values()) if measured else None
    return {
        "server": "external" if runs.external else "vllm",
        "version": runs.version,
        "dtype": dtype,
        "draft_tokens": simulated["draft_tokens"],
        "concurrency": levels[0].concurrency,
        "formula": FORMULA,
        "answers": {
            "with_drafter_as_without": _report(_same_answers(runs.without_drafter, runs.with_drafter)),
            "without_drafter_as_stored": _report(_stored_answers(levels, runs.without_drafter)),
            "with_drafter_as_stored": _report(_stored_answers(levels, runs.with_drafter)),
        },
        "datasets": {
            name: _entry(measured[name] if measured else None, simulated["datasets"][name])
            for name in levels[0].datasets
        },
        "overall": _entry(total, simulated["overall"]),
    }


def speed_report(runs: Runs, levels: Sequence[Level]) -> dict[str, Any]:
    """The contents of reports/speed.json: tokens/s by concurrency and dataset, with and without drafter."""
    return {
        "by_concurrency": {
            str(level.concurrency): {
                **_speeds(runs, level.concurrency, list(level.datasets)),
                "datasets": {name: _speeds(runs, level.concurrency, [name]) for name in level.datasets},
            }
            for level in levels
        }
    }


def _same_answers(without: Measurement | None, with_drafter: Measurement | None) -> Comparison | None:
    """Over all levels; an answer at concurrency 1 is compared with the one at concurrency 1."""
    if without is None or with_drafter is None:
        return None
    return reduce(
        add, (compare(without.answers[level], found) for level, found in with_drafter.answers.items())
    )


def _stored_answers(levels: Sequence[Level], run: Measurement | None) -> Comparison | None:
    if run is None:
        return None
    stored = {each.sequence_id: each.answer_ids for group in levels[0].datasets.values() for each in group}
    return reduce(add, (compare(stored, found) for found in run.answers.values()))


def _report(comparison: Comparison | None) -> dict[str, Any] | None:
    return comparison.report() if comparison else None


def _entry(measured: AcceptanceCounts | None, simulated: Mapping[str, Any]) -> dict[str, Any]:
    """Measured beside simulated. Another number of draft tokens than the simulation's can't be compared."""
    positions = len(simulated["conditional"])
    comparable = measured is not None and len(measured.accepted_at) == positions
    nothing = AcceptanceCounts(drafts=0, accepted_at=[0] * positions)
    unmeasured = {**nothing.report(), "drafts": None, "accepted": None}
    return {
        **(measured.report() if measured else unmeasured),
        "simulated": {
            "drafts": simulated["drafts"],
            "accepted": simulated["accepted"],
            "length": simulated["acceptance"]["length"],
            "length_at_most": _length_at_most(simulated),
            "greedy_share": simulated["greedy_share"],
        },
        "difference": differences(measured if measured and comparable else nothing, simulated),
    }


def _length_at_most(simulated: Mapping[str, Any]) -> float | None:
    """Acceptance length if the engine accepted all that it drafts behind the end of an answer."""
    extra = share(simulated["past_end"], simulated["drafts"])
    return None if extra is None else simulated["acceptance"]["length"] + extra


def _speeds(runs: Runs, concurrency: int, datasets: Sequence[str]) -> dict[str, Any]:
    without = _timing(runs.without_drafter, concurrency, datasets)
    with_drafter = _timing(runs.with_drafter, concurrency, datasets)
    both = without is not None and with_drafter is not None
    return {
        "without_drafter": _timing_report(without),
        "with_drafter": _timing_report(with_drafter),
        "speedup": with_drafter.tokens_per_s / without.tokens_per_s
        if both and with_drafter and without
        else None,
    }


def _timing(run: Measurement | None, concurrency: int, datasets: Sequence[str]) -> Timing | None:
    return reduce(add, (run.timings[concurrency][name] for name in datasets)) if run else None


def _timing_report(timing: Timing | None) -> dict[str, float | int] | None:
    if timing is None:
        return None
    return {
        "requests": timing.requests,
        "tokens": timing.tokens,
        "seconds": timing.seconds,
        "tokens_per_s": timing.tokens_per_s,
    }
