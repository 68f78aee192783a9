"""What is still to be asked, and in which order."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.generate import table as table_module
from eyas.generate.table import PromptTable
from tests.generate.talking import (
    Message,
    answer,
    answered,
    open_journal,
    refused,
    responses,
    user,
    write_table,
)


def table_of(tmp_path: Path, *texts: str) -> PromptTable:
    return write_table(tmp_path / "talk.parquet", *([user(text)] for text in texts))


def test_adding_100_prompts_to_1000_leaves_exactly_100(tmp_path: Path) -> None:
    """The keys of single-turn prompts do not depend on their places or on other prompts."""
    old = [f"question {number}" for number in range(1000)]
    with open_journal(tmp_path / "journal") as journal:
        for conversation in responses(table_of(tmp_path, *old), journal).pending():
            request = conversation.next()
            assert request is not None
            journal.append(answered(request, answer()))
            conversation.add(answer())
        new = [f"another {number}" for number in range(100)]
        mixed = [text for pair in zip(old[:100], new, strict=True) for text in pair] + old[100:]
        pending = responses(table_of(tmp_path, *mixed), journal).pending()
        assert pending.turns == 100
        asked = [conversation.next() for conversation in pending]
        assert [request.messages[0]["content"] for request in asked if request] == new


def test_pending_turns_are_those_that_can_still_be_asked(tmp_path: Path) -> None:
    conversations: list[list[Message]] = [
        [user("a"), user("b"), user("c")],
        [user("d")],
        [user("e"), user("f")],
        [user("g"), user("h")],
    ]
    table = write_table(tmp_path / "t.parquet", *conversations)
    assert table.turns == 8
    with open_journal(tmp_path / "journal") as journal:
        first, second, third, _ = responses(table, journal).pending()
        for conversation, reply in (
            (first, answer()),
            (second, answer()),
            (third, answer(finish_reason="length")),
        ):
            request = conversation.next()
            assert request is not None
            journal.append(answered(request, reply))
        assert responses(table, journal).pending().turns == 2 + 0 + 0 + 2


def test_a_failed_request_is_pending_again(tmp_path: Path) -> None:
    table = table_of(tmp_path, "a")
    with open_journal(tmp_path / "journal") as journal:
        [conversation] = responses(table, journal).pending()
        request = conversation.next()
        assert request is not None
        journal.append(refused(request))
        assert responses(table, journal).pending().turns == 1


def test_first_ones_are_spread_over_the_lengths_and_the_rest_comes_in_order(tmp_path: Path) -> None:
    texts = ["x" * (1 + 7 * number % 20) for number in range(20)]
    with open_journal(tmp_path / "journal") as journal:
        pending = responses(table_of(tmp_path, *texts), journal).pending()
        first = [conversation.sample_id for conversation in pending.first(5)]
        lengths = [len(texts[int(sample_id[-4:])]) for sample_id in first]
        assert lengths == [1, 6, 11, 15, 20]
        rest = [conversation.sample_id for conversation in pending]
        assert rest == [f"talk:{number:04}" for number in range(20) if f"talk:{number:04}" not in first]
        assert list(pending) == []


def test_few_conversations_are_all_first(tmp_path: Path) -> None:
    with open_journal(tmp_path / "journal") as journal:
        pending = responses(table_of(tmp_path, "aaa", "b", "cc"), journal).pending()
        assert [conversation.sample_id for conversation in pending.first(8)] == [
            "talk:0001", "talk:0002", "talk:0000",
        ]  # fmt: skip
        assert pending.first(8) == []
        assert list(pending) == []


def test_conversations_are_made_when_they_are_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker takes one at a time, so that few of many prompts are in memory."""
    table = write_table(tmp_path / "t.parquet", *([user(str(number))] for number in range(50)))
    with open_journal(tmp_path / "journal") as journal:
        pending = responses(table, journal).pending()
        reads: list[int] = []
        original = table_module._slice

        def counted(path: Path, dataset: str, columns: tuple[str, ...], start: int, rows: int) -> object:
            reads.append(start)
            return original(path, dataset, columns, start, rows)

        monkeypatch.setattr(table_module, "SLICE_ROWS", 10)
        monkeypatch.setattr(table_module, "_slice", counted)
        taken = iter(pending)
        for _ in range(11):
            next(taken)
        assert reads == [0, 10]
