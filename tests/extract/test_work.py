from __future__ import annotations

from pathlib import Path

import pytest

from eyas.extract.table import Sequences
from eyas.extract.work import Work, total_of
from tests.extract.stored import agreement, facts, parts_in, stored

LENGTHS = [5, 5, 5, 5, 10]


def make_work(folder: Path) -> Work:
    """Five sequences in three shards."""
    names = [f"a:{number}" for number in range(len(LENGTHS))]
    rows = [list(range(length)) for length in LENGTHS]
    sequences = Sequences.of(names, ["x"] * len(names), rows, [[3] * length for length in LENGTHS])
    return Work(
        "train",
        sequences,
        [range(2), range(2, 4), range(4, 5)],
        [100, 110, 90],
        parts_in(folder),
        agreement(),
    )


def test_shards(tmp_path: Path) -> None:
    work = make_work(tmp_path)
    assert work.ids(1) == ["a:2", "a:3"]
    assert [work.tokens(number) for number in range(3)] == [10, 10, 10]
    total = total_of([work, work])
    assert (total.tokens, total.bytes, total.sequences) == (60, 600, 10)
    assert [size > 4096 for size in work.file_bytes] == [True] * 3


def test_what_is_missing(tmp_path: Path) -> None:
    work = make_work(tmp_path)
    assert work.missing() == [0, 1, 2]
    work.parts.write(1, stored("a:2", "a:3"), facts())
    assert work.missing() == [0, 2]


@pytest.mark.parametrize(
    ("batches", "heaviest"),
    [
        pytest.param([[0, 1], [4]], [[4]], id="about as many tokens"),
        pytest.param([[0, 1, 2], [4]], [[4], [0, 1, 2]], id="more tokens in another one"),
        pytest.param([[0, 1, 4], [2, 3]], [[0, 1, 4]], id="both in one"),
    ],
)
def test_batches_to_try_first(tmp_path: Path, batches: list[list[int]], heaviest: list[list[int]]) -> None:
    assert make_work(tmp_path).heaviest(batches) == heaviest
