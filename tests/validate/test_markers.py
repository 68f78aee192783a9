"""Marker positions against a search row by row."""

from __future__ import annotations

import random

import polars as pl
import pytest

from eyas.schema import TOKEN_IDS
from eyas.validate.markers import count, first, first_of, tokens_of


def slow_places(row: list[int] | None, marker: list[int]) -> list[int]:
    ids = row or []
    return [place for place in range(len(ids)) if ids[place : place + len(marker)] == marker]


def ids_of(rows: list[list[int] | None]) -> pl.Series:
    return pl.Series(rows, dtype=TOKEN_IDS)


@pytest.mark.parametrize("marker", [[3], [3, 4], [3, 4, 3], [1, 1]])
def test_places_are_those_of_a_search_row_by_row(marker: list[int]) -> None:
    rng = random.Random(7)
    rows: list[list[int] | None] = [
        [rng.randrange(1, 5) for _ in range(rng.randrange(9))] for _ in range(300)
    ]
    rows[5] = None
    tokens = tokens_of(ids_of(rows))
    places = [slow_places(row, marker) for row in rows]
    assert count(tokens, marker).to_list() == [len(found) for found in places]
    assert first(tokens, marker).to_list() == [found[0] if found else None for found in places]
    assert sum(map(len, places)) > 10


def test_a_marker_across_two_rows_is_none() -> None:
    tokens = tokens_of(ids_of([[1, 3], [4, 1], [], None, [3, 4]]))
    assert count(tokens, [3, 4]).to_list() == [0, 0, 0, 0, 1]
    assert first(tokens, [3, 4]).to_list() == [None, None, None, None, 0]


def test_first_of_several_markers() -> None:
    tokens = tokens_of(ids_of([[1, 3, 4], [5, 3], [1]]))
    assert first_of(tokens, [[4], [5], [3]]).to_list() == [1, 0, None]
    assert first_of(tokens, []).to_list() == [None, None, None]


def test_nulls_among_the_ids_match_nothing() -> None:
    tokens = tokens_of(pl.Series([[3, None, 3], [None]], dtype=TOKEN_IDS))
    assert count(tokens, [3]).to_list() == [2, 0]


def test_no_rows() -> None:
    tokens = tokens_of(ids_of([]))
    assert count(tokens, [3]).to_list() == []
    assert first(tokens, [3]).to_list() == []
