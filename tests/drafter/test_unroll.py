"""The packed TTT unroll against sequential drafting, and its locality."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from eyas import tokenkinds
from eyas.drafter.batch import pack
from eyas.drafter.model import Drafter
from eyas.drafter.unroll import unroll
from eyas.shards import SequenceStates

from .conftest import make_drafter, make_states
from .reference import Reference

STEPS = 4


def outputs(
    drafter: Drafter, sequences: list[SequenceStates], embedding: Tensor, steps: int = STEPS
) -> Tensor:
    """[P, S, H]."""
    with torch.no_grad():
        return torch.stack(list(unroll(drafter, pack(sequences, steps), embedding, steps)), dim=1)


def test_each_anchor_and_step_equals_sequential_drafting(drafter: Drafter, embedding: Tensor) -> None:
    sequences = [make_states(3, 6, seed=1), make_states(5, 2, seed=2), make_states(1, 9, seed=3)]
    batch = pack(sequences, STEPS)
    got = outputs(drafter, sequences, embedding)
    reference = Reference(drafter.config, dict(drafter.state_dict()), embedding)
    row = 0
    for states in sequences:
        tokens = states.token_ids.tolist()
        first = int(states.loss_mask.long().argmax())
        for anchor in range(first - 1, len(tokens) - 2):
            reachable = len(tokens) - 2 - anchor
            assert batch.step_valid[row].tolist() == [k < reachable for k in range(STEPS)]
            want = reference.draft(tokens, states.aux, anchor, min(STEPS, reachable))
            for step, expected in enumerate(want):
                torch.testing.assert_close(got[row, step], expected, atol=2e-5, rtol=2e-5)
            row += 1
    assert row == len(got)


def test_anchors_start_before_the_first_generated_token_and_end_at_the_last_label() -> None:
    # T=7, prompt x0..x2, generated x3..x6: the worked example of eyas.drafter.batch
    batch = pack([make_states(3, 4)], 2)
    assert batch.anchors.tolist() == [2, 3, 4]
    assert batch.step_valid.tolist() == [[True, True], [True, True], [True, False]]
    assert batch.step_labels.tolist() == [[0, 1], [1, 2], [2, 0]]


def test_a_reply_of_one_token_adds_nothing(embedding: Tensor) -> None:
    drafter = make_drafter()
    alone = outputs(drafter, [make_states(3, 5, seed=4)], embedding)
    beside = outputs(drafter, [make_states(4, 1, seed=5), make_states(3, 5, seed=4)], embedding)
    torch.testing.assert_close(alone, beside)


def test_a_mask_with_a_hole_breaks_chains_there() -> None:
    states = make_states(2, 7)
    kinds = states.kinds.clone()
    kinds[5] = tokenkinds.PROMPT  # generated: 2,3,4 and 6,7,8
    mask = kinds != 0
    labels = torch.nonzero(mask[:-1] & mask[1:]).flatten()
    states = dataclasses.replace(
        states,
        kinds=kinds,
        label_positions=labels.int(),
        last=states.last[: len(labels)],
        argmax=states.argmax[: len(labels)],
    )
    batch = pack([states], 3)
    # anchors p: x[p+1], x[p+2] generated -> 1, 2 and 5, 6; no chain crosses position 5
    assert batch.anchors.tolist() == [1, 2, 5, 6]
    assert batch.step_valid.tolist() == [
        [True, True, False],
        [True, False, False],
        [True, True, False],
        [True, False, False],
    ]


def test_later_tokens_and_features_change_nothing_before_them(embedding: Tensor) -> None:
    drafter = make_drafter()
    states = make_states(3, 8, seed=6)
    before = outputs(drafter, [states], embedding)
    anchor_row, anchor = 2, 4  # anchors are 2, 3, 4, ...
    for step in range(STEPS):
        tokens = states.token_ids.clone()
        tokens[anchor + 1 + step + 1 :] = (tokens[anchor + 1 + step + 1 :] + 7) % 40
        aux = states.aux.clone()
        aux[anchor + 1 :] += 1.0
        changed = dataclasses.replace(states, token_ids=tokens, aux=aux)
        after = outputs(drafter, [changed], embedding)
        torch.testing.assert_close(
            after[anchor_row, : step + 1], before[anchor_row, : step + 1], rtol=0, atol=1e-12
        )


def test_the_token_of_step_k_matters_from_step_k_on_and_not_before(embedding: Tensor) -> None:
    drafter = make_drafter()
    states = make_states(3, 8, seed=7)
    before = outputs(drafter, [states], embedding)
    anchor_row, anchor = 1, 3
    for step in range(1, STEPS):
        tokens = states.token_ids.clone()
        tokens[anchor + 1 + step] = (tokens[anchor + 1 + step] + 7) % 40
        after = outputs(drafter, [dataclasses.replace(states, token_ids=tokens)], embedding)
        assert not torch.allclose(after[anchor_row, step], before[anchor_row, step], atol=1e-6)
        torch.testing.assert_close(after[anchor_row, :step], before[anchor_row, :step], rtol=0, atol=1e-12)


def test_prompt_slots_get_gradients_through_their_keys_only(embedding: Tensor) -> None:
    drafter = make_drafter()
    states = make_states(4, 5, seed=8)
    aux = states.aux.clone().requires_grad_()
    batch = pack([dataclasses.replace(states, aux=aux)], 2)
    torch.stack(list(unroll(drafter, batch, embedding, 2))).sum().backward()
    assert aux.grad is not None
    assert (aux.grad[:3].abs().sum((1, 2)) > 0).all()
    assert (aux.grad[-2:] == 0).all()  # no slot is there
