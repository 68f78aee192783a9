from __future__ import annotations

import math

import numpy as np
import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine.accepted import Accepted, accepted, standard_errors
from eyas.engine.answer import Answer
from eyas.engine.measure import Measurement

DATASETS = {"a:0": "a", "a:1": "a", "b:0": "b"}


def run(*, detailed: bool = True, counted: bool = True) -> Measurement:
    """Three answers; a:1 has one accepted token behind its end."""
    rounds: dict[str, list[int]] = {"a:0": [1, 0], "a:1": [2], "b:0": [0]}
    lengths = {"a:0": 4, "a:1": 2, "b:0": 2}
    return Measurement(
        "v",
        answers={
            8: {
                key: Answer(
                    list(range(lengths[key])),
                    0.1,
                    0.2,
                    rounds[key] if detailed else None,
                    drafts=len(rounds[key]),
                )
                for key in rounds
            }
        },
        acceptance={"a": AcceptanceCounts(3, [2, 1]), "b": AcceptanceCounts(1, [0, 0])} if counted else None,
    )


def test_counters_and_what_lies_in_the_answers_stand_side_by_side() -> None:
    found = accepted(run(), 8, ["a"], DATASETS)
    assert found.counted == AcceptanceCounts(3, [2, 1])
    assert found.in_answers == AcceptanceCounts(3, [2, 0])
    assert found.best is found.in_answers
    assert found.tokens_per_draft == pytest.approx((3 + 1) / 3)
    both = accepted(run(), 8, ["a", "b"], DATASETS)
    assert both.counted == AcceptanceCounts(4, [2, 1])
    assert both.in_answers == AcceptanceCounts(4, [2, 0])


def test_an_engine_that_tells_no_drafts_has_counters_alone() -> None:
    found = accepted(run(detailed=False), 8, ["a"], DATASETS)
    assert (found.in_answers, found.errors) == (None, None)
    assert found.best == AcceptanceCounts(3, [2, 1])
    report = found.report(2)
    assert (report["drafts"], report["accepted_at"], report["in_answers"]) == (3, [2, 1], None)


def test_an_engine_that_counts_drafts_only_has_tokens_per_draft() -> None:
    found = accepted(run(detailed=False, counted=False), 8, ["a"], DATASETS)
    assert found.counted is None
    assert found.tokens_per_draft == pytest.approx(4 / 3)
    report = found.report(2)
    assert report["acceptance"] == {"length": None, "at_1": None, "at_2": None}
    assert (report["drafts"], report["accepted"], report["accepted_at"]) == (None, None, None)
    assert Accepted(None, None, None, None).report(1)["tokens_per_draft"] is None


def test_standard_errors_are_those_of_a_bootstrap_over_answers() -> None:
    rng = np.random.default_rng(0)
    parts = []
    for _ in range(300):
        rate, drafts = rng.beta(2, 3), int(rng.integers(5, 60))
        first = int(rng.binomial(drafts, rate))
        parts.append(AcceptanceCounts(drafts, [first, int(rng.binomial(first, rate))]))
    errors = standard_errors(parts)
    assert errors is not None
    table = np.array([[part.drafts, part.accepted, *part.accepted_at] for part in parts], dtype=float)
    draws = table[rng.integers(0, len(parts), (4000, len(parts)))].sum(axis=1)
    expected = (draws[:, 1:] / draws[:, :1]).std(axis=0)
    assert [errors.length, *errors.rates] == pytest.approx(expected.tolist(), rel=0.05)
    total = sum(part.drafts for part in parts)
    share = sum(part.accepted_at[0] for part in parts) / total
    assert errors.rates[0] > 1.5 * math.sqrt(share * (1 - share) / total)  # drafts of an answer go together


def test_no_error_is_known_of_a_single_answer() -> None:
    assert standard_errors([AcceptanceCounts(5, [2])]) is None
    assert standard_errors([AcceptanceCounts(0, [0]), AcceptanceCounts(0, [0])]) is None
