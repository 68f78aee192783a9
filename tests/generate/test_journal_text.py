"""Text of replies on its way into the journal and out of it, whatever characters it holds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas import jsonl
from eyas.answers import SURROGATES_REPLACED
from eyas.generate.entry import entry
from eyas.generate.record import Answer
from eyas.journal import Journal
from tests.generate.counted import answer, outcome
from tests.generate.reading import MODES, read
from tests.generate.replies import PLAIN, THINKING


def kept(directory: Path, given_answer: Answer) -> Answer:
    """The answer as a later run finds it in the journal; checks that the file is one line of UTF-8."""
    with Journal(directory, {}) as journal:
        journal.append(entry(outcome(given_answer), None))
    content = journal.rows_path.read_bytes()
    assert content.count(b"\n") == 1
    content.decode()
    with Journal(directory, {}) as journal:
        found = journal.get("a:1")
    assert found is not None
    return Answer.from_json(found["answer"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("server", ["vllm", "openai"])
def test_case_G06_half_a_character_in_a_reply_is_replaced_flagged_and_stored(
    server: str, mode: str, tmp_path: Path
) -> None:
    given_answer = read(server, mode, replace(PLAIN, content="a\ud83d", text="a\ud83d"))
    assert SURROGATES_REPLACED in given_answer.flags
    assert given_answer.content == "a\ufffd"
    assert kept(tmp_path / "j", given_answer) == given_answer


@pytest.mark.parametrize("mode", MODES)
def test_case_G06_variation_in_the_reasoning_beside_a_whole_pair(mode: str, tmp_path: Path) -> None:
    turn = replace(THINKING, reasoning="\udc00 \U0001f600", text="<think>\udc00 \U0001f600</think>Answer.")
    given_answer = read("vllm", mode, turn)
    assert SURROGATES_REPLACED in given_answer.flags
    assert given_answer.reasoning == "\ufffd \U0001f600"
    assert kept(tmp_path / "j", given_answer) == given_answer


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("text", ["a\u2028b\u0085c\x0bd", "\x0c\x1c\x1d\x1e\u2029\r\n\x00"])
def test_case_G01_separators_in_a_reply_stay_in_its_line(mode: str, text: str, tmp_path: Path) -> None:
    given_answer = read("vllm", mode, replace(PLAIN, content=text, text=text))
    assert given_answer.content == text
    assert kept(tmp_path / "j", given_answer).content == text


@given(content=st.text(st.characters(exclude_categories=["Cs"])), reasoning=st.text(min_size=1))
def test_any_text_comes_back(content: str, reasoning: str) -> None:
    given_answer = answer(content=content, reasoning=jsonl.replace_surrogates(reasoning))
    line = jsonl.encode(entry(outcome(given_answer), None))
    assert line.count(b"\n") == 1
    assert Answer.from_json(jsonl.parse(line, "x")["answer"]) == given_answer
