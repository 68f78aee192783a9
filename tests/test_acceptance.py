from __future__ import annotations

import pytest

from eyas.acceptance import AcceptanceCounts


def test_rates_of_known_counts() -> None:
    counts = AcceptanceCounts(drafts=10, accepted_at=[6, 3, 0])
    assert counts.accepted == 9
    assert counts.length == pytest.approx(1.9)
    assert counts.rates == [0.6, 0.3, 0.0]
    assert counts.conditional_rates == [0.6, 0.5, 0.0]


def test_what_was_never_counted_is_missing_not_zero() -> None:
    assert AcceptanceCounts(drafts=0, accepted_at=[0, 0]).report() == {
        "drafts": 0,
        "accepted": 0,
        "acceptance": {"length": None, "at_1": None, "at_2": None},
        "conditional": {"at_1": None, "at_2": None},
    }
    assert AcceptanceCounts(drafts=4, accepted_at=[0, 0]).conditional_rates == [0.0, None]


def test_counts_of_parts_add_up() -> None:
    total = AcceptanceCounts(10, [5, 2]) + AcceptanceCounts(30, [3, 1])
    assert total == AcceptanceCounts(40, [8, 3])
    assert total.length == pytest.approx(1.275)
