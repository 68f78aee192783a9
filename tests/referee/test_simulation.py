from __future__ import annotations

import numpy as np

from eyas.referee.simulation import rounds


def test_rounds_of_a_hand_made_answer() -> None:
    # from slot 0 two are accepted and the target adds one: slot 3, which accepts none: slot 4, which accepts one
    leading = np.array([2, 9, 9, 0, 1, 9])
    assert rounds(leading, 3) == [3, 2, 1, 0]


def test_an_answer_without_anchors_has_no_rounds() -> None:
    assert rounds(np.array([], dtype=np.int64), 2) == [0, 0, 0]
