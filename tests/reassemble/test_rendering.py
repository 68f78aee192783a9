from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from eyas.errors import GateError
from eyas.reassemble.rendering import Mismatch, mismatches, refuse_mismatches
from tests.hand_made import END, raw, validated
from tests.hand_made_tokenizer import write_tokenizer

QUESTION = [{"role": "user", "content": "add one"}]
RENDERED = [1, 8, 10, 20, 21, END, 10, 1, 9, 10]


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("target"))


def different(
    target: Path, ids: list[int], messages: Any = QUESTION, **template_kwargs: Any
) -> list[Mismatch]:
    row = raw("talk:1", messages=messages, prompt_token_ids=ids)
    return mismatches(validated([row]), target, template_kwargs)


def test_equal_renderings_are_no_mismatch(target: Path) -> None:
    assert different(target, RENDERED) == []
    refuse_mismatches([], 1, target)


def test_template_arguments_are_those_of_the_server(target: Path) -> None:
    assert different(target, [*RENDERED, 3], open_think=True) == []
    assert different(target, [*RENDERED, 3]) == [Mismatch("talk:1", 10, 3, None)]


def test_case_B09_history_is_rendered_as_the_server_does(target: Path) -> None:
    history = [*QUESTION, {"role": "assistant", "content": "<think> two </think> it"}, *QUESTION]
    dropped = [*RENDERED, 30, END, 10, *RENDERED]
    assert different(target, dropped, history) == []


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        pytest.param(
            [1, 8, 10, 20, 22, END, 10, 1, 9, 10], "token 4, server 22 'two', here 21 'one'", id="other-word"
        ),
        pytest.param(
            [1, 11, 10, END, 10, *RENDERED], "token 1, server 11 'system', here 8 'user'", id="system-message"
        ),
        pytest.param(RENDERED[:-1], "token 9, server nothing .its prompt ends., here 10", id="shorter"),
        pytest.param([*RENDERED, 3], "token 10, server 3 '<think>', here nothing", id="longer"),
    ],
)
def test_the_first_different_token_is_named_on_both_sides(target: Path, ids: list[int], message: str) -> None:
    found = different(target, ids)
    with pytest.raises(GateError, match="(?s)1 of 7 prompts .*" + message + ".*talk:1"):
        refuse_mismatches(found, 7, target)
