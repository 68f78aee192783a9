from __future__ import annotations

from dataclasses import fields

import pytest
import torch
from torch import Tensor

from eyas.drafter.batch import pack

from .conftest import make_states


def test_steps_labels_and_anchors_point_at_each_other() -> None:
    # T=7, prompt x0..x2, generated x3..x6: the worked example of eyas.drafter.chainrows; then one of its own
    batch = pack([make_states(3, 4, name="a"), make_states(1, 3, seed=1, name="b")], 2)
    assert batch.anchors.tolist() == [2, 3, 4, 5 + 0, 5 + 1]
    assert batch.slot_positions.tolist() == [0, 1, 2, 3, 4, 0, 1]
    assert batch.step_valid.tolist() == [
        [True, True],
        [True, True],
        [True, False],
        [True, True],
        [True, False],
    ]
    assert batch.step_labels.tolist() == [[0, 1], [1, 2], [2, 0], [3, 4], [4, 0]]
    # step 1 of an anchor reads what the next anchor reads at its step 0
    assert batch.step_anchors.tolist() == [[0, 1], [1, 2], [2, 0], [3, 4], [4, 0]]
    assert batch.label_anchors.tolist() == [[0, -1], [1, 0], [2, 1], [3, -1], [4, 3]]
    assert batch.label_sequence.tolist() == [0, 0, 0, 1, 1]
    assert batch.sequence_ids == ("a", "b")


def test_the_token_that_step_k_reads_is_the_generated_one() -> None:
    states = make_states(3, 6)
    batch = pack([states], 3)
    tokens = states.token_ids.long()
    for row, slot in enumerate(batch.anchors.tolist()):
        for step in range(3):
            if batch.step_valid[row, step]:
                read = batch.slot_tokens[batch.anchors[batch.step_anchors[row, step]]]
                assert read == tokens[slot + 1 + step]
                assert batch.step_next[row, step] == tokens[slot + 2 + step]


def test_slots_after_the_last_anchor_and_sequences_without_anchor_are_left_out() -> None:
    batch = pack([make_states(4, 1, name="one token"), make_states(2, 3, seed=2, name="kept")], 3)
    assert batch.sequence_ids == ("kept",)
    assert len(batch.slot_tokens) == 3  # slots 0..2 of five tokens
    with pytest.raises(ValueError, match="two generated tokens in a row"):
        pack([make_states(4, 1)], 3)


def test_all_tensors_move_together() -> None:
    moved = pack([make_states(3, 4)], 2).to(torch.device("meta"))
    tensors = [getattr(moved, field.name) for field in fields(moved)]
    assert {value.device.type for value in tensors if isinstance(value, Tensor)} == {"meta"}
    assert moved.chunks[0].anchor_stop == 3
