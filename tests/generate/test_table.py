"""Reading prompt tables."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import polars as pl
import pytest

from eyas.errors import ArtifactError
from eyas.generate import table as table_module
from eyas.generate.table import Prompt, PromptTable
from tests.generate.example import write_prompts
from tests.generate.talking import call, tool, user, write_table


def test_rows_come_in_order_with_their_places(repository: Path) -> None:
    table = PromptTable.read(write_prompts("a", ["p0", "p1"]), "a")
    assert (len(table), table.turns) == (2, 2)
    assert list(table) == [
        Prompt(0, "a:0000", "a", f"{0:064x}", [user("p0")], None),
        Prompt(1, "a:0001", "a", f"{1:064x}", [user("p1")], None),
    ]
    assert table.prompt(1) == list(table)[1]


def test_messages_hold_what_is_there_and_nothing_else(tmp_path: Path) -> None:
    conversation = [
        user("q"),
        {"role": "assistant", "reasoning": "R", "tool_calls": [call("c1")]},
        tool("r", "c1"),
    ]
    table = write_table(tmp_path / "t.parquet", conversation, [user("")], tools='[{"a":1}]')
    assert [prompt.messages for prompt in table] == [conversation, [user("")]]
    assert [prompt.parsed_tools() for prompt in table] == [[{"a": 1}], [{"a": 1}]]


def test_turns_of_all_conversations_are_counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(table_module, "SLICE_ROWS", 2)
    table = write_table(tmp_path / "t.parquet", *([user("q")] * number for number in range(1, 6)))
    assert (table.rows, table.turns) == (5, 15)


@pytest.mark.parametrize("slice_rows", [1, 2, 3, 7, 100])
def test_only_the_wanted_rows_are_read_in_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, slice_rows: int
) -> None:
    monkeypatch.setattr(table_module, "SLICE_ROWS", slice_rows)
    table = write_table(tmp_path / "t.parquet", *([user(f"q{number}")] for number in range(10)))
    assert [prompt.row for prompt in table] == list(range(10))
    for places in ([], [0], [9], [2, 3, 8], list(range(10))):
        wanted = np.zeros(10, dtype=np.bool_)
        wanted[places] = True
        found = list(table.only(wanted))
        assert [prompt.row for prompt in found] == places
        assert [prompt.messages for prompt in found] == [[user(f"q{place}")] for place in places]


def test_a_missing_or_foreign_table_says_which_stage_makes_it(repository: Path) -> None:
    path = repository / "x.parquet"
    with pytest.raises(ArtifactError, match="can't be read") as caught:
        PromptTable.read(path, "a")
    assert caught.value.hint == "dvc repro prompts@a"
    pl.DataFrame({"question": ["?"]}).write_parquet(path)
    with pytest.raises(ArtifactError, match="can't be read"):
        PromptTable.read(path, "a")
    path.write_bytes(b"junk")
    with pytest.raises(ArtifactError, match="can't be read"):
        PromptTable.read(path, "a")


@pytest.mark.parametrize("order", [[1, 0, 2, 3, 4], [0, 1, 2, 4, 3], [0, 1, 1, 2, 3], [0, 2, 1, 3, 4]])
def test_rows_out_of_order_or_twice_are_refused(
    repository: Path, monkeypatch: pytest.MonkeyPatch, order: list[int]
) -> None:
    monkeypatch.setattr(table_module, "SLICE_ROWS", 2)
    path = write_prompts("a", [str(number) for number in range(5)])
    pl.read_parquet(path)[order].write_parquet(path)
    with pytest.raises(ArtifactError, match="not sorted by sample_id"):
        PromptTable.read(path, "a")
