"""The draft vocabulary of a foreign checkpoint, from its maps d2t and t2d. NumPy only: the vocab stage reads it too.

d2t[i] is target id minus draft id; t2d marks the kept target ids. Published files may lack one or both, hold another
integer type, or hold target ids in place of offsets (SafeAILab/EAGLE#222, verl-SpeCo#67).
Vd draft vocab, V target vocab.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from eyas.drafter.formats.findings import Findings

Ids = NDArray[np.int64]


def draft_ids(
    d2t: NDArray[np.generic] | None,
    t2d: NDArray[np.generic] | None,
    draft_size: int,
    target_size: int,
    found: Findings,
) -> Ids:
    """Target ids of the draft vocabulary, int64 [Vd], ascending. Maps that are wrong become problems, then: the first Vd ids."""
    first_ids = np.arange(draft_size, dtype=np.int64)
    kept = None if t2d is None else _kept(t2d, draft_size, target_size, found)
    if d2t is not None:
        return _from_offsets(d2t, kept, draft_size, target_size, found)
    if kept is not None:
        if draft_size != target_size:
            found.assume("there is no `d2t`: it was computed from `t2d`")
        return kept if len(kept) == draft_size else first_ids
    if draft_size != target_size:
        found.refuse(
            f"tensor `d2t` is missing, and so is `t2d`: nothing says which {draft_size} of {target_size} tokens are drafted"
        )
    return first_ids


def _kept(t2d: NDArray[np.generic], draft_size: int, target_size: int, found: Findings) -> Ids:
    if t2d.dtype != np.bool_:
        found.assume(f"`t2d` is {t2d.dtype}: what is not 0 counts as kept")
    if t2d.shape != (target_size,):
        found.refuse(f"tensor `t2d` has shape {list(t2d.shape)}, the target has {target_size} tokens")
    kept = np.flatnonzero(t2d.astype(np.bool_)).astype(np.int64)
    if len(kept) != draft_size:
        found.refuse(f"tensor `t2d` keeps {len(kept)} tokens, the draft vocabulary has {draft_size}")
    return kept


def _from_offsets(
    d2t: NDArray[np.generic], kept: Ids | None, draft_size: int, target_size: int, found: Findings
) -> Ids:
    if d2t.shape != (draft_size,) or not np.issubdtype(d2t.dtype, np.integer):
        found.refuse(f"tensor `d2t` is {d2t.dtype} {list(d2t.shape)}, must be integers [{draft_size}]")
        return np.arange(draft_size, dtype=np.int64)
    if d2t.dtype != np.int64:
        found.assume(f"`d2t` is {d2t.dtype}: the same numbers as int64")
    offsets = d2t.astype(np.int64)
    ids = offsets + np.arange(draft_size)
    if kept is not None and len(kept) == draft_size:
        _compare(offsets, ids, kept, found)
        return ids
    _check_alone(offsets, ids, target_size, found)
    if kept is None and draft_size != target_size:
        found.assume("there is no `t2d`: it was computed from `d2t`")
    return ids


def _compare(offsets: Ids, ids: Ids, kept: Ids, found: Findings) -> None:
    if np.array_equal(ids, kept):
        return
    if np.array_equal(offsets, kept):
        found.refuse(ABSOLUTE)
        return
    first = int(np.flatnonzero(ids != kept)[0])
    found.refuse(f"`d2t` makes draft id {first} token {ids[first]}, by `t2d` it is token {kept[first]}")


def _check_alone(offsets: Ids, ids: Ids, target_size: int, found: Findings) -> None:
    """What offsets alone show: order, range, and the two usual mistakes."""
    if falling := np.flatnonzero(np.diff(ids) <= 0).tolist():
        at = falling[0]
        found.refuse(
            f"`d2t` is not increasing: draft ids {at} and {at + 1} are tokens {ids[at]} and {ids[at + 1]}"
        )
    elif len(ids) > 2 and np.all(np.diff(offsets) > 0):  # then no two neighbouring tokens would be kept
        found.refuse(ABSOLUTE)
    outside = np.flatnonzero((ids < 0) | (ids >= target_size)).tolist()
    if outside:
        found.refuse(
            f"`d2t` makes draft id {outside[0]} token {ids[outside[0]]}, outside of 0..{target_size - 1}"
        )
    if len(ids) != target_size and not offsets.any():
        found.refuse(
            "`d2t` is all zeros, which keeps the first tokens of the vocabulary: a map that was never filled"
        )


ABSOLUTE = "`d2t` holds target ids; engines add it to the draft id, so it must hold target id minus draft id"
