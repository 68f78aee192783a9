from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from eyas.errors import GateError
from eyas.reassemble.inputs import ValidatedTable
from eyas.reassemble.sources import Sources
from tests.families import FAMILIES
from tests.reassemble.golden_rows import row_of, table_of

FAMILY = FAMILIES["qwen3"]


def sources(folder: Path, *rows: dict[str, Any]) -> Sources:
    path = folder / "rows.parquet"
    table_of(*rows).write_parquet(path)
    return Sources([ValidatedTable("a", path, {})], FAMILY.tokenizer_dir(folder), FAMILY.profile(folder))


def rows(**changes: Any) -> list[dict[str, Any]]:
    turns = [turn for turn in FAMILY.turns if not turn.template_kwargs]
    return [row_of(FAMILY, turn, **changes) for turn in turns]


def test_both_proofs_are_made_meanwhile(tmp_path: Path) -> None:
    answers = rows()
    with sources(tmp_path, *answers).proving(3) as future:
        proof = future.result()
    assert (proof.prompts, proof.drift.height) == (len(answers), 3)


def test_a_mismatch_is_raised_where_the_proof_is_asked_for(tmp_path: Path) -> None:
    with (
        sources(tmp_path, *rows(prompt_token_ids=[1, 2])).proving(0) as future,
        pytest.raises(GateError, match="6 of 6 prompts are rendered differently"),
    ):
        future.result()


def test_leaving_early_ends_the_thread(tmp_path: Path) -> None:
    before = threading.active_count()
    with pytest.raises(RuntimeError), sources(tmp_path, *rows()).proving(1000):
        raise RuntimeError
    assert threading.active_count() == before
