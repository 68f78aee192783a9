"""The summary beside the rows, and counting what it does not count."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from eyas import jsonl
from eyas.generate.linefacts import FailedAttempt
from eyas.generate.progress import Counts, Display
from eyas.generate.summary import NAME, RowCount, count_further, count_rows, read_summary, write_summary
from eyas.journal import Journal
from tests.generate.counted import THINK, answer, failed_entry, journal_entry, outcome


def append(path: Path, *entries: dict[str, Any]) -> None:
    with path.open("ab") as file:
        file.writelines(map(jsonl.encode, entries))


@pytest.mark.parametrize(
    "content",
    [
        None,
        b"",
        b'{"version": 1, "jour',
        b"[]",
        b'{"version": 0}',
        b'{"version": 1}',
        b"\xff",
        b'{"version": "1"}',
    ],
)
def test_a_missing_torn_or_foreign_summary_is_none(tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (tmp_path / NAME).write_bytes(content)
    assert read_summary(tmp_path) is None


def test_a_summary_is_replaced_whole_and_leaves_nothing_behind(tmp_path: Path) -> None:
    directory = tmp_path / "j"
    directory.mkdir()
    write_summary(directory, {"version": 1, "a": "é"})
    write_summary(directory, {"version": 1})
    assert json.loads((directory / NAME).read_bytes()) == {"version": 1}
    assert [file.name for file in directory.iterdir()] == [NAME]


def test_without_a_summary_all_rows_are_counted(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    append(
        rows,
        failed_entry("a", "unjudged", "transient"),
        failed_entry("b", "http_400"),
        journal_entry("a", answer([901, 1, 1, 902, 5], reasoning="R"), at=50.0),
        journal_entry("c", answer(finish_reason="length"), at=40.0),
        failed_entry("d", "http_400"),
    )
    count = count_rows(tmp_path, None, THINK)
    assert count.size == rows.stat().st_size
    assert (count.tally.answers, count.tally.reasoning.total, count.tally.last_at) == (2, 2, 50.0)
    assert count.failures == Counter({FailedAttempt("permanent", "http_400"): 2})
    assert count_rows(tmp_path / "none", None, None) == RowCount()


def test_only_what_follows_the_summary_is_read(tmp_path: Path) -> None:
    with Journal(tmp_path, {}) as journal:
        counts = Counts(total=5, kept=0, think=THINK)
        with Display("a", counts, journal) as display:
            journal.append(journal_entry("a", answer([901, 1, 902, 5], reasoning="R")))
            counts.add(outcome(answer([901, 1, 902, 5], reasoning="R")))
            display.refresh()
            counted = journal.size
        size = journal.size
    summary = read_summary(tmp_path)
    assert summary is not None
    assert summary["journal"]["bytes"] == counted == size
    # What stands before the offset is not looked at: it could be anything of that length.
    (tmp_path / "rows.jsonl").write_bytes(b"x" * (counted - 1) + b"\n")
    append(tmp_path / "rows.jsonl", journal_entry("b", answer()), failed_entry("c", "abort", "transient"))
    count = count_rows(tmp_path, summary, THINK)
    assert count.tally.answers == 2
    assert count.new_answers == 1
    assert count.damaged == 0
    assert count.failures == Counter({FailedAttempt("transient", "abort"): 1})
    assert count.tally.reasoning.total == 1


def test_a_later_look_reads_only_new_lines_and_a_shorter_file_anew(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    append(rows, journal_entry("a", answer()), journal_entry("b", answer()))
    count = count_further(rows, RowCount(), None)
    rows.write_bytes(b"x" * (count.size - 1) + b"\n")
    append(rows, journal_entry("c", answer()))
    count = count_further(rows, count, None)
    assert (count.tally.answers, count.damaged) == (3, 0)
    rows.write_bytes(b"")
    append(rows, journal_entry("a", answer()))
    assert count_further(rows, count, None).tally.answers == 1


def test_a_torn_last_line_waits(tmp_path: Path) -> None:
    rows = tmp_path / "rows.jsonl"
    append(rows, journal_entry("a", answer()))
    whole = rows.stat().st_size
    line = jsonl.encode(journal_entry("b", answer(content="é")))
    rows.write_bytes(rows.read_bytes() + line[:-20])
    count = count_further(rows, RowCount(), None)
    assert (count.size, count.tally.answers, count.damaged) == (whole, 1, 0)
    rows.write_bytes(rows.read_bytes()[:whole] + line)
    assert count_further(rows, count, None).tally.answers == 2


def test_a_resumed_run_adds_to_what_the_journal_held(tmp_path: Path) -> None:
    append(tmp_path / "rows.jsonl", *(journal_entry(key, answer(), at=7.0) for key in "abc"))
    counts = Counts.resumed(10, 3, tmp_path, None)
    assert counts.before.answers == 3
    assert counts.done == 3
    with Journal(tmp_path, {}) as journal, Display("a", counts, journal):
        journal.append(journal_entry("d", answer([1] * 9)))
        counts.add(outcome(answer([1] * 9)))
    summary = json.loads((tmp_path / NAME).read_bytes())
    assert summary["journal"]["tally"]["answers"] == 4
    assert summary["journal"]["tally"]["generated_tokens"] == 3 * 3 + 9
    assert summary["run"]["answers"] == 1
    assert summary["rows"] == {
        "total": 10,
        "done": 4,
        "kept": 3,
        "waiting": 0,
        "failed": 0,
        "refused": 0,
        "left": 0,
        "unasked": 6,
        "in_flight": 0,
    }
    assert Counts.resumed(10, 4, tmp_path, None).before.answers == 4
