"""Texts against the number of generated tokens; one character is one token here, and a marker is one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.answers import TEXT_NOT_FAITHFUL
from eyas.errors import InputError
from eyas.generate.dialects.length import LengthCheck
from eyas.generate.record import Answer, Usage
from tests.generate.character_tokenizer import write_character_tokenizer
from tests.generate.reading import THINK
from tests.generate.replies import CALL


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_character_tokenizer(tmp_path_factory.mktemp("target"))


def answer(generated: int | None, **changes: Any) -> Answer:
    values: dict[str, Any] = {
        "model": "tiny",
        "reasoning": None,
        "content": "abc",
        "tool_calls": None,
        "finish_reason": "stop",
        "stop_reason": None,
        "usage": Usage(5, generated, None),
        "prompt_token_ids": None,
        "token_ids": None,
        "reasoning_field": None,
        "streamed": False,
        "flags": [],
    }
    return Answer(**values | changes)


THOUGHT = {"reasoning": "ab", "content": "c"}
CUT = {"reasoning": "ab", "content": None, "finish_reason": "length"}


@pytest.mark.parametrize(
    ("changes", "opened", "size"),
    [
        pytest.param({}, False, 4, id="abc end-of-turn"),
        pytest.param({"finish_reason": "length"}, False, 3, id="abc"),
        pytest.param(THOUGHT, False, 6, id="<think> ab </think> c end-of-turn"),
        pytest.param(THOUGHT, True, 5, id="ab </think> c end-of-turn"),
        pytest.param(THOUGHT | {"finish_reason": "length"}, False, 5, id="<think> ab </think> c"),
        pytest.param(THOUGHT | {"content": None}, True, 4, id="ab </think> end-of-turn"),
        pytest.param(CUT, False, 3, id="<think> ab"),
        pytest.param(CUT, True, 2, id="ab"),
        pytest.param({"content": None}, False, 1, id="end-of-turn"),
    ],
)
def test_the_tokens_of_a_turn(changes: dict[str, Any], opened: bool, size: int, characters: Path) -> None:
    check = LengthCheck(characters, THINK)
    assert check.flags(answer(size, **changes), opened) == []
    assert check.flags(answer(size - 1, **changes), opened) == [TEXT_NOT_FAITHFUL]
    assert check.flags(answer(size + 1, **changes), opened) == []  # fewer tokens than generated prove nothing


@pytest.mark.parametrize(
    "changes",
    [{"usage": Usage(None, None, None)}, {"tool_calls": [CALL]}, {"tool_calls": [CALL], "content": None}],
    ids=["no usage", "tool calls", "tool calls alone"],
)
def test_what_can_not_be_counted(changes: dict[str, Any], characters: Path) -> None:
    assert LengthCheck(characters, THINK).flags(answer(1, **changes), False) == []


def test_reasoning_of_a_target_without_think_format_can_not_be_counted(characters: Path) -> None:
    check = LengthCheck(characters, None)
    assert check.flags(answer(1, reasoning="ab"), False) == []
    assert check.flags(answer(1), False) == [TEXT_NOT_FAITHFUL]


@pytest.mark.parametrize(
    ("content", "flagged"),
    [
        ("a  b", True),
        (" b", True),
        ("a ", True),
        ("a b", False),
        ("(a)", False),
        ("a\nb", False),
    ],
)
def test_gaps_in_which_a_marker_may_have_stood(content: str, flagged: bool, characters: Path) -> None:
    check = LengthCheck(characters, THINK)
    size = len(content) + 1
    assert check.flags(answer(size + 1, content=content), False) == ([TEXT_NOT_FAITHFUL] if flagged else [])
    assert check.flags(answer(size + 2, content=content), False) == []  # one marker does not explain two
    assert check.flags(answer(size, content=content), False) == []


def test_a_gap_in_the_reasoning(characters: Path) -> None:
    gap = {"reasoning": "a  b", "content": "c"}
    assert LengthCheck(characters, THINK).flags(answer(9, **gap), False) == [TEXT_NOT_FAITHFUL]


def test_only_the_first_gaps_are_tried(characters: Path) -> None:
    many = "a  " * 5000
    assert LengthCheck(characters, THINK).flags(answer(len(many) + 5, content=many), False) == []


def test_a_folder_without_a_tokenizer_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="tokenizer"):
        LengthCheck(tmp_path, None).flags(answer(4), False)
