"""Draft chains replayed on stored hidden states: what an engine would have accepted from each anchor."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.drafter.batch import pack
from eyas.drafter.chainrows import anchors_of
from eyas.drafter.living import living_steps
from eyas.drafter.model import Drafter
from eyas.drafter.rules import GreedyRule, Rule
from eyas.drafter.vocab import VocabMap
from eyas.shards import SequenceStates

GREEDY_RULE = GreedyRule()


@dataclass(frozen=True)
class DraftChains:
    """Draft steps of one sequence, each after the stored tokens. P anchors, S steps."""

    anchors: Tensor
    """int64 [P]: slots p with x[p+1] and x[p+2] generated, ascending."""
    proposals: Tensor
    """int64 [P, S]: the step's most likely token, as target id; -1 behind a step that can't have been accepted, and past
    the end."""
    follow: Tensor
    """float32 [P, S]: probability that the step was accepted given the stored token, if the steps before it were; 0 or 1
    where the drafter is greedy; 0 where there is no proposal."""
    expected: Tensor
    """float32 [P, S]: the same before the stored token is known."""

    @property
    def hits(self) -> Tensor:
        """bool [P, S], of a greedy drafter: this step and all before it are accepted."""
        return self.follow > 0


@torch.no_grad()
def draft_chain_hits(
    drafter: Drafter, vocab: VocabMap, states: SequenceStates, embedding: Tensor, steps: int
) -> DraftChains:
    """Replay one sequence; see `replay_chains`."""
    return next(iter(replay_chains(drafter, vocab, [states], embedding, steps)))


@torch.no_grad()
def replay_chains(
    drafter: Drafter,
    vocab: VocabMap,
    sequences: Sequence[SequenceStates],
    embedding: Tensor,
    steps: int,
    rule: Rule = GREEDY_RULE,
) -> Iterator[DraftChains]:
    """Replay the draft chains of each sequence, together in one batch, in order.

    Exact for greedily generated sequences: until the first miss the tokens fed equal the engine's, and after it
    nothing is accepted. Exact in distribution for sampled ones with a rule that knows their sampling: see
    `eyas.drafter.rules`. `embedding` is the target's, [V, H].
    """
    counts = [len(anchors_of(states.loss_mask)) for states in sequences]
    if not any(counts):
        yield from (_no_anchors(steps) for _ in sequences)
        return
    batch = pack(sequences, steps)
    anchors = len(batch.anchors)
    device = batch.anchors.device
    proposals = torch.full((anchors, steps), -1, device=device)
    follow, expected = (torch.zeros(anchors, steps, device=device) for _ in range(2))
    for number, step in enumerate(living_steps(drafter, batch, embedding, steps, rule.judge(batch, vocab))):
        proposals[step.rows, number] = step.judged.proposals
        follow[step.rows, number] = step.judged.follow
        expected[step.rows, number] = step.judged.expected
    parts = zip(*(table.split(counts) for table in (proposals, follow, expected)), strict=True)
    for states, (own_proposals, own_follow, own_expected) in zip(sequences, parts, strict=True):
        yield DraftChains(anchors_of(states.loss_mask), own_proposals, own_follow, own_expected)


def _no_anchors(steps: int) -> DraftChains:
    return DraftChains(
        anchors=torch.empty(0, dtype=torch.int64),
        proposals=torch.empty(0, steps, dtype=torch.int64),
        follow=torch.empty(0, steps),
        expected=torch.empty(0, steps),
    )
