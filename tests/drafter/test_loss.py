from __future__ import annotations

import math

import torch
from torch import Tensor

from eyas.drafter.batch import pack
from eyas.drafter.loss import DraftTargets, score_steps, soft_cross_entropy, total_loss

from .conftest import DRAFT_VOCAB, HIDDEN, VOCAB, make_drafter, make_states, make_vocab
from .reference import Reference


def test_soft_cross_entropy_by_hand() -> None:
    logits = torch.tensor([[0.0, math.log(3.0)]])  # q = 1/4, 3/4
    loss = soft_cross_entropy(logits, torch.tensor([[0.5, 0.5]]))
    assert math.isclose(loss.item(), -(0.5 * math.log(0.25) + 0.5 * math.log(0.75)), rel_tol=1e-6)


def expected_losses(drafter, sequences, embedding, head, vocab, steps, mask_out_of_vocab):
    """Per step: list of (loss, hit) of every trained or counted row, one draft at a time."""
    reference = Reference(drafter.config, dict(drafter.state_dict()), embedding)
    kept = vocab.draft_ids.tolist()
    losses: list[list[float]] = [[] for _ in range(steps)]
    hits = [0] * steps
    for states in sequences:
        tokens = states.token_ids.tolist()
        first = int(states.loss_mask.long().argmax())
        for anchor in range(first - 1, len(tokens) - 2):
            reachable = min(steps, len(tokens) - 2 - anchor)
            for step, output in enumerate(reference.draft(tokens, states.aux, anchor, reachable)):
                label = states.label_positions.tolist().index(anchor + 1 + step)
                target = torch.softmax((head @ states.last[label])[kept], 0)
                draft = torch.log_softmax(reference.logits(output), 0)
                argmax = int(states.argmax[label])
                hits[step] += kept[int(draft.argmax())] == argmax
                if argmax in kept or not mask_out_of_vocab:
                    losses[step].append(float(-(target * draft).sum()))
    return losses, hits


def test_scores_equal_one_draft_at_a_time(drafter, embedding: Tensor) -> None:
    head = torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    vocab = make_vocab()
    sequences = [make_states(3, 7, seed=1), make_states(2, 4, seed=2)]
    batch = pack(sequences, 3)
    targets = DraftTargets.of(batch.last, head[vocab.draft_ids], batch.argmax, vocab)
    assert targets.probabilities.shape == (len(batch.last), DRAFT_VOCAB)
    for mask in (True, False):
        scores = score_steps(drafter, batch, targets, embedding, 3, mask_out_of_vocab=mask)
        losses, hits = expected_losses(drafter, sequences, embedding, head, vocab, 3, mask)
        for step, score in enumerate(scores):
            assert score.rows == len(losses[step])
            assert int(score.hits.sum()) == hits[step]
            assert math.isclose(score.loss.item(), sum(losses[step]), rel_tol=1e-4)
        means = [sum(values) / len(values) * 0.8**step for step, values in enumerate(losses)]
        assert math.isclose(total_loss(scores, 0.8).item(), sum(means), rel_tol=1e-4)


def test_steps_without_trained_rows_give_zero_and_no_nan(embedding: Tensor) -> None:
    drafter = make_drafter()
    vocab = make_vocab()
    batch = pack([make_states(3, 2)], 3)  # one anchor, one step
    head = torch.zeros(VOCAB, HIDDEN, dtype=torch.float64)
    targets = DraftTargets.of(batch.last, head[vocab.draft_ids], batch.argmax, vocab)
    scores = score_steps(drafter, batch, targets, embedding, 3, mask_out_of_vocab=False)
    assert [score.rows for score in scores] == [1, 0, 0]
    loss = total_loss(scores, 1.0)
    loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in drafter.parameters() if p.grad is not None)
