from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from eyas.drafter.formats.draftmap import draft_ids
from eyas.drafter.formats.findings import Findings

SIZE = 40


def maps(ids: list[int]) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    kept = np.zeros(SIZE, dtype=np.bool_)
    kept[ids] = True
    return np.array(ids, dtype=np.int64) - np.arange(len(ids)), kept


def read(d2t: Any, t2d: Any, size: int) -> tuple[list[int], Findings]:
    found = Findings(Path("drafter"))
    return draft_ids(d2t, t2d, size, SIZE, found).tolist(), found


@given(st.sets(st.integers(0, SIZE - 1), min_size=1))
def test_either_map_gives_the_ids(chosen: set[int]) -> None:
    ids = sorted(chosen)
    d2t, t2d = maps(ids)
    both, found = read(d2t, t2d, len(ids))
    assert (both, found.problems, found.assumptions) == (ids, [], [])
    alone, found = read(None, t2d, len(ids))
    assert (alone, found.problems) == (ids, [])
    assert len(found.assumptions) == (len(ids) < SIZE)


@given(st.sets(st.integers(10, SIZE - 1)).map(lambda ids: ids | {6, 7, 8}))
def test_offsets_alone_give_the_ids(chosen: set[int]) -> None:
    ids = sorted(chosen)
    found_ids, found = read(maps(ids)[0], None, len(ids))
    assert (found_ids, found.problems) == (ids, [])
    assert found.assumptions == ["there is no `t2d`: it was computed from `d2t`"]


@given(st.sets(st.integers(0, SIZE - 1), min_size=2, max_size=SIZE - 1), st.data())
def test_a_wrong_offset_never_passes_beside_t2d(chosen: set[int], data: st.DataObject) -> None:
    ids = sorted(chosen)
    d2t, t2d = maps(ids)
    place = data.draw(st.integers(0, len(ids) - 1))
    d2t[place] += data.draw(st.sampled_from([-3, -1, 1, 2]))
    problems = read(d2t, t2d, len(ids))[1].problems
    assert len(problems) == 1
    assert "`d2t`" in problems[0]


IDS = [1, 2, 9, 20, 39]
D2T, T2D = maps(IDS)
WRONG: dict[str, tuple[Any, Any, int, str]] = {
    "target ids in place of offsets": (np.array(IDS), T2D, 5, "`d2t` holds target ids"),
    "target ids alone": (np.array([1, 5, 9, 13]), None, 4, "`d2t` holds target ids"),
    "zeros": (np.zeros(5, dtype=np.int64), None, 5, "`d2t` is all zeros"),
    "zeros beside t2d": (
        np.zeros(5, dtype=np.int64),
        T2D,
        5,
        "makes draft id 0 token 0, by `t2d` it is token 1",
    ),
    "falling": (
        np.array([3, 3, 1, 1, 2]),
        None,
        5,
        "`d2t` is not increasing: draft ids 1 and 2 are tokens 4 and 3",
    ),
    "twice": (np.array([3, 2, 2, 4, 4]), None, 5, "draft ids 0 and 1 are tokens 3 and 3"),
    "too high": (np.array([0, 0, 36, 37, 37]), None, 5, "draft id 3 token 40, outside of 0..39"),
    "negative": (np.array([-1, 0, 0, 0, 5]), None, 5, "draft id 0 token -1, outside"),
    "shape": (D2T[:4], T2D, 5, "`d2t` is int64 [4], must be integers [5]"),
    "kind": (D2T.astype(np.float32), T2D, 5, "`d2t` is float32 [5]"),
    "t2d of another vocabulary": (D2T, T2D[:30], 5, "`t2d` has shape [30], the target has 40 tokens"),
    "t2d keeps more": (
        D2T,
        np.ones(SIZE, dtype=np.bool_),
        5,
        "`t2d` keeps 40 tokens, the draft vocabulary has 5",
    ),
    "neither": (None, None, 5, "`d2t` is missing, and so is `t2d`"),
}


@pytest.mark.parametrize(("d2t", "t2d", "size", "message"), WRONG.values(), ids=WRONG.keys())
def test_wrong_maps_are_named(d2t: Any, t2d: Any, size: int, message: str) -> None:
    assert any(message in problem for problem in read(d2t, t2d, size)[1].problems)


def test_other_kinds_of_numbers_are_taken_and_said() -> None:
    ids, found = read(D2T.astype(np.int32), T2D.astype(np.uint8), 5)
    assert (ids, found.problems) == (IDS, [])
    assert found.assumptions == [
        "`t2d` is uint8: what is not 0 counts as kept",
        "`d2t` is int32: the same numbers as int64",
    ]


def test_the_whole_vocabulary_needs_no_map() -> None:
    for d2t in (None, np.zeros(SIZE, dtype=np.int64)):
        ids, found = read(d2t, None, SIZE)
        assert (ids, found.problems, found.assumptions) == (list(range(SIZE)), [], [])
