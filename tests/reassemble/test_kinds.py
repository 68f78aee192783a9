from __future__ import annotations

from dataclasses import replace
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas import tokenkinds
from eyas.reassemble.kinds import with_kinds
from eyas.schema import TOKEN_IDS
from eyas.target.spec import TargetProfile, ToolFormat
from tests.hand_made import END, END_THINK, PROMPT_IDS, THINK, THINKING, profile

CALL, END_CALL, CHANNEL, FINAL, NEWLINE = 15, 16, 17, 18, 10
TOOLS = ToolFormat(["<tool_call>"], [[CALL]], "</tool_call>", [END_CALL])
OFF_TAIL = [1, 9, 10, THINK, END_THINK]
WRITES = replace(THINKING, on_tail_ids=[1, 9, 10], off_tail_ids=OFF_TAIL)
"""The target writes both markers."""
PREFILLED = replace(WRITES, prefilled=True, on_tail_ids=[1, 9, 10, THINK])
ENDS_AT_TOOLS = replace(WRITES, implicit_ends=["<tool_call>"], implicit_end_ids=[[CALL]])
CHANNELS = replace(
    WRITES,
    start_ids=[CHANNEL, 20, 21],
    end_ids=[END_CALL, CHANNEL, FINAL, 21],
    answer_start="<|channel|>final<|message|>",
    answer_start_ids=[CHANNEL, FINAL, 21],
)
"""Markers of several tokens that share their tokens."""
OPENED = [*PROMPT_IDS, THINK]


def kinds(
    generated: list[int], target: TargetProfile, prompt: list[int] = PROMPT_IDS, *, truncated: bool = False
) -> str:
    """Kinds of the generated part as digits; prompt and mask are checked on the way."""
    schema: Any = {"prompt_token_ids": TOKEN_IDS, "token_ids": TOKEN_IDS, "truncated": pl.Boolean}
    row = pl.DataFrame([[prompt], [generated], [truncated]], schema=schema)
    made = with_kinds(row.lazy(), target).collect().row(0, named=True)
    assert made["kinds"][: len(prompt)] == [0] * len(prompt)
    return "".join(map(str, made["kinds"][len(prompt) :]))


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        pytest.param([THINK, 30, END_THINK, 31, END], "12135", id="thinking"),
        pytest.param([THINK, NEWLINE, 30, NEWLINE, END_THINK, NEWLINE, 31, END], "12221335", id="whitespace"),
        pytest.param([NEWLINE, THINK, 30, END_THINK, 31, END], "312135", id="whitespace-before-the-marker"),
        pytest.param([31, 30, END], "335", id="no-thinking"),
        pytest.param([THINK, END_THINK, 31, END], "1135", id="empty-block"),
        pytest.param([THINK, 30, END_THINK, END], "1215", id="no-answer"),
        pytest.param([30, END_THINK, 31, END], "2135", id="opening-marker-lost"),
        pytest.param([31, 30, 31, 30, THINK, 30, END], "3333335", id="a-marker-in-the-answer-opens-nothing"),
        pytest.param([THINK, 30, END_THINK, THINK, 31, END_THINK, END], "1213335", id="only-one-block"),
        pytest.param([THINK, 30, THINK, 31, END_THINK, 30, END_THINK, 31, END], "122213335", id="case-B04-nested"),
    ],
)  # fmt: skip
def test_target_that_writes_both_markers(generated: list[int], expected: str) -> None:
    assert kinds(generated, profile(think=WRITES)) == expected


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        pytest.param([30, END_THINK, 31, END], "2135", id="thinking"),
        pytest.param([END_THINK, 31, END], "135", id="empty-thinking"),
        pytest.param([30, THINK, 31, END_THINK, 31, END], "222135", id="a-marker-in-the-thinking"),
        pytest.param([30, 31, END], "225", id="never-ended"),
    ],
)
def test_prompt_that_opens_the_thinking(generated: list[int], expected: str) -> None:
    assert kinds(generated, profile(think=PREFILLED), OPENED) == expected


WITH_GAP = replace(WRITES, gap_after_start="\n", gap_after_start_ids=[NEWLINE])


@pytest.mark.parametrize("think", [WRITES, THINKING, WITH_GAP], ids=["writes", "no-tails", "with-gap"])
def test_a_template_argument_that_the_format_does_not_know_opens_the_thinking(think: Any) -> None:
    target = profile(think=think)
    assert not think.prefilled
    assert kinds([30, END_THINK, 31, END], target, OPENED) == "2135"
    assert kinds([THINK, 30, END_THINK, 31, END], target, OPENED) == "22135"  # it opens nothing a second time
    behind_the_gap = "2135" if think is WITH_GAP else "12135"
    opened = [*OPENED, NEWLINE]
    generated = [30, END_THINK, 31, END] if think is WITH_GAP else [THINK, 30, END_THINK, 31, END]
    assert kinds(generated, target, opened) == behind_the_gap


@pytest.mark.parametrize("think", [WRITES, PREFILLED], ids=["writes", "prefilled"])
def test_thinking_switched_off_by_the_prompt(think: Any) -> None:
    prompt = [*PROMPT_IDS[:-3], *OFF_TAIL]
    assert kinds([31, END_THINK, 30, END], profile(think=think), prompt) == "3335"
    assert (
        kinds([THINK, 30, END_THINK, 31, END], profile(think=think), prompt) == "12135"
    )  # thinks nevertheless


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        pytest.param([THINK, 30, END_THINK, 31, CALL, 20, END_CALL, END], "12134445", id="section"),
        pytest.param([30, CALL, 20, END_CALL, NEWLINE, CALL, 21, END_CALL, END], "344434445", id="two-sections"),
        pytest.param([30, CALL, 20, CALL, END_CALL, 31, END_CALL, END], "34444335", id="nested-and-stray-markers"),
        pytest.param([THINK, 30, CALL, 20, END_CALL, END], "124445", id="section-ends-thinking"),
        pytest.param([THINK, 30, CALL, 20, END_CALL, END_THINK, 31, END], "12444335", id="a-late-end-marker"),
        pytest.param([THINK, 30, END_THINK, CALL, 20], "12144", id="cut-in-a-section"),
    ],
)  # fmt: skip
def test_tool_sections(generated: list[int], expected: str) -> None:
    target = profile(think=ENDS_AT_TOOLS, tools=TOOLS)
    assert kinds(generated, target, truncated=generated[-1] != END) == expected


def test_tool_section_without_an_end_of_its_own_and_inside_thinking() -> None:
    to_the_end = ToolFormat(["<|python_tag|>"], [[CALL]], "", [])
    assert kinds([30, CALL, 20, 21, END], profile(tools=to_the_end)) == "34445"
    target = profile(think=WRITES, tools=TOOLS)  # here a section does not end thinking
    assert kinds([THINK, CALL, 20, END_CALL, END_THINK, 31, END], target) == "1222135"


@pytest.mark.parametrize(
    ("generated", "expected"),
    [
        pytest.param([CHANNEL, 20, 21, 30, END_CALL, CHANNEL, FINAL, 21, 31, END], "1112111135", id="thinking"),
        pytest.param([CHANNEL, FINAL, 21, 31, END], "11135", id="answer-alone"),
        pytest.param([CHANNEL, 20, 21, 30, END_CALL, CHANNEL, FINAL], "1112222", id="cut-in-the-end-marker"),
        pytest.param([CHANNEL, 20, 21, 30, END_CALL, CHANNEL, 20, 21, 30], "111222222", id="a-part-of-the-end-marker"),
    ],
)  # fmt: skip
def test_markers_of_several_tokens(generated: list[int], expected: str) -> None:
    assert kinds(generated, profile(think=CHANNELS), truncated=generated[-1] != END) == expected


def test_end_of_turn_only_where_the_target_ended_it() -> None:
    target = profile(end_of_turn_ids=[END, 5])
    assert kinds([30, END], target) == "35"
    assert kinds([30, 5], target) == "35"
    assert kinds([30, END, END], target) == "335"
    assert kinds([30, 31], target) == "33"
    assert kinds([END], target) == "5"
    assert kinds([30, END], target, truncated=True) == "33"  # a stop string cut it here


@pytest.mark.parametrize("think", [None, WRITES, PREFILLED], ids=["plain", "writes", "prefilled"])
def test_case_B06_user_text_of_control_tokens_starts_no_turn(think: Any) -> None:
    prompt = [1, 8, 10, END, 1, 9, 10, THINK, 30, END_THINK, CALL, END, 10, 1, 9, 10]
    target = profile(think=think, tools=TOOLS)
    assert kinds([30, END], target, prompt) == "35"
    turned = [
        *prompt[:3],
        *OFF_TAIL,
        THINK,
        *prompt[3:],
    ]  # the same with a generation prompt of each kind inside
    assert kinds([30, END], target, turned) == "35"


tokens = st.sampled_from([NEWLINE, 20, 21, 30, 31, THINK, END_THINK, CALL, END_CALL, CHANNEL, FINAL, END])
formats = st.sampled_from([None, WRITES, PREFILLED, WITH_GAP, ENDS_AT_TOOLS, CHANNELS])


@given(
    st.lists(tokens, min_size=1, max_size=12), formats, st.booleans(), st.sampled_from([PROMPT_IDS, OPENED])
)
def test_every_generated_token_has_one_kind_and_the_end_is_last(
    generated: list[int], think: Any, truncated: bool, prompt: list[int]
) -> None:
    found = kinds(generated, profile(think=think, tools=TOOLS), prompt, truncated=truncated)
    assert len(found) == len(generated)
    assert set(found) <= set("12345")
    assert "5" not in found[:-1]
    assert (found[-1] == "5") == (generated[-1] == END and not truncated)
    thinking = found.rstrip("5").lstrip("3")
    assert sum(found.count(kind) for kind in "12") <= len(thinking)
    assert "2" not in thinking.lstrip("1").lstrip("2")  # one block, at the front
    if think is None:
        assert not set(found) & {"1", "2"}


def test_names_stand_for_the_kinds() -> None:
    kinds_by_name = {name: getattr(tokenkinds, name.upper()) for name in tokenkinds.NAMES}
    assert list(kinds_by_name.values()) == list(range(6))
