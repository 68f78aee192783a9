from __future__ import annotations

from typing import Any

import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine.accepted import Accepted, StandardErrors
from eyas.engine.agreement import differences, disagreements, judged

from .examples import simulated_entry


def exact(drafts: int, accepted_at: list[float]) -> Accepted:
    counts = AcceptanceCounts(drafts, accepted_at)
    return Accepted(counts, counts, None, StandardErrors(0.02, [0.01] * len(accepted_at)))


def counters(drafts: int, accepted_at: list[float]) -> Accepted:
    return Accepted(AcceptanceCounts(drafts, accepted_at), None, None, None)


def test_differences_are_relative_to_the_simulation() -> None:
    assert differences(exact(1000, [500, 200]), simulated_entry(1000, [490, 200]), 2) == {
        "length": 0.00592,
        "at_1": 0.02041,
        "at_2": 0.0,
    }


def test_nothing_accepted_in_the_simulation_has_no_relative_difference() -> None:
    found = differences(exact(600, [300, 3]), simulated_entry(600, [300, 0]), 2)
    assert found == {"length": 0.00333, "at_1": 0.0, "at_2": None}


def test_few_drafts_say_nothing_about_a_position() -> None:
    found = differences(exact(400, [200]), simulated_entry(600, [240]), 1)
    assert found == {"length": 0.07143, "at_1": None}


@pytest.mark.parametrize(
    ("counted", "difference"),
    [
        ([300, 120], 0.0),  # nothing was accepted behind an end
        ([303, 126], 0.0),  # some was
        ([309, 130], 0.03),  # more than there is, at the first position
        ([294, 120], -0.02),
    ],
)
def test_counters_may_hold_what_lies_behind_the_ends_of_answers(
    counted: list[float], difference: float
) -> None:
    entry = simulated_entry(1000, [300, 120], open_at=[0, 6])
    assert differences(counters(1000, counted), entry, 2)["at_1"] == (
        difference if counted[0] != 303 else 0.01
    )
    roomy = simulated_entry(1000, [300, 120], open_at=[9, 12])
    assert differences(counters(1000, counted), roomy, 2)["at_1"] == min(difference, 0.0)


def test_what_is_known_draft_by_draft_needs_no_room() -> None:
    entry = simulated_entry(1000, [300, 120], open_at=[9, 12])
    assert differences(exact(1000, [303, 126]), entry, 2)["at_1"] == 0.01


@pytest.mark.parametrize("other", [None, "three tokens"])
def test_another_number_of_draft_tokens_is_not_compared(other: str | None) -> None:
    entry = None if other is None else simulated_entry(1000, [490, 200])
    assert differences(exact(1000, [500, 200, 1]), entry, 2 if other else 3) in (
        {"length": None, "at_1": None, "at_2": None},
        {"length": None, "at_1": None, "at_2": None, "at_3": None},
    )


def report_entry(found: Accepted, simulated: dict[str, Any]) -> dict[str, Any]:
    keys = ("acceptance", "at_most", "interval", "drafts", "greedy_share")
    return {
        **found.report(1),
        "simulated": {key: simulated[key] for key in keys},
        "difference": differences(found, simulated, 1),
    }


def test_sampled_answers_are_not_judged_against_greedy_ones() -> None:
    entry = report_entry(exact(1000, [500]), simulated_entry(1000, [500], greedy_share=0.6))
    assert not judged(entry, greedy=True)
    assert judged(entry, greedy=False)
    few = report_entry(exact(400, [200]), simulated_entry(1000, [500]))
    assert not judged(few, greedy=True)


def test_chance_explains_near_ties_of_the_same_answers_and_the_error_of_others() -> None:
    entry = report_entry(exact(1000, [510]), simulated_entry(1000, [500]))
    by_rate = {each.rate: each for each in disagreements(entry, same_answers=True)}
    assert by_rate["at_1"].difference == 0.02
    assert by_rate["at_1"].allowed == pytest.approx(3 / 1000 / 0.5)
    entry["simulated"]["interval"] = {"length": [1.45, 1.55], "at_1": [0.5 - 0.0196, 0.5 + 0.0196]}
    by_rate = {each.rate: each for each in disagreements(entry, same_answers=False)}
    assert by_rate["at_1"].allowed == pytest.approx(3 * (0.01**2 + 0.01**2) ** 0.5 / 0.5, rel=1e-4)


def test_an_equal_rate_is_no_disagreement() -> None:
    assert (
        disagreements(report_entry(exact(1000, [500]), simulated_entry(1000, [500])), same_answers=True) == []
    )
