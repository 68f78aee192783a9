from __future__ import annotations

import math

import numpy as np
import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.doctor.likelihood import advantage, fit
from eyas.referee.simulation import Simulated


def simulated(counts: list[list[int]]) -> Simulated:
    return Simulated(len(counts[0]) - 1, np.array(counts), [])


def test_the_ratio_is_that_of_a_normal_mean() -> None:
    better = np.array([1.0, 2.0, 3.0])
    found = advantage(better, np.zeros(3))
    t = 2.0 / (1.0 / math.sqrt(3))
    assert found.nats == 2.0
    assert found.t == pytest.approx(t)
    # likelihood with the mean estimated against that with mean zero: (sum of squares ratio) ** (n / 2)
    assert math.exp(found.log_ratio) == pytest.approx((14.0 / 2.0) ** 1.5)
    assert advantage(np.zeros(3), better).log_ratio == pytest.approx(-found.log_ratio)


@pytest.mark.parametrize("values", [[1.0], [0.5, 0.5]])
def test_what_does_not_vary_says_nothing(values: list[float]) -> None:
    assert advantage(np.array(values), np.zeros(len(values))).log_ratio == 0.0


def test_a_reading_without_numbers_loses() -> None:
    assert advantage(np.array([np.nan, 1.0]), np.zeros(2)).log_ratio <= 0.0


def test_the_same_counts_fit_and_others_do_not() -> None:
    own = simulated([[40, 20, 10]] * 20)
    same = fit(AcceptanceCounts(800, [400, 200]), own, same_answers=True)
    assert same.worst < 0.1
    near = fit(AcceptanceCounts(800, [405, 200]), own, same_answers=True)
    far = fit(AcceptanceCounts(800, [340, 150]), own, same_answers=True)
    assert near.worst < 3 < far.worst
    assert near.log_likelihood > far.log_likelihood
    # other prompts: chance may do the same
    assert fit(AcceptanceCounts(800, [360, 165]), own, same_answers=False).worst < 3.5


def test_sequences_that_differ_make_counts_say_less() -> None:
    even = simulated([[40, 20]] * 20)
    uneven = simulated([[40, 40], [40, 0]] * 10)
    engine = AcceptanceCounts(800, [320])
    assert fit(engine, even, same_answers=False).worst > 2 * fit(engine, uneven, same_answers=False).worst


def test_one_odd_position_does_not_decide_everything() -> None:
    own = simulated([[40, 20, 10]] * 20)
    odd = fit(AcceptanceCounts(800, [400, 20]), own, same_answers=True)
    assert odd.worst > 10
    assert odd.log_likelihood > fit(AcceptanceCounts(800, [40, 4]), own, same_answers=True).log_likelihood


def test_a_position_that_nothing_reaches_is_no_evidence() -> None:
    own = simulated([[40, 0, 0]] * 20)
    found = fit(AcceptanceCounts(800, [0, 0]), own, same_answers=True)
    assert found.worst < 0.5
