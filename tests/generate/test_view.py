"""How numbers read."""

from __future__ import annotations

import pytest

from eyas.generate.tally import AnswerFacts, Tally
from eyas.generate.view import age, answer_lines, clock, percent, rate


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "unknown"),
        (0.0, "0%"),
        (1.0, "100%"),
        (0.5, "50%"),
        (0.004, "0.40%"),
        (0.9999, "99.99%"),
        (0.995, "99.50%"),
    ],
)
def test_a_share_is_never_rounded_to_none_or_all(value: float | None, text: str) -> None:
    assert percent(value) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "unknown"), (0, "0:00"), (59.6, "1:00"), (61, "1:01"), (3661, "1:01:01"), (360_000, "100:00:00")],
)
def test_a_clock(seconds: float | None, text: str) -> None:
    assert clock(seconds) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-1, "0 s"),
        (0, "0 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (172_800, "2 days"),
    ],
)
def test_an_age(seconds: float, text: str) -> None:
    assert age(seconds) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0.00123, "0.00123"), (12.34, "12.3"), (1234.5, "1,234"), (0.0, "0")]
)
def test_a_rate(value: float, text: str) -> None:
    assert rate(value) == text


def lines(*facts: AnswerFacts) -> dict[str, str]:
    tally = Tally()
    for fact in facts:
        tally.add(fact)
    return {line.label: line.text for line in answer_lines(tally)}


def test_unknown_numbers_are_said_to_be_unknown() -> None:
    text_only = AnswerFacts("stop", None, None, True, None)
    assert lines(text_only) == {
        "reasoning": "100% of 1 answers, token lengths unknown",
        "finish": "stop 100%",
        "tokens": "unknown generated, 0 of prompts",
    }
    mixed = lines(text_only, AnswerFacts("length", 4, 10, False, None, ("lossy_text",)))
    assert mixed["tokens"] == "10 generated, 4 of prompts (1 answers uncounted)"
    assert mixed["finish"] == "stop 50%, length 50%  (1 cut by max_tokens or the context)"
    assert mixed["flags"] == "lossy_text 1"
