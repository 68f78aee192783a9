"""Sequences side by side in one row, first tokens that several of them share laid down once.

In a causal model the states of a token depend on the tokens before it and on nothing else, so sequences that begin with
the same tokens have the same states there: the turns of one conversation, several answers to one prompt, prompts
under one system message.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

MIN_SHARED = 8
"""Fewer shared tokens are computed again: they cost less than attention over two places."""


@dataclass(frozen=True)
class Piece:
    """The tokens of a sequence that no earlier one begins with."""

    rows: range
    """Where they lie."""
    before: tuple[range, ...]
    """Where the tokens before them lie, in order."""

    @property
    def shared(self) -> int:
        """Number of tokens before them."""
        return sum(map(len, self.before))


@dataclass(frozen=True)
class Packing:
    """Sequences in one row."""

    token_ids: list[int]
    positions: list[int]
    """Of each token in its sequence."""
    pieces: list[Piece]
    rows: list[tuple[range, ...]]
    """Where the tokens of each sequence lie, in the order in which the sequences were given."""


def pack(sequences: Sequence[Sequence[int]], min_shared: int = MIN_SHARED) -> Packing:
    """Lay sequences side by side.

    In lexicographic order no earlier sequence shares more first tokens with a sequence than its predecessor does, so
    one comparison each finds all there is to share.
    """
    packing = Packing([], [], [], [()] * len(sequences))
    previous: int | None = None
    for index in lexicographic(sequences, range(len(sequences))):
        tokens = sequences[index]
        shared = 0 if previous is None else shared_length(sequences[previous], tokens)
        before = () if previous is None or shared < min_shared else _first(packing.rows[previous], shared)
        count = sum(map(len, before))
        start = len(packing.token_ids)
        packing.token_ids.extend(tokens[count:])
        packing.positions.extend(range(count, len(tokens)))
        own = range(start, len(packing.token_ids))
        if own:
            packing.pieces.append(Piece(own, before))
        packing.rows[index] = _joined(before, own)
        previous = index
    return packing


def lexicographic(sequences: Sequence[Sequence[int]], indices: Sequence[int]) -> list[int]:
    """Indices in the order of their tokens, equal sequences in the order of their indices."""
    return sorted(indices, key=lambda index: (list(sequences[index]), index))


def shared_length(first: Sequence[int], second: Sequence[int]) -> int:
    """Number of tokens with which both begin."""
    equal, limit = 0, min(len(first), len(second))
    while equal < limit:
        middle = (equal + limit + 1) // 2
        if first[equal:middle] == second[equal:middle]:
            equal = middle
        else:
            limit = middle - 1
    return equal


def _first(rows: tuple[range, ...], count: int) -> tuple[range, ...]:
    """The first `count` of some rows."""
    found: list[range] = []
    for part in rows:
        if count <= 0:
            break
        found.append(part[:count])
        count -= len(part)
    return tuple(found)


def _joined(before: tuple[range, ...], own: range) -> tuple[range, ...]:
    """Rows one after another, neighbours as one range."""
    if not own:
        return before
    if before and before[-1].stop == own.start:
        return (*before[:-1], range(before[-1].start, own.stop))
    return (*before, own)
