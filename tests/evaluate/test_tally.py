from __future__ import annotations

import polars as pl
import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.evaluate.tally import binned, count, count_at_most, count_by, count_by_sequence

from .examples import make_replay


@pytest.fixture
def rounds() -> pl.DataFrame:
    return make_replay().rounds.filter(pl.col("draft_tokens") == 2)


def test_counts_are_weighted(rounds: pl.DataFrame) -> None:
    assert count(rounds, 2) == AcceptanceCounts(5, [3, 1])
    halved = rounds.with_columns(weight=pl.col("weight") / 2, at_2=pl.lit(0.5))
    assert count(halved, 2) == AcceptanceCounts(2.5, [1.5, 1.25])
    assert count(rounds.clear(), 2) == AcceptanceCounts(0, [0, 0])


def test_at_most_counts_what_follows_an_open_end(rounds: pl.DataFrame) -> None:
    assert count_at_most(rounds, 2) == AcceptanceCounts(5, [3, 2])
    likely = rounds.with_columns(open_end=pl.col("open_end") * 0.25, weight=pl.lit(0.5))
    assert count_at_most(likely, 2) == AcceptanceCounts(2.5, [1.5, 0.625])
    assert count_at_most(rounds.clear(), 2) == AcceptanceCounts(0, [0, 0])


def test_counts_by_a_column(rounds: pl.DataFrame) -> None:
    assert count_by(rounds, "position", 2) == {
        0: AcceptanceCounts(2, [1, 1]),
        1: AcceptanceCounts(1, [1, 0]),
        3: AcceptanceCounts(1, [0, 0]),
        4: AcceptanceCounts(1, [1, 0]),
    }


def test_every_sequence_has_a_row(rounds: pl.DataFrame) -> None:
    table = count_by_sequence(rounds, pl.Series(["b:1", "none", "a:1"]), 2)
    assert table.tolist() == [[2, 1, 0], [0, 0, 0], [3, 2, 1]]


def test_a_bin_begins_with_its_first_value() -> None:
    table = pl.DataFrame({"position": [0, 1, 2, 7, 8, 900]})
    assert binned(table, "position", [0, 2, 8])["bin"].to_list() == [0, 0, 2, 2, 8, 8]
