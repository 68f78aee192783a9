"""The files are checked as they lie there: what is changed in them after writing is found."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from eyas.errors import ArtifactError, GateError
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.publish import check_files, write_sequences
from eyas.reassemble.sequences import candidates
from tests.hand_made import END, END_THINK, PROMPT_IDS, THINK, THINKING, hash_of, profile, raw, validated

PARAMS = ReassembleParams(val_share=0.3, max_length=100, keep_truncated=True)
THINKS = profile(think=THINKING)


def prompt(number: int) -> list[int]:
    return [*PROMPT_IDS[:3], 32 + number, *PROMPT_IDS[4:]]


ROWS = [
    raw(f"talk:{number}", prompt_token_ids=prompt(number), token_ids=[THINK, 30, END_THINK, 31, END])
    for number in range(8)
]


@pytest.fixture
def written(tmp_path: Path) -> pl.DataFrame:
    """The index of sequences that lie in tmp_path."""
    sequences = {
        "quiz": candidates(validated([raw("quiz:1", prompt_hash=hash_of("q"))]).lazy(), THINKS, PARAMS),
        "talk": candidates(validated(ROWS).lazy(), THINKS, PARAMS),
    }
    return write_sequences(tmp_path, sequences, {"talk": "train", "quiz": "eval"}, PARAMS.val_share, hash_of)


def test_what_was_written_is_right_and_counted(written: pl.DataFrame, tmp_path: Path) -> None:
    kinds = check_files(tmp_path, written, THINKS)
    assert kinds.filter(dataset="talk")["tokens"].to_list() == [80, 16, 8, 8, 0, 8]
    assert kinds.filter(dataset="quiz")["tokens"].to_list() == [10, 0, 0, 3, 0, 1]


def changed(expression: pl.Expr) -> Callable[[pl.DataFrame], pl.DataFrame]:
    return lambda table: table.with_columns(expression)


REPLACED = pl.col("token_ids").list.eval(pl.element().replace({30: 21}))
SHIFTED = pl.col("kinds").list.eval(pl.element().shift(-1, fill_value=5))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(lambda table: table[1:], "train holds .* its answers make", id="a-lost-row"),
        pytest.param(lambda table: table.reverse(), "or in another order", id="another-order"),
        pytest.param(lambda table: pl.concat([table, table[:1]]), "train holds", id="a-row-twice"),
        pytest.param(changed(REPLACED), "the generated ids are not the server's", id="another-token"),
        pytest.param(changed(SHIFTED), "kind_0_is_the_prompt", id="shifted-kinds"),
        pytest.param(lambda table: table.drop("kinds"), "kinds", id="a-lost-column"),
    ],
)
def test_a_changed_file_is_found(
    change: Callable[[pl.DataFrame], pl.DataFrame], message: str, written: pl.DataFrame, tmp_path: Path
) -> None:
    path = tmp_path / "train.parquet"
    table = pl.read_parquet(path)
    change(table).write_parquet(path)
    with pytest.raises((GateError, ArtifactError, pl.exceptions.ColumnNotFoundError), match=message):
        check_files(tmp_path, written, THINKS)
