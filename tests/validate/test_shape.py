"""How generated ids divide into thinking and answer: hand-made turns with hand-counted tokens."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eyas.target.spec import TargetProfile
from eyas.validate.shape import SHAPE, with_shape
from tests import hand_made
from tests.hand_made import END, END_THINK, PROMPT_IDS, THINK, responses
from tests.validate.judging import OPEN_PROMPT, PLAIN, PREFILLED, THINKING, text

TOOLS = 35
BY_ARGUMENT = replace(
    THINKING, think=replace(hand_made.THINKING, gap_after_start="\n", gap_after_start_ids=[10])
)
"""Not prefilled: only a template argument that no switch is known for puts the opening marker into the prompt."""
CHANNELS = replace(
    THINKING,
    think=replace(
        hand_made.THINKING,
        start_ids=[5, 11, 7],
        end_ids=[6, 1, 9, 5, 12, 7],
        implicit_end_ids=[[6, 1, 9, 5, 13]],
        answer_start_ids=[5, 12, 7],
    ),
)
"""Markers of several tokens, as channels have them."""


def shape(row: dict[str, Any], target: TargetProfile) -> dict[str, Any]:
    table = with_shape(responses([row]), target)
    assert {name: table.schema[name] for name in SHAPE} == dict(SHAPE)
    return table.select(SHAPE.names()).row(0, named=True)


@pytest.mark.parametrize(
    ("ids", "opened", "closed", "thinking", "answer"),
    [
        pytest.param([THINK, 30, 31, END_THINK, 32, END], True, True, 2, 1, id="both"),
        pytest.param([10, THINK, 30, END_THINK, 10, 32, END], True, True, 1, 2, id="newline-in-front"),
        pytest.param([THINK, END_THINK, 32, END], True, True, 0, 1, id="empty-thinking"),
        pytest.param([THINK, 30, 31, 32], True, False, 3, 0, id="cut-inside"),
        pytest.param([THINK, 30, END_THINK], True, True, 1, 0, id="cut-behind"),
        pytest.param([30, 31, END], False, False, 0, 2, id="no-thinking"),
        pytest.param([30, 31, 32, 33, THINK, 30, END], False, False, 0, 6, id="literal-marker"),
        pytest.param([30, END_THINK, 31, END], False, False, 0, 3, id="never-opened"),
        pytest.param([THINK, 30, END_THINK, 31, END_THINK, 32, END], True, True, 1, 3, id="first-end-counts"),
    ],
)
def test_a_target_that_writes_its_opening_marker(
    ids: list[int], opened: bool, closed: bool, thinking: int, answer: int
) -> None:
    found = shape(hand_made.raw(token_ids=ids), THINKING)
    assert (found["opened"], found["closed"]) == (opened, closed)
    assert (found["thinking_tokens"], found["answer_tokens"]) == (thinking, answer)
    assert (found["prefilled"], found["thinking_off"]) == (False, False)


@pytest.mark.parametrize(
    ("prompt", "ids", "prefilled", "opened", "thinking", "answer"),
    [
        pytest.param(OPEN_PROMPT, [30, END_THINK, 32, END], True, True, 1, 1, id="opened-by-the-prompt"),
        pytest.param(OPEN_PROMPT, [30, 31], True, True, 2, 0, id="cut-inside"),
        pytest.param([*OPEN_PROMPT, END_THINK], [30, 31, END], False, False, 0, 2, id="switched-off"),
        pytest.param(
            [THINK, 20, *PROMPT_IDS], [30, 31, END], False, False, 0, 2, id="marker-in-the-users-text"
        ),
        pytest.param(
            [*PROMPT_IDS[:-3], THINK, 1, 9, 10], [30, END], False, False, 0, 1, id="marker-before-the-header"
        ),
    ],
)
def test_a_target_whose_template_writes_it(
    prompt: list[int], ids: list[int], prefilled: bool, opened: bool, thinking: int, answer: int
) -> None:
    found = shape(hand_made.raw(prompt_token_ids=prompt, token_ids=ids), PREFILLED)
    assert (found["prefilled"], found["opened"]) == (prefilled, opened)
    assert (found["thinking_tokens"], found["answer_tokens"]) == (thinking, answer)
    assert found["thinking_off"] == (prompt[-1] == END_THINK)


@pytest.mark.parametrize("target", [BY_ARGUMENT, replace(PREFILLED, think=BY_ARGUMENT.think)])
@pytest.mark.parametrize(
    ("behind", "opened"),
    [
        pytest.param([THINK], True, id="marker"),
        pytest.param([THINK, 10], True, id="marker-and-gap"),
        pytest.param([THINK, 10, 10], False, id="another-gap"),
        pytest.param([THINK, END_THINK], False, id="closed-again"),
    ],
)
def test_a_prompt_that_ends_with_the_marker_opens_thinking_whatever_the_format_expects(
    target: TargetProfile, behind: list[int], opened: bool
) -> None:
    row = hand_made.raw(prompt_token_ids=[*PROMPT_IDS, *behind], token_ids=[30, 31, END_THINK, 32, END])
    found = shape(row, target)
    assert (found["prefilled"], found["opened"], found["closed"]) == (opened, opened, opened)
    assert (found["thinking_tokens"], found["answer_tokens"]) == ((2, 1) if opened else (0, 4))


@pytest.mark.parametrize(
    ("ids", "closed", "thinking", "answer", "left"),
    [
        pytest.param([5, 11, 7, 30, 31, 6, 1, 9, 5, 12, 7, 32, END], True, 2, 1, False, id="final"),
        pytest.param([5, 11, 7, 30, 6, 1, 9, 5, 13, 33, END], True, 1, 6, False, id="tool-call"),
        pytest.param(
            [5, 11, 7, 30, 6, 1, 9, 5, 13, 7, 33, 6, 1, 9, 5, 12, 7, 32, END],
            True,
            1,
            14,
            False,
            id="preamble",
        ),
        pytest.param([5, 12, 7, 32, END], False, 0, 4, False, id="answer-at-once"),
        pytest.param([5, 11, 7, 30, 6, 1, 9], False, 4, 0, False, id="cut-in-the-marker"),
        pytest.param([5, 11, 7, 30, 5, 11, 7, 31], False, 5, 0, True, id="opened-twice"),
    ],
)
def test_channels_have_markers_of_several_tokens(
    ids: list[int], closed: bool, thinking: int, answer: int, left: bool
) -> None:
    found = shape(hand_made.raw(token_ids=ids), CHANNELS)
    assert (found["closed"], found["markers_left"]) == (closed, left)
    assert (found["thinking_tokens"], found["answer_tokens"]) == (thinking, answer)


def test_a_tool_section_ends_thinking_where_the_family_says_so() -> None:
    think = replace(hand_made.THINKING, implicit_end_ids=[[TOOLS]])
    row = hand_made.raw(token_ids=[THINK, 30, 31, TOOLS, 33, END])
    found = shape(row, replace(THINKING, think=think))
    assert (found["closed"], found["thinking_tokens"], found["answer_tokens"]) == (True, 2, 2)
    assert shape(row, THINKING)["closed"] is False


def test_nothing_is_known_without_ids_or_without_a_format() -> None:
    nothing = dict.fromkeys(SHAPE)
    assert shape(hand_made.raw(), PLAIN) == nothing
    assert {**shape(text(), THINKING), "num_openings": None, "num_closings": None} == nothing
