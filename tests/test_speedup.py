from __future__ import annotations

import pytest

from eyas.speedup import RoundCost, best_draft_tokens, break_even


def test_speedup_of_known_costs() -> None:
    """Three target steps' worth of tokens in a round of two steps: 1 + 0.4 + 3 * 0.2."""
    assert RoundCost(per_token=0.2, per_round=0.4).speedup(3.0, 3) == pytest.approx(1.5)
    assert RoundCost(per_token=0.0).speedup(2.2, 5) == pytest.approx(2.2)


@pytest.mark.parametrize("cost", [RoundCost(0.1, 0.3), RoundCost(0.25)])
def test_costs_are_found_again_from_speedups(cost: RoundCost) -> None:
    lengths = {1: 1.6, 3: 2.2, 5: 2.4}
    speedups = {count: cost.speedup(length, count) for count, length in lengths.items()}
    found = RoundCost.measured(speedups, lengths)
    assert (found.per_token, found.per_round) == pytest.approx((cost.per_token, cost.per_round))


def test_one_measurement_gives_a_cost_per_token() -> None:
    found = RoundCost.measured({4: 1.5}, {4: 2.7})
    assert (found.per_token, found.per_round) == pytest.approx((0.2, 0.0))
    with pytest.raises(ValueError, match="measured"):
        RoundCost.measured({}, {})


def test_the_best_number_of_draft_tokens() -> None:
    assert best_draft_tokens({1: 1.2, 2: 1.4, 3: 1.4, 4: None}) == 2
    assert best_draft_tokens({1: None}) is None


def test_break_even_makes_no_difference() -> None:
    assert RoundCost(break_even(2.5, 3)).speedup(2.5, 3) == pytest.approx(1.0)
