"""Counting a journal's lines by their bytes gives what parsing them gives."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from eyas import jsonl
from eyas.generate.entry import entry
from eyas.generate.gate import Outcome
from eyas.generate.linefacts import FailedAttempt, entry_outcome, quick_facts, read_lines
from eyas.generate.record import Answer, Usage
from eyas.generate.tally import AnswerFacts
from eyas.journal import Journal
from eyas.serving.endpoint import ModelInfo
from tests.generate.counted import THINK, answer, failed, failed_entry, journal_entry, outcome

NASTY = st.sampled_from(
    [
        '"finish_reason":"stop"',
        '"usage":{',
        '"token_ids":[902]',
        '\\","flags":["x"]',
        '"at":1}',
        "é\u2028\n",
        "null",
    ]
)
TEXT = st.lists(NASTY | st.text(st.characters(exclude_categories=["Cs"]), max_size=5), max_size=4).map(
    "".join
)
IDS = st.lists(st.integers(0, 9) | st.sampled_from([901, 902, 1901, 9019]), max_size=8)
TOOL_CALLS = st.none() | st.just(
    [{"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"at":1}'}}]
)


@st.composite
def answers(draw: st.DrawFn) -> Answer:
    ids = draw(st.none() | IDS)
    known = st.none() if ids is None else st.just(len(ids))
    return Answer(
        model=draw(st.none() | st.sampled_from(["tiny", 'q"uote'])),
        reasoning=draw(st.none() | TEXT),
        content=draw(st.none() | TEXT),
        tool_calls=draw(TOOL_CALLS),
        finish_reason=draw(st.sampled_from(["stop", "length", "tool_calls"])),
        stop_reason=draw(st.none() | st.integers(0, 9) | TEXT),
        usage=Usage(draw(known | st.none()), draw(known | st.none()), draw(st.none() | st.integers(0, 9))),
        prompt_token_ids=ids,
        token_ids=ids,
        reasoning_field=draw(st.sampled_from([None, "reasoning"])),
        streamed=draw(st.booleans()),
        flags=draw(st.lists(st.sampled_from(["lossy_text", "misfiled_reasoning"]), unique=True)),
    )


@given(given_answer=answers(), at=st.floats(0, 3e9), thinks=st.booleans())
@example(given_answer=answer([901, 1, 902, 3], reasoning="R"), at=1.5e9, thinks=True)
def test_bytes_say_what_parsing_says_or_nothing(given_answer: Answer, at: float, thinks: bool) -> None:
    line = jsonl.encode(journal_entry("k", given_answer, at))
    think = THINK if thinks else None
    found = quick_facts(line, think)
    if found is not None:
        assert found == entry_outcome(jsonl.parse(line, "x"), think)


@pytest.mark.parametrize("thinks", [False, True])
@pytest.mark.parametrize(
    "given_answer",
    [
        answer([11, 12, 2]),
        answer([901, 1, 1, 902, 11, 2], reasoning="R", flags=["lossy_text", "surrogates_replaced"]),
        answer([1, 1, 902, 11, 2], reasoning="R" * 9000, content="C" * 9000),
        answer([901, 1, 1], reasoning="R", finish_reason="length", content='"finish_reason":"stop"'),
    ],
)
def test_entries_of_runs_are_counted_without_parsing(
    given_answer: Answer, thinks: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked = outcome(given_answer, url="http://127.0.0.1:1/v1")
    written = entry(asked, ModelInfo("tiny", 99, "1"))
    with Journal(tmp_path, {}) as journal:
        journal.append(written)
    expected = entry_outcome(written, THINK if thinks else None)

    def refuse(line: bytes, where: str) -> Any:
        raise AssertionError("parsed")

    monkeypatch.setattr(jsonl, "parse", refuse)
    (line,) = read_lines(journal.rows_path, 0, THINK if thinks else None)
    assert line.outcome == expected
    assert line.key == "a:1"


def test_failures_damage_and_a_line_in_the_making(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    lines = [
        jsonl.encode(failed_entry("a", "abort", "transient")),
        b"garbage\n",
        b'{"key":"b","answer":7}\n',
        jsonl.encode(journal_entry("c", answer())),
    ]
    rows.write_bytes(b"".join(lines) + jsonl.encode(journal_entry("d", answer()))[:-1])
    found = list(read_lines(rows, 0, None))
    assert [line.key for line in found] == ["a", None, None, "c"]
    assert found[0].outcome == FailedAttempt("transient", "abort")
    assert isinstance(found[3].outcome, AnswerFacts)
    assert [line.offset for line in found] == [0, *(sum(map(len, lines[:n])) for n in (1, 2, 3))]
    assert list(read_lines(rows, found[3].offset, None)) == found[3:]


def test_an_unjudged_answer_is_no_answer_yet(tmp_path: Path) -> None:
    asked: Outcome = outcome(answer())
    written = entry(asked, None) | {"error": {"kind": "transient", "reason": "unjudged"}}
    with Journal(tmp_path, {}) as journal:
        journal.append(written)
        journal.append(entry(failed("http_400"), None))
    assert [line.outcome for line in read_lines(journal.rows_path, 0, None)] == [
        FailedAttempt("transient", "unjudged"),
        FailedAttempt("permanent", "http_400"),
    ]
