"""What of the engine's report fails the stage."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.engine.agreement import MIN_DRAFTS, disagreements, judged
from eyas.errors import GateError
from eyas.metrics import write_report

logger = logging.getLogger(__name__)

MAX_REAL_SHARE = 0.05
"""Of answers in 16 bits that may change for another reason than a near tie between two tokens."""


@dataclass(frozen=True)
class Limits:
    """Largest relative differences between measured and simulated acceptance."""

    greedy: float
    sampled: float
    """Beyond the sampling error."""


def gate(reports: Mapping[str, Mapping[str, Any]], limits: Limits, keep_at: Path, *, fails: bool) -> None:
    """Stop on a fault, keeping the reports: a failed stage publishes nothing.

    Args:
        reports: "engine" and "speed".
        limits: see find_faults.
        keep_at: file for the reports of a failed run.
        fails: whether a fault stops the stage or is only said aloud.

    Raises:
        GateError: there is a fault.
    """
    greedy = reports["engine"]["sampling"]["temperature"] == 0
    for name, entry in _entries(reports["engine"]):
        if not judged(entry, greedy=greedy):
            logger.warning(
                "%s: engine and simulation are not compared: that needs %d drafts on each side (%s and %s here) and "
                "answers that are made as the stored ones were",
                name,
                MIN_DRAFTS,
                entry["drafts"],
                entry["simulated"]["drafts"],
            )
    faults = find_faults(reports["engine"], limits)
    for fault in faults:
        logger.warning("%s", fault)
    if faults and fails:
        write_report(keep_at, reports)
        raise GateError(
            "; ".join(faults),
            where=str(keep_at),
            hint="is it the drafter or the integration? `eyas doctor drafter` compares this with the simulation",
        )


def find_faults(report: Mapping[str, Any], limits: Limits) -> list[str]:
    """Why the engine's report must fail the stage, one sentence each; empty if it must not.

    Answers must be the same with and without drafter. In 32 bits every difference that is no near tie is a fault; in 16
    bits a batch of another shape rounds so differently that MAX_REAL_SHARE of the answers may change beyond that.

    Args:
        report: contents of reports/engine.json.
        limits: of each acceptance rate; judged where MIN_DRAFTS drafts were counted.
    """
    return [*_changed_answers(report), *_wrong_rates(report, limits)]


def _changed_answers(report: Mapping[str, Any]) -> Iterator[str]:
    by_draft_tokens = report["by_draft_tokens"]
    for variant, answers in {key: each["answers"] for key, each in by_draft_tokens.items()}.items():
        if answers is None:
            continue
        changed = answers["answers"] - answers["identical"]
        strict = report["dtype"] == "float32"
        count = changed - answers["near_ties"] if strict else answers["real_differences"]
        if count > (0 if strict else MAX_REAL_SHARE * answers["answers"]):
            first = next((each for each in answers["differences"] if each["near_tie"] is not True), None)
            yield (
                f"{changed} of {answers['answers']} answers change with the drafter ({_with(variant)}), {count} of them "
                f"by more than a near tie{_place(first)}"
            )


def _place(first: Mapping[str, Any] | None) -> str:
    if first is None:
        return ""
    margin = first["margin"]
    likelier = "" if margin is None else f", {margin:+.3g} nats between them"
    return (
        f", first {first['sequence_id']} at token {first['position']}: {first['expected']} without, "
        f"{first['found']} with it{likelier}"
    )


def _wrong_rates(report: Mapping[str, Any], limits: Limits) -> Iterator[str]:
    greedy = report["sampling"]["temperature"] == 0
    limit = limits.greedy if greedy else limits.sampled
    stored = report["answers"]["with_drafter_as_stored"]
    same = stored is not None and stored["identical"] == stored["answers"]
    for name, entry in _entries(report):
        if not judged(entry, greedy=greedy):
            continue
        for each in disagreements(entry, same_answers=same):
            if abs(each.difference) > limit + each.allowed:
                yield (
                    f"{name}: acceptance {each.rate} is {each.measured:.3f} in the engine, {each.simulated:.3f} "
                    f"simulated, {each.difference:+.1%}; {limit:.1%} and {each.allowed:.1%} by chance are allowed"
                )


def _entries(report: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every entry with its name in messages."""
    for variant, each in report["by_draft_tokens"].items():
        for name, entry in [*each["datasets"].items(), ("all datasets", each["overall"])]:
            yield f"{name}, {_with(variant)}", entry


def _with(variant: str) -> str:
    return "1 draft token" if variant == "1" else f"{variant} draft tokens"
