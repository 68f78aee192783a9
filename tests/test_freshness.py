from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest

from eyas.errors import ArtifactError
from eyas.freshness import inputs_digest, read_inputs_digest
from eyas.schema import RejectedPrompts, columns_of
from eyas.tables import INPUTS, read_note, read_table, write_table

PARAMS = "datasets: {a: {source: jsonl, role: train, path: a.jsonl}}\nprompts: {system: null}\nvocab: {draft_vocab_size: 4}\n"


@pytest.fixture
def params(tmp_path: Path) -> Path:
    path = tmp_path / "params.yaml"
    path.write_text(PARAMS)
    return path


@pytest.mark.parametrize(
    ("old", "new", "same"),
    [
        pytest.param("size: 4", "size: 5", True, id="another-section"),
        pytest.param("system: null", "system:   null", True, id="spelling"),
        pytest.param("system: null", "system: Be brief.", False, id="prompts"),
        pytest.param("a.jsonl", "b.jsonl", False, id="datasets"),
    ],
)
def test_digest_follows_the_two_sections(params: Path, old: str, new: str, same: bool) -> None:
    before = inputs_digest(params)
    params.write_text(PARAMS.replace(old, new))
    assert (inputs_digest(params) == before) is same


def test_digest_travels_with_the_table(tmp_path: Path) -> None:
    path = tmp_path / "new" / "a.parquet"
    write_table(path, pl.DataFrame({"a": [1]}), {INPUTS: "d1"})
    assert read_inputs_digest(path) == "d1"
    assert pl.read_parquet(path)["a"].to_list() == [1]


def test_no_table_and_no_note_are_none(tmp_path: Path) -> None:
    write_table(tmp_path / "a.parquet", pl.DataFrame({"a": [1]}))
    assert read_inputs_digest(tmp_path / "a.parquet") is None
    assert read_inputs_digest(tmp_path / "b.parquet") is None


def test_a_damaged_table_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    path.write_bytes(b"PAR1 torn")
    with pytest.raises(ArtifactError, match="not a readable Parquet file"):
        read_note(path, INPUTS)
    with pytest.raises(ArtifactError, match="not a readable Parquet file"):
        read_table(path, RejectedPrompts)


def test_a_table_is_read_checked(tmp_path: Path) -> None:
    good = pl.DataFrame(schema=columns_of(RejectedPrompts))
    write_table(tmp_path / "a.parquet", good)
    assert read_table(tmp_path / "a.parquet", RejectedPrompts).equals(good)
    write_table(tmp_path / "b.parquet", good.drop("reason"))
    with pytest.raises(ArtifactError, match=r"b\.parquet: not a RejectedPrompts table"):
        read_table(tmp_path / "b.parquet", RejectedPrompts)
    with pytest.raises(ArtifactError, match="not a readable Parquet file"):
        read_table(tmp_path / "none.parquet", RejectedPrompts)
