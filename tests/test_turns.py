from __future__ import annotations

from typing import Any

import polars as pl
import pytest
from hypothesis import given as forall
from hypothesis import strategies as st

from eyas.schema import MESSAGES
from eyas.turns import OPEN, questions, turn_count

S: dict[str, Any] = {"role": "system", "content": "s"}
U: dict[str, Any] = {"role": "user", "content": "u"}
T: dict[str, Any] = {"role": "tool", "content": "t"}
A: dict[str, Any] = {"role": "assistant", "content": "a"}
CALL: dict[str, Any] = {
    "role": "assistant",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        pytest.param([U], [[U]], id="a-question"),
        pytest.param([S, U], [[S, U]], id="with-system"),
        pytest.param([U, U], [[U], [U]], id="two-turns"),
        pytest.param([U, A, U], [[U, A, U]], id="a-given-answer-is-history"),
        pytest.param([U, U, A, U], [[U], [U, A, U]], id="generated-then-given"),
        pytest.param([U, T], [[U], [T]], id="a-result-answers-a-generated-call"),
        pytest.param([U, T, T, U], [[U], [T, T], [U]], id="a-block-of-results-is-one-question"),
        pytest.param([U, T, OPEN, T, T], [[U], [T], [T, T]], id="two-blocks"),
        pytest.param([U, OPEN, U], [[U], [U]], id="an-open-turn-elsewhere-changes-nothing"),
        pytest.param([U, CALL, T], [[U, CALL, T]], id="a-given-call"),
        pytest.param([U, CALL, T, T], [[U, CALL, T, T]], id="given-calls"),
        pytest.param([U, U, A], [[U]], id="what-stands-behind-the-last-place-is-left-out"),
        pytest.param([], [], id="nothing"),
    ],
)
def test_questions(messages: list[dict[str, Any]], expected: list[list[dict[str, Any]]]) -> None:
    assert questions(messages) == expected


@forall(st.lists(st.lists(st.sampled_from([S, U, T, A, CALL, OPEN]), max_size=7), max_size=5))
def test_whole_columns_are_counted_as_single_rows(rows: list[list[dict[str, Any]]]) -> None:
    frame = pl.DataFrame({"messages": rows}, schema={"messages": MESSAGES})
    assert frame.select(turn_count()).to_series().to_list() == [len(questions(row)) for row in rows]
