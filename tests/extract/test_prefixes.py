from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.extract.prefixes import Packing, Piece, pack, shared_length


def read(packing: Packing, values: Sequence[int], index: int) -> list[int]:
    """What lies at the rows of a sequence."""
    return [values[row] for row in chain(*packing.rows[index])]


@pytest.mark.parametrize(
    ("first", "second", "expected"),
    [([], [1], 0), ([1], [1], 1), ([1, 2], [1, 2, 3], 2), ([1, 2, 3], [1, 2, 4], 2), ([1, 2], [3, 2], 0)],
)
def test_shared_length(first: list[int], second: list[int], expected: int) -> None:
    assert shared_length(first, second) == shared_length(second, first) == expected


def test_a_conversation_by_hand() -> None:
    """Turn 1 continues turn 0 but for its thinking (9, 9); turn 2 continues turn 1."""
    turns = [[1, 2, 3, 9, 9, 4], [1, 2, 3, 4, 5, 6], [1, 2, 3, 4, 5, 6, 7], [8]]
    packing = pack(turns, min_shared=2)
    assert packing.token_ids == [1, 2, 3, 4, 5, 6, 7, 9, 9, 4, 8]
    assert packing.positions == [0, 1, 2, 3, 4, 5, 6, 3, 4, 5, 0]
    assert packing.pieces == [
        Piece(range(6), ()),
        Piece(range(6, 7), (range(6),)),
        Piece(range(7, 10), (range(3),)),
        Piece(range(10, 11), ()),
    ]
    assert packing.rows == [(range(3), range(7, 10)), (range(6),), (range(7),), (range(10, 11),)]


def test_few_shared_tokens_are_computed_again() -> None:
    packing = pack([[1, 2, 3], [1, 2, 4]], min_shared=3)
    assert packing.token_ids == [1, 2, 3, 1, 2, 4]
    assert all(piece.before == () for piece in packing.pieces)


def test_a_sequence_that_occurs_twice() -> None:
    packing = pack([[1, 2, 3], [1, 2, 3]], min_shared=2)
    assert packing.token_ids == [1, 2, 3]
    assert packing.rows == [(range(3),), (range(3),)]


@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=12), max_size=12), st.integers(1, 4))
def test_every_sequence_is_found_again(sequences: list[list[int]], min_shared: int) -> None:
    packing = pack(sequences, min_shared)
    for index, tokens in enumerate(sequences):
        assert read(packing, packing.token_ids, index) == tokens
        assert read(packing, packing.positions, index) == list(range(len(tokens)))
    laid = [row for piece in packing.pieces for row in piece.rows]
    assert laid == list(range(len(packing.token_ids)))


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), max_size=12))
def test_each_shared_token_is_laid_once(sequences: list[list[int]]) -> None:
    """As many rows as there are different beginnings."""
    beginnings = {tuple(tokens[:length]) for tokens in sequences for length in range(1, len(tokens) + 1)}
    assert len(pack(sequences, 1).token_ids) == len(beginnings)


@given(st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=8), max_size=12))
def test_a_piece_sees_the_tokens_before_it(sequences: list[list[int]]) -> None:
    packing = pack(sequences, 1)
    for piece in packing.pieces:
        seen = [row for part in (*piece.before, piece.rows) for row in part]
        assert [packing.positions[row] for row in seen] == list(range(len(seen)))
        assert any(seen == list(chain(*rows))[: len(seen)] for rows in packing.rows)
