"""reports/engine.json: counts that come out the same on a rerun of greedy answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.acceptance import FORMULA
from eyas.engine.accepted import Accepted, accepted
from eyas.engine.agreement import differences
from eyas.engine.compare import Comparison, Difference
from eyas.engine.margin import near_tie
from eyas.engine.questions import Level
from eyas.engine.run import questions_of
from eyas.engine.runs import Runs, same_answers, stored_answers

SHOWN_DIFFERENCES = 10


def engine_report(
    runs: Runs, levels: Sequence[Level], simulated: Mapping[str, Any], dtype: str, draft_sampling: str
) -> dict[str, Any]:
    """The contents of reports/engine.json; what was not measured is None.

    Args:
        runs: the measurements.
        levels: what was asked in all rounds together.
        simulated: contents of reports/acceptance.json.
        dtype: of the target.
        draft_sampling: see SpeculationParams; decides nothing at temperature 0.
    """
    asking = runs.asking
    entries = {variant: _entries(runs, variant, levels, simulated) for variant in runs.measured}
    main = runs.draft_tokens
    return {
        "server": "external" if runs.external else "vllm",
        "engine": runs.dialect,
        "version": runs.version,
        "dtype": dtype,
        "sampling": {
            "temperature": 0.0 if asking.greedy else asking.temperature,
            "top_p": asking.top_p,
            "top_k": asking.top_k,
            "draft": draft_sampling,
        },
        "draft_tokens": main,
        "concurrency": levels[0].concurrency,
        "formula": FORMULA,
        "answers": _answers(runs, main, levels, dtype),
        **(entries[main] if main is not None else _unmeasured(levels, simulated)),
        "by_draft_tokens": {
            str(variant): {
                **entries[variant],
                "answers": _answers(runs, variant, levels, dtype)["with_drafter_as_without"],
            }
            for variant in runs.measured
        },
    }


def _entries(
    runs: Runs, variant: int, levels: Sequence[Level], simulated: Mapping[str, Any]
) -> dict[str, Any]:
    """`datasets` and `overall` of one number of draft tokens."""
    run = runs.side(variant)
    assert run is not None
    datasets = {key: each.dataset for key, each in questions_of(levels[:1]).items()}
    names = list(levels[0].datasets)

    def entry(chosen: list[str], expected: Mapping[str, Any]) -> dict[str, Any]:
        found = accepted(run, levels[0].concurrency, chosen, datasets)
        return _entry(found, expected, variant, compared=runs.chain)

    return {
        "datasets": {name: entry([name], simulated["datasets"][name]) for name in names},
        "overall": entry(names, simulated["overall"]),
    }


def _entry(found: Accepted, expected: Mapping[str, Any], variant: int, *, compared: bool) -> dict[str, Any]:
    """Measured beside simulated. Another number of draft tokens than the simulation's can't be compared."""
    entry = expected.get("by_draft_tokens", {}).get(str(variant)) if compared else None
    return {
        **found.report(variant),
        "simulated": _simulated(expected, entry),
        "difference": differences(found, entry, variant),
    }


def _unmeasured(levels: Sequence[Level], simulated: Mapping[str, Any]) -> dict[str, Any]:
    draft_tokens = int(simulated["draft_tokens"])
    nothing = Accepted(None, None, None, None)

    def entry(expected: Mapping[str, Any]) -> dict[str, Any]:
        return _entry(nothing, expected, draft_tokens, compared=True)

    return {
        "datasets": {name: entry(simulated["datasets"][name]) for name in levels[0].datasets},
        "overall": entry(simulated["overall"]),
    }


def _simulated(expected: Mapping[str, Any], entry: Mapping[str, Any] | None) -> dict[str, Any]:
    """What of the simulation stands beside the measured numbers."""
    found = entry or {}
    return {
        "drafts": found.get("drafts"),
        "accepted": found.get("accepted"),
        "length": found.get("acceptance", {}).get("length"),
        "length_at_most": found.get("length_at_most"),
        "greedy_share": expected["greedy_share"],
        **{name: found.get(name) for name in ("acceptance", "at_most", "interval")},
    }


def _answers(runs: Runs, variant: int | None, levels: Sequence[Level], dtype: str) -> dict[str, Any]:
    """Which answers are the same. Sampled ones can't be, and are not compared."""
    names = ("with_drafter_as_without", "without_drafter_as_stored", "with_drafter_as_stored")
    if not runs.asking.greedy:
        return dict.fromkeys(names)
    questions = questions_of(levels).values()
    without = runs.without_drafter
    with_drafter = None if variant is None else runs.side(variant)
    comparisons = (
        same_answers(without, with_drafter),
        stored_answers(questions, without),
        stored_answers(questions, with_drafter),
    )
    return {name: _comparison(each, runs, dtype) for name, each in zip(names, comparisons, strict=True)}


def _comparison(comparison: Comparison | None, runs: Runs, dtype: str) -> dict[str, Any] | None:
    if comparison is None:
        return None
    explained = [_difference(each, runs, dtype) for each in comparison.differences]
    return {
        "answers": comparison.total,
        "identical": comparison.identical,
        "near_ties": sum(each["near_tie"] is True for each in explained),
        "real_differences": sum(each["near_tie"] is False for each in explained),
        "first_difference": explained[0] if explained else None,
        "differences": explained[:SHOWN_DIFFERENCES],
    }


def _difference(each: Difference, runs: Runs, dtype: str) -> dict[str, Any]:
    """`margin`: how much more likely the expected token is than the found one, in nats."""
    margin = runs.margins.get(each)
    return {
        "sequence_id": each.sequence_id,
        "position": each.position,
        "expected": each.expected,
        "found": each.found,
        "margin": margin,
        "near_tie": near_tie(margin, dtype),
    }
