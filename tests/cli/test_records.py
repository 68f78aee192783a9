"""Which rows are read, and from where."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas import jsonl, paths
from eyas.cli.records import (
    Condition,
    RawLine,
    Record,
    Selection,
    choose_source,
    lines_backwards,
    newest_first,
    parse_record,
)
from eyas.errors import InputError
from eyas.journal import Journal
from tests.cli.runs import directory, make_run, publish
from tests.generate.counted import answer, failed_entry, journal_entry, outcome


@given(
    lines=st.lists(st.binary(max_size=12).map(lambda line: line.replace(b"\n", b"")), max_size=8),
    torn=st.binary(max_size=5),
    block=st.integers(1, 9),
)
def test_lines_backwards_are_the_lines_of_the_file_reversed(
    tmp_path_factory: pytest.TempPathFactory, lines: list[bytes], torn: bytes, block: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "rows.jsonl"
    torn = torn.replace(b"\n", b"")
    path.write_bytes(b"".join(line + b"\n" for line in lines) + torn)
    expected, offset = [], 0
    for line in lines:
        expected.append(RawLine(offset, line))
        offset += len(line) + 1
    assert list(lines_backwards(path, block)) == expected[::-1]
    path.unlink()


def test_case_G10_a_huge_line_is_read_backwards(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    jsonl.write(path, [{"a": 1}, {"content": "é" * 15_000_000}, {"b": 2}])
    records = [parse_record(line.content, line.offset) for line in lines_backwards(path)]
    assert [list(record.values) for record in records] == [["b"], ["content"], ["a"]]
    assert len(records[1].values["content"]) == 15_000_000


@pytest.mark.parametrize(
    ("text", "values", "holds"),
    [
        ("finish_reason=length", {"finish_reason": "length"}, True),
        ("finish_reason=length", {"finish_reason": "stop"}, False),
        ("finish_reason=length", {}, False),
        ("turn=0", {"turn": 0}, True),
        ("turn=0", {"turn": False}, False),
        ("seconds=1.50", {"seconds": 1.5}, True),
        ("seconds=x", {"seconds": 1.5}, False),
        ("reasoning=null", {"reasoning": None}, True),
        ("reasoning=null", {}, False),
        ("streamed=true", {"streamed": True}, True),
        ("usage.completion_tokens=3", {"usage": {"completion_tokens": 3}}, True),
        ("usage.completion_tokens=3", {"usage": None}, False),
        ("flags=lossy_text", {"flags": ["surrogates_replaced", "lossy_text"]}, True),
        ("flags=lossy_text", {"flags": []}, False),
        ("content=a=b", {"content": "a=b"}, True),
        ("content=", {"content": ""}, True),
    ],
)
def test_conditions(text: str, values: dict[str, Any], holds: bool) -> None:
    assert Condition.parse(text).holds(values) is holds


@pytest.mark.parametrize("text", ["", "a", "=b"])
def test_a_condition_without_key_or_value_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="key=value"):
        Condition.parse(text)


@pytest.mark.parametrize("line", [b"", b"{", b"[1]", b'{"a":1,"a":2}', b"\xff"])
def test_a_damaged_line_is_told_not_raised(line: bytes) -> None:
    record = parse_record(line, 7)
    assert (record.offset, record.values) == (7, {})
    assert record.damage


def test_the_last_line_of_a_key_counts(repository: Path) -> None:
    with Journal(directory("a"), {}) as journal:
        journal.append(failed_entry("k1", "unjudged"))
        journal.append(journal_entry("k2", answer(content="second")))
        journal.append(journal_entry("k1", answer(content="judged")))
        journal.append(failed_entry("k3", "abort"))
    records = list(newest_first(choose_source("a", errors=False)))
    assert [record.values["key"] for record in records] == ["k3", "k1", "k2"]
    assert [record.is_error for record in records] == [True, False, False]
    assert records[1].values["content"] == "judged"


def test_the_source_is_the_journal_until_its_rows_are_published(repository: Path) -> None:
    with pytest.raises(InputError, match="no dataset"):
        choose_source("a", errors=False)
    rows = make_run("a", [outcome(answer())], total=1) / "rows.jsonl"
    assert choose_source("a", errors=False).path == rows
    published = publish("a", [{"sample_id": "a:1"}]).resolve()
    os.utime(rows, (1e9, 1e9))
    assert choose_source("a", errors=False).path == published
    assert choose_source("a", errors=True).path == published.with_name("errors.jsonl")
    os.utime(published, (5e8, 5e8))
    assert choose_source("a", errors=False).path == rows
    os.utime(published, None)
    with Journal(directory("a"), {"fingerprint": "f1"}):
        source = choose_source("a", errors=False)
        assert (source.path, f"pid {os.getpid()}" in source.why) == (rows, True)
    rows.unlink()
    assert choose_source("a", errors=False).path == published
    paths.raw_responses("a").unlink()
    with pytest.raises(InputError, match="has no journal"):
        choose_source("a", errors=False)


def test_a_selection_stops_reading_when_it_has_enough() -> None:
    read: list[int] = []

    def records() -> Any:
        for number in range(100):
            read.append(number)
            yield Record(number, {"finish_reason": "length" if number % 3 else "stop"})

    selection = Selection(None, [Condition.parse("finish_reason=stop")], errors=False)
    taken = selection.take(records(), 2)
    assert [record.offset for record in taken] == [0, 3]
    assert len(read) == 4
    assert selection.values == {"stop": 2, "length": 2}
