"""Whether two sets of answers are the same, token by token, and where they first differ if not."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest


@dataclass(frozen=True)
class Difference:
    """The first different token of an answer."""

    sequence_id: str
    position: int
    """In the answer, from 0."""
    expected: int | None
    """Token id; None where the expected answer has ended."""
    found: int | None
    common: tuple[int, ...] = field(default=(), repr=False)
    """What both answers begin with."""


@dataclass(frozen=True)
class Comparison:
    """Answers compared one by one."""

    total: int
    identical: int
    differences: list[Difference]
    """One per answer that differs, by sequence_id."""

    def __add__(self, other: Comparison) -> Comparison:
        return Comparison(
            total=self.total + other.total,
            identical=self.identical + other.identical,
            differences=[*self.differences, *other.differences],
        )


def compare(expected: Mapping[str, Sequence[int]], found: Mapping[str, Sequence[int]]) -> Comparison:
    """Compare the answers that `found` holds with those of the same sequence_id in `expected`."""
    differences = [
        difference
        for sequence_id in sorted(found)
        if (difference := first_difference(sequence_id, expected[sequence_id], found[sequence_id]))
    ]
    return Comparison(total=len(found), identical=len(found) - len(differences), differences=differences)


def first_difference(sequence_id: str, expected: Sequence[int], found: Sequence[int]) -> Difference | None:
    """The first place where two answers differ; None if they are identical."""
    for position, (left, right) in enumerate(zip_longest(expected, found)):
        if left != right:
            return Difference(sequence_id, position, left, right, tuple(found[:position]))
    return None
