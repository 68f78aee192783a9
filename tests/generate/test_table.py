"""Reading prompt tables."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from eyas.errors import ArtifactError
from eyas.generate.table import Prompt, PromptTable
from tests.generate.example import write_prompts


def test_rows_come_sorted_by_sample_id(repository: Path) -> None:
    path = write_prompts("a", ["p0", "p1"])
    pl.read_parquet(path).reverse().write_parquet(path)
    table = PromptTable.read(path, "a")
    assert len(table) == 2
    assert list(table) == [
        Prompt("a:0000", "a", f"{0:064x}", [{"role": "user", "content": "p0"}]),
        Prompt("a:0001", "a", f"{1:064x}", [{"role": "user", "content": "p1"}]),
    ]


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
