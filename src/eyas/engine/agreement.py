"""The real engine against the simulation: differences of acceptance, and what the sampling error explains of them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.engine.accepted import Accepted

MIN_DRAFTS = 500
"""Fewer say too little: over 500 drafts a rate of 0.4 has a standard error of 0.02, so 5 % of itself."""
MIN_GREEDY_SHARE = 0.9
"""With fewer tokens that are the target's argmax, the stored answers were sampled: a greedy engine gives others."""
SIGMAS = 3.0
"""Standard errors that chance may take; some dozen rates are compared in one run."""
NEAR_TIES = 3
"""Drafts that may end differently although the answers are the same: rounding decides between two likely drafts."""
NORMAL_95 = 1.959964
"""Half the width of a 95 % interval in standard errors."""


@dataclass(frozen=True)
class Disagreement:
    """One rate of one entry of reports/engine.json, measured and simulated."""

    rate: str
    """length, at_1, at_2, ..."""
    measured: float
    simulated: float
    difference: float
    """Relative to the simulated one."""
    allowed: float
    """So much of it chance explains, relative too."""


def differences(
    measured: Accepted, simulated: Mapping[str, Any] | None, draft_tokens: int
) -> dict[str, float | None]:
    """Relative difference (measured - simulated) / simulated of the acceptance length and of each position's rate.

    Where the engine does not tell what it accepted behind the end of an answer, the simulation is the interval between
    nothing and all of that, and the nearer end counts. A position is None unless both sides counted MIN_DRAFTS drafts
    and the simulation accepted something there.

    Args:
        measured: what the engine counted.
        simulated: an entry of by_draft_tokens in reports/acceptance.json; None: there is none.
        draft_tokens: of both.
    """
    keys = ["length", *(f"at_{position}" for position in range(1, draft_tokens + 1))]
    counts = measured.best
    if counts is None or simulated is None or len(counts.accepted_at) != draft_tokens:
        return dict.fromkeys(keys)
    rates = counts.acceptance()
    exact = measured.in_answers is not None
    enough = min(counts.drafts, simulated["drafts"]) >= MIN_DRAFTS
    result: dict[str, float | None] = {}
    for key in keys:
        low, high = simulated["acceptance"].get(key), simulated["at_most"].get(key)
        found = rates[key]
        if found is None or not low or not (enough or key == "length"):
            result[key] = None
            continue
        nearest = low if exact else min(max(found, low), max(high or low, low))
        result[key] = round((found - nearest) / low, 5)
    return result


def judged(entry: Mapping[str, Any], *, greedy: bool) -> bool:
    """Whether an entry of reports/engine.json says enough to compare it with the simulation."""
    simulated = entry["simulated"]
    enough = min(entry["drafts"] or 0, simulated["drafts"] or 0) >= MIN_DRAFTS
    like_the_stored = not greedy or (simulated["greedy_share"] or 0) >= MIN_GREEDY_SHARE
    return enough and like_the_stored and entry["difference"]["length"] is not None


def disagreements(entry: Mapping[str, Any], *, same_answers: bool) -> list[Disagreement]:
    """Every rate of an entry that differs, with what chance explains of it.

    Args:
        entry: of reports/engine.json, judged.
        same_answers: the engine gave the stored answers, so that nothing but rounding may differ.
    """
    simulated, measured = entry["simulated"], entry["in_answers"] or entry
    found = []
    for key, difference in entry["difference"].items():
        if difference is None or difference == 0:
            continue
        expected = simulated["acceptance"][key]
        chance = NEAR_TIES / simulated["drafts"] if same_answers else SIGMAS * _standard_error(entry, key)
        found.append(Disagreement(key, measured["acceptance"][key], expected, difference, chance / expected))
    return found


def _standard_error(entry: Mapping[str, Any], key: str) -> float:
    """Of the difference between two sets of sampled answers, each set with its own error.

    Where the engine tells nothing answer by answer, its drafts count as independent, which is too optimistic.
    """
    simulated = entry["simulated"]
    if entry["standard_error"] is not None:
        own = entry["standard_error"][key]
    else:
        rate = entry["acceptance"][key]
        variance = rate if key == "length" else rate * (1 - rate)
        own = math.sqrt(max(variance, 0.0) / entry["drafts"])
    interval = (simulated["interval"] or {}).get(key)
    other = (interval[1] - interval[0]) / (2 * NORMAL_95) if interval else own
    return math.hypot(own, other)
