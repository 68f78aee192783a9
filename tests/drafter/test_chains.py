from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from eyas.drafter.chains import draft_chain_hits, replay_chains
from eyas.drafter.model import Drafter

from .conftest import VOCAB, make_states, make_vocab
from .reference import Reference

STEPS = 3


def agreeing_states(reference: Reference, kept: list[int]):
    """A greedy sequence whose next tokens often are what a draft of depth 1, 2 or 3 proposes."""
    states = make_states(3, 12, seed=11)
    tokens = states.token_ids.tolist()
    for position in range(4, len(tokens)):
        depth = (1, 1, 2, 3, 0)[position % 5]  # 0: leave the random token
        anchor = position - 1 - depth
        if depth and anchor >= 2:
            output = reference.draft(tokens, states.aux, anchor, depth)[-1]
            tokens[position] = kept[int(reference.logits(output).argmax())]
    ids = torch.tensor(tokens, dtype=torch.int32)
    return dataclasses.replace(states, token_ids=ids, argmax=ids[states.label_positions.long() + 1])


def test_accepted_tokens_equal_an_engine_that_feeds_its_own_proposals(drafter, embedding: Tensor) -> None:
    vocab = make_vocab()
    kept = vocab.draft_ids.tolist()
    reference = Reference(drafter.config, dict(drafter.state_dict()), embedding)
    states = agreeing_states(reference, kept)
    tokens = states.token_ids.tolist()
    chain = draft_chain_hits(drafter, vocab, states, embedding, STEPS)
    assert chain.anchors.tolist() == list(range(2, len(tokens) - 2))
    seen = []
    for row, anchor in enumerate(chain.anchors.tolist()):
        own: list[int] = []
        for step in range(STEPS):
            output = reference.draft(tokens, states.aux, anchor, step + 1, own=own)[-1]
            proposal = kept[int(reference.logits(output).argmax())]
            position = anchor + 2 + step
            if position >= len(tokens) or tokens[position] != proposal:
                break
            own.append(proposal)
        assert int(chain.hits[row].long().cumprod(0).sum()) == len(own)
        assert chain.proposals[row, : len(own)].tolist() == own
        seen.append(len(own))
    assert max(seen) >= 2
    assert min(seen) == 0


def test_batched_replay_equals_single(drafter, embedding: Tensor) -> None:
    vocab = make_vocab()
    sequences = [make_states(3, 6, seed=1), make_states(4, 1, seed=2), make_states(2, 9, seed=3)]
    together = list(replay_chains(drafter, vocab, sequences, embedding, STEPS))
    for states, chain in zip(sequences, together, strict=True):
        alone = draft_chain_hits(drafter, vocab, states, embedding, STEPS)
        assert torch.equal(alone.anchors, chain.anchors)
        assert torch.equal(alone.hits, chain.hits)
        assert torch.equal(alone.proposals, chain.proposals)
    assert len(together[1].anchors) == 0


def test_a_sampled_token_ends_every_draft(drafter: Drafter, embedding: Tensor) -> None:
    """Where the generated token is not the target's argmax, an engine that decodes greedily goes another way."""
    vocab = make_vocab()
    reference = Reference(drafter.config, dict(drafter.state_dict()), embedding)
    states = agreeing_states(reference, vocab.draft_ids.tolist())
    before = draft_chain_hits(drafter, vocab, states, embedding, STEPS)
    assert before.hits.any()
    other = dataclasses.replace(states, argmax=(states.argmax + 1) % VOCAB)
    assert not draft_chain_hits(drafter, vocab, other, embedding, STEPS).hits.any()
