from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from eyas.train.course import Course
from eyas.train.plan import Sizes

from .example import PARAMS

SIZES = Sizes(tokens=np.full(25, 10), labels=np.full(25, 5))  # 5 steps of 50 tokens each epoch


@pytest.mark.parametrize(
    ("every", "lengths", "ends"),
    [
        (None, [5, 5], [True, True]),
        (2, [2, 2, 1, 2, 2, 1], [False, False, True] * 2),
        (5, [5, 5], [True, True]),
        (9, [5, 5], [True, True]),
    ],
)
def test_stretches_end_with_each_validation(every: int | None, lengths: list[int], ends: list[bool]) -> None:
    course = Course(SIZES, dataclasses.replace(PARAMS, batch_tokens=50, epochs=2, val_every_steps=every))
    assert [len(stretch) for stretch in course.stretches] == lengths
    assert [stretch.ends_epoch for stretch in course.stretches] == ends
    assert course.steps == 10
    first = 0
    for stretch in course.stretches:
        assert stretch.first == first
        assert stretch.first == 5 * stretch.epoch + stretch.start
        first += len(stretch)
