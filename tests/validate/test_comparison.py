"""Decoded ids against texts, with a word-level tokenizer."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eyas.target.spec import TargetProfile
from eyas.target.template import load_tokenizer
from eyas.validate.comparison import Comparison, compare, compare_with_texts
from tests.hand_made import END, END_THINK, THINK, raw
from tests.hand_made_tokenizer import write_tokenizer
from tests.validate.judging import OPEN_PROMPT, PARAMS, PLAIN, PREFILLED, THINKING, judged

SAMPLING = replace(PARAMS, text_sample=10)
ADD, ONE, TWO, IT, IS, NEWLINE = 20, 21, 22, 30, 31, 10


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("target"))


def compared(folder: Path, rows: list[dict[str, Any]], target: TargetProfile = THINKING) -> Comparison:
    sample = judged(rows, target, SAMPLING).sample
    assert sample.height == len(rows)
    return compare(sample, load_tokenizer(folder), target)


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        pytest.param({"content": "it is", "token_ids": [IT, IS, END]}, PLAIN, id="plain"),
        pytest.param(
            {
                "reasoning": "add one",
                "content": "it is",
                "token_ids": [THINK, ADD, ONE, END_THINK, IT, IS, END],
            },
            THINKING,
            id="thought",
        ),
        pytest.param(
            {
                "reasoning": "add one",
                "content": "it is",
                "prompt_token_ids": OPEN_PROMPT,
                "token_ids": [ADD, ONE, END_THINK, IT, IS, END],
            },
            PREFILLED,
            id="opened-by-the-prompt",
        ),
        pytest.param(
            {
                "reasoning": "add one",
                "content": None,
                "finish_reason": "length",
                "token_ids": [THINK, ADD, ONE],
            },
            THINKING,
            id="cut-inside-thinking",
        ),
        pytest.param(
            {
                "reasoning": None,
                "content": "add one two two",
                "finish_reason": "length",
                "prompt_token_ids": OPEN_PROMPT,
                "token_ids": [ADD, ONE, TWO, TWO],
            },
            PREFILLED,
            id="no-parser-and-cut",
        ),
    ],
)
def test_texts_that_say_what_the_ids_say(
    folder: Path, changes: dict[str, Any], target: TargetProfile
) -> None:
    found = compared(folder, [raw(**changes)], target)
    assert (found.different, found.examples) == (0, [])
    assert found.rows == found.equal + found.whitespace == 1


def test_white_space_that_a_server_changed_is_counted_apart(folder: Path) -> None:
    ids = [THINK, ADD, ONE, END_THINK, IT, IS, END]
    tokenizer = load_tokenizer(folder)
    exact = {"reasoning": tokenizer.decode([ADD, ONE]), "content": tokenizer.decode([IT, IS])}
    rows = [
        raw("talk:1", token_ids=ids, **exact),
        raw("talk:2", token_ids=ids, **exact | {"reasoning": f" {exact['reasoning']} "}),
        raw("talk:3", token_ids=ids, **exact | {"content": f"\n\n{exact['content']}"}),
    ]
    found = compared(folder, rows)
    assert (found.rows, found.equal, found.whitespace, found.different) == (3, 1, 2, 0)


def test_texts_of_another_answer_are_different_and_named(folder: Path) -> None:
    ids = [THINK, ADD, ONE, END_THINK, IT, IS, END]
    rows = [
        raw(f"talk:{number}", token_ids=ids, reasoning="add one", content="two two" if number else "it is")
        for number in range(6)
    ]
    found = compared(folder, rows)
    assert (found.rows, found.different) == (6, 5)
    assert len(found.examples) == 3
    assert "talk:0" not in found.examples


def test_case_B07_a_swallowed_marker_shows_only_in_a_run_by_text(folder: Path) -> None:
    ids = [THINK, ADD, END_THINK, IT, THINK, IS, END]
    found = compared(folder, [raw(token_ids=ids, reasoning="add", content="it is")])
    assert (found.different, found.examples) == (1, ["talk:1"])


def test_tool_calls_are_in_neither_text() -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert judged([raw(tool_calls=[call])], PLAIN, SAMPLING).sample.is_empty()


def test_the_tokenizer_is_loaded_only_if_there_is_something_to_compare(tmp_path: Path, folder: Path) -> None:
    assert compare_with_texts(None, tmp_path / "none", PLAIN) is None
    sample = judged([raw(content="it is", token_ids=[IT, IS, END])], PLAIN, SAMPLING).sample
    assert compare_with_texts(sample[:0], tmp_path / "none", PLAIN) is None
    found = compare_with_texts(sample, folder, PLAIN)
    assert found is not None
    assert found.different == 0
