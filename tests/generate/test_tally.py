"""Counting answers."""

from __future__ import annotations

import math
import statistics
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.generate.tally import AnswerFacts, Lengths, Tally, answer_facts, reasoning_length
from eyas.target.spec import ThinkFormat
from tests.generate.counted import THINK

CHANNEL = ThinkFormat("two ids", "<a><b>", "<c><d>", [1, 2], [3, 4], prefilled=False, implicit_end_ids=[[9]])


@pytest.mark.parametrize(
    ("ids", "think", "truncated", "expected"),
    [
        pytest.param([901, 1, 2, 3, 902, 7], THINK, False, 3, id="between both markers"),
        pytest.param([1, 2, 902, 7, 902], THINK, False, 2, id="prefilled, first end counts"),
        pytest.param([50, 901, 902, 7], THINK, False, 0, id="whitespace before, empty thinking"),
        pytest.param([901, 1, 2], THINK, True, 2, id="cut inside thinking"),
        pytest.param([901, 1, 2], THINK, False, None, id="no end although not cut"),
        pytest.param([1, 2, 3, 8, 3, 4, 7], CHANNEL, False, 2, id="markers of two ids"),
        pytest.param([1, 2, 8, 8, 8, 9, 3, 4], CHANNEL, False, 3, id="a tool section ends it"),
        pytest.param([], THINK, True, 0, id="nothing"),
    ],
)
def test_reasoning_is_what_stands_between_the_markers(
    ids: list[int], think: ThinkFormat, truncated: bool, expected: int | None
) -> None:
    assert reasoning_length(ids, think, truncated=truncated) == expected


def stored(**changes: Any) -> dict[str, Any]:
    return {
        "reasoning": None,
        "finish_reason": "stop",
        "usage": {"prompt_tokens": 4, "completion_tokens": 6, "reasoning_tokens": None},
        "prompt_token_ids": [1, 2, 3, 4],
        "token_ids": [901, 1, 2, 3, 902, 7],
        "flags": [],
    } | changes


def test_ids_say_how_long_the_reasoning_is_before_the_server_does() -> None:
    usage = {"prompt_tokens": 4, "completion_tokens": 6, "reasoning_tokens": 5}
    facts = answer_facts(stored(reasoning="R", usage=usage, flags=["lossy_text"]), THINK, 12.0)
    assert facts == AnswerFacts("stop", 4, 6, True, 3, ("lossy_text",), 12.0)
    assert answer_facts(stored(reasoning="R", usage=usage), None, None).reasoning_tokens == 5
    text_only = stored(reasoning="R", usage=usage, token_ids=None, prompt_token_ids=None)
    assert answer_facts(text_only, THINK, None).reasoning_tokens == 5


def test_what_nobody_counted_is_unknown() -> None:
    facts = answer_facts(
        stored(usage=None, token_ids=None, prompt_token_ids=None, reasoning="R"), THINK, None
    )
    assert facts == AnswerFacts("stop", None, None, True, None, (), None)
    assert answer_facts(stored(usage=None), THINK, None) == AnswerFacts("stop", 4, 6, False, None, (), None)


@given(lengths=st.lists(st.integers(0, 200_000), min_size=1), part=st.floats(0.01, 1))
def test_quantiles_are_within_a_few_percent_and_other_numbers_exact(lengths: list[int], part: float) -> None:
    counted = Lengths()
    for length in lengths:
        counted.add(length)
    exact = sorted(lengths)[max(1, math.ceil(part * len(lengths))) - 1]
    found = counted.quantile(part)
    assert found is not None
    assert abs(found - exact) <= 0.5 + 0.022 * exact  # half a bin, and rounding
    assert counted.mean == pytest.approx(statistics.mean(lengths))
    assert (counted.least, counted.most, counted.count) == (min(lengths), max(lengths), len(lengths))
    assert all(small.quantile(0.5) == n for n in range(23) for small in [only(n)])


def only(length: int) -> Lengths:
    """Two neighbours far away keep the ends from helping."""
    counted = Lengths()
    for value in (0, length, length, length, 10**6):
        counted.add(value)
    return counted


def test_no_length_has_no_quantile() -> None:
    assert Lengths().quantile(0.5) is None
    assert Lengths().mean is None


FACTS = st.builds(
    AnswerFacts,
    finish_reason=st.sampled_from(["stop", "length", "tool_calls"]),
    prompt_tokens=st.none() | st.integers(0, 10_000),
    generated_tokens=st.none() | st.integers(0, 10_000),
    reasoned=st.booleans(),
    reasoning_tokens=st.none() | st.integers(0, 10_000),
    flags=st.lists(st.sampled_from(["lossy_text", "misfiled_reasoning"]), unique=True).map(tuple),
    at=st.none() | st.floats(0, 2e9),
)


@given(first=st.lists(FACTS), second=st.lists(FACTS))
def test_two_tallies_add_up_and_survive_json(first: list[AnswerFacts], second: list[AnswerFacts]) -> None:
    parts = []
    for facts in (first, second, [*first, *second]):
        tally = Tally()
        for fact in facts:
            tally.add(fact)
        parts.append(tally)
    before = parts[0].to_json()
    assert parts[0].merged(parts[1]) == parts[2]
    assert parts[0].to_json() == before
    assert Tally.from_json(parts[2].to_json()) == parts[2]
    assert parts[2].answers == len(first) + len(second)
    assert sum(parts[2].finish_reasons.values()) == parts[2].answers


def test_shares() -> None:
    tally = Tally()
    assert [tally.truncated_share, tally.reasoned_share] == [None, None]
    for reason, reasoned in (("stop", True), ("length", True), ("stop", True), ("stop", False)):
        tally.add(AnswerFacts(reason, 1, None, reasoned, None))
    assert [tally.truncated_share, tally.reasoned_share, tally.uncounted] == [0.25, 0.75, 4]
