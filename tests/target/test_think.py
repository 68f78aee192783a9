"""Dividing text at think markers, and what the end of a prompt asks for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eyas.target.spec import ThinkFormat
from eyas.target.think import SplitText, opens_thinking, prompt_tail, split_text, thinking_asked
from tests.families import FAMILIES
from tests.golden import Family, GoldenTurn

PLAIN = ThinkFormat("plain", "<think>", "</think>", [3], [4], prefilled=False)
TOOLS = replace(PLAIN, implicit_ends=["<|calls|>"], implicit_end_ids=[[5]])
THINKING = [family for family in FAMILIES.values() if family.name not in ("chatml", "llama-3")]
TURNS = [
    pytest.param(family, turn, id=f"{family.name}-{turn.name}")
    for family in THINKING
    for turn in family.turns
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def think_of(family: Family, folder: Path) -> ThinkFormat:
    think = family.profile(folder).think
    assert think is not None
    return think


@pytest.mark.parametrize(
    ("text", "prefilled", "expected"),
    [
        pytest.param(
            "<think>R</think>C", False, ("R", "C", True, True, False), id="both markers"
        ),
        pytest.param(
            "\n<think>\nR\n</think>\n\nC", False, ("\nR\n", "\n\nC", True, True, False), id="whitespace is kept"
        ),
        pytest.param("R</think>C", True, ("R", "C", True, True, False), id="opened by the prompt"),
        pytest.param("<think>R</think>C", True, ("R", "C", True, True, False), id="opened twice"),
        pytest.param("C", False, (None, "C", False, False, False), id="no thinking"),
        pytest.param("R or C", True, (None, "R or C", False, False, False), id="opened and no end: not decided here"),
        pytest.param("<think>R", False, ("R", "", True, False, False), id="cut inside thinking"),
        pytest.param("<think>", False, ("", "", True, False, False), id="cut behind the marker"),
        pytest.param("<think></think>C", False, ("", "C", True, True, False), id="empty block"),
        pytest.param("</think>C", True, ("", "C", True, True, False), id="ended at once"),
        pytest.param(
            "Close it with </think>.", False, (None, "Close it with </think>.", False, False, True),
            id="an end marker as text of an answer without thinking",
        ),
        pytest.param(
            "Use <think>R</think> here", False, (None, "Use <think>R</think> here", False, False, True),
            id="markers inside an answer",
        ),
        pytest.param(
            "<think>a <think>b</think> c</think>Ans", False, ("a <think>b", " c</think>Ans", True, True, True),
            id="the first end marker counts",
        ),
        pytest.param(
            "r</think>Use <think> here", True, ("r", "Use <think> here", True, True, True), id="marker in the answer"
        ),
    ],
)  # fmt: skip
def test_split(text: str, prefilled: bool, expected: tuple[Any, ...]) -> None:
    assert split_text(text, PLAIN, prefilled=prefilled) == SplitText(*expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param("<think>R<|calls|>x", ("R", "<|calls|>x", True, True, False), id="tools end thinking"),
        pytest.param(
            "<think>R</think><|calls|>x", ("R", "<|calls|>x", True, True, False), id="the marker was first"
        ),
        pytest.param(
            "<think>R<|calls|>x</think>",
            ("R", "<|calls|>x</think>", True, True, True),
            id="a marker within the call",
        ),
        pytest.param("<|calls|>x", (None, "<|calls|>x", False, False, False), id="tools without thinking"),
    ],
)
def test_a_tool_section_ends_thinking(text: str, expected: tuple[Any, ...]) -> None:
    assert split_text(text, TOOLS, prefilled=False) == SplitText(*expected)


@pytest.mark.parametrize(("family", "turn"), TURNS)
def test_golden_turns_are_split_where_they_think(family: Family, turn: GoldenTurn, folder: Path) -> None:
    """By the texts alone, the answer without its end of turn."""
    ends = {family.markers[token] for token in family.eos}
    text = turn.text
    if turn.generated_ids[-1] in ends:
        text = text[: text.rindex("<")]
    split = split_text(text, think_of(family, folder), prefilled=turn.opened)
    cut_where_opened = turn.opened and turn.truncated
    assert ((split.reasoning or "").strip() or None) == (None if cut_where_opened else turn.reasoning)
    assert split.found == (not cut_where_opened and (turn.reasoning is not None or "M" in _kinds(turn)))
    assert split.ended == (split.found and not turn.truncated)
    assert not split.markers_left
    if not turn.tool_calls and not cut_where_opened:
        assert split.content.strip() == (turn.content or "")


def _kinds(turn: GoldenTurn) -> str:
    return "".join("PMRATE"[kind] for kind in turn.kinds)


@pytest.mark.parametrize(("family", "turn"), TURNS)
def test_whether_a_prompt_ends_inside_thinking(family: Family, turn: GoldenTurn, folder: Path) -> None:
    assert opens_thinking(think_of(family, folder), turn.prompt_ids) == turn.opened


@pytest.mark.parametrize(("family", "turn"), TURNS)
def test_prompts_end_with_the_tail_of_their_mode(family: Family, turn: GoldenTurn, folder: Path) -> None:
    profile = family.profile(folder)
    tail = prompt_tail(profile, turn.template_kwargs)
    if family.name.startswith("deepseek") and turn.name == "tool_loop":
        assert turn.prompt_ids[-len(tail) :] != tail  # the turn goes on behind the tool's result
        return
    assert turn.prompt_ids[-len(tail) :] == tail
    assert profile.think is not None
    if turn.opened:
        assert thinking_asked(profile.think, turn.template_kwargs)


def test_an_opening_marker_in_the_question_opens_nothing(folder: Path) -> None:
    think = think_of(FAMILIES["kimi-k2.5"], folder)
    tail_off = think.off_tail_ids
    assert tail_off is not None
    assert not opens_thinking(think, [*think.start_ids, 1, 2, *tail_off])
    assert opens_thinking(think, [*think.end_ids, 1, 2, *think.on_tail_ids])
    assert not opens_thinking(think, [])


def test_the_mode_follows_the_arguments_and_else_the_template(folder: Path) -> None:
    off_by_default = think_of(FAMILIES["deepseek-v3.1"], folder)
    on_by_default = think_of(FAMILIES["qwen3"], folder)
    assert not thinking_asked(off_by_default, {})
    assert thinking_asked(off_by_default, {"thinking": True, "style": "x"})
    assert thinking_asked(on_by_default, {})
    assert thinking_asked(on_by_default, {"thinking": False})  # of another family
    assert not thinking_asked(on_by_default, {"enable_thinking": False})


def test_the_tail_of_a_target_that_does_not_think(folder: Path) -> None:
    profile = FAMILIES["llama-3"].profile(folder)
    assert prompt_tail(profile, {"enable_thinking": False}) == profile.generation_prompt_ids


def test_a_prompt_that_an_unknown_argument_makes_end_inside_thinking(folder: Path) -> None:
    """The prompt's own last tokens count, whatever the template does without arguments."""
    kimi, qwen = think_of(FAMILIES["kimi-k2-thinking"], folder), think_of(FAMILIES["qwen3"], folder)
    assert not kimi.prefilled
    assert opens_thinking(kimi, [604, 258, 606, 620])  # ... <think>
    assert not opens_thinking(kimi, [604, 258, 606, 620, 621])  # ... <think></think>
    assert opens_thinking(qwen, [641, 258, 10, 650])  # ... <think>
    assert opens_thinking(qwen, [641, 258, 10, 650, 10])  # ... <think>\n
    assert not opens_thinking(qwen, [641, 258, 10, 650, 10, 10])
