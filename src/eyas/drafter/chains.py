"""Draft chains replayed on stored hidden states: what an engine would have accepted from each anchor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.drafter.batch import pack
from eyas.drafter.chainrows import anchors_of
from eyas.drafter.model import Drafter
from eyas.drafter.unroll import draft_steps
from eyas.drafter.vocab import VocabMap
from eyas.shards import SequenceStates


@dataclass(frozen=True)
class ChainHits:
    """Draft steps of one sequence. P anchors, S steps."""

    anchors: Tensor
    """int64 [P]: slots p with x[p+1] and x[p+2] generated, ascending."""
    hits: Tensor
    """bool [P, S]: the step's most likely token is the target's, and the one that was generated; False past the end."""
    proposals: Tensor
    """int64 [P, S]: the step's most likely token, as target id; -1 past the end. Meaningful up to the first miss."""


@torch.no_grad()
def draft_chain_hits(
    drafter: Drafter, vocab: VocabMap, states: SequenceStates, embedding: Tensor, steps: int
) -> ChainHits:
    """Replay one sequence; see `replay_chains`."""
    return next(iter(replay_chains(drafter, vocab, [states], embedding, steps)))


@torch.no_grad()
def replay_chains(
    drafter: Drafter, vocab: VocabMap, sequences: Sequence[SequenceStates], embedding: Tensor, steps: int
) -> Iterator[ChainHits]:
    """Replay the draft chains of each sequence, together in one batch, in order.

    Exact for greedily generated sequences: until the first miss the tokens fed equal the engine's, and after it
    nothing is accepted. Where a sampled token is not the target's most likely one, every draft ends, since the
    stored states go on with another token than greedy decoding would. `embedding` is the target's, [V, H].
    """
    counts = [len(anchors_of(states.loss_mask)) for states in sequences]
    if not any(counts):
        yield from (_no_anchors(steps) for _ in sequences)
        return
    batch = pack(sequences, steps)
    proposals = torch.stack(
        [
            vocab.to_target(drafter.lm_head(step.normed).argmax(dim=-1))
            for step in draft_steps(drafter, batch, embedding, steps)
        ],
        dim=1,
    )  # [P, S]
    proposals = torch.where(batch.step_valid, proposals, -1)
    greedy = batch.argmax[batch.step_labels] == batch.step_next
    hits = batch.step_valid & greedy & (proposals == batch.step_next)
    split_hits, split_proposals = hits.split(counts), proposals.split(counts)
    for states, own_hits, own_proposals in zip(sequences, split_hits, split_proposals, strict=True):
        yield ChainHits(anchors=anchors_of(states.loss_mask), hits=own_hits, proposals=own_proposals)


def _no_anchors(steps: int) -> ChainHits:
    return ChainHits(
        anchors=torch.empty(0, dtype=torch.int64),
        hits=torch.empty(0, steps, dtype=torch.bool),
        proposals=torch.empty(0, steps, dtype=torch.int64),
    )
