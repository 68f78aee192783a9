"""The acceptance that an engine would count with a reading, on answers that were generated greedily.

A draft counts as accepted up to its first token that is not the target's most likely one. The next draft starts
behind the accepted tokens and the target's own (see `eyas.acceptance`). Exact for greedy answers: accepted tokens
are the stored ones, so the stored states are those of the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eyas.acceptance import AcceptanceCounts
from eyas.referee.drafting import Answered, Drafting
from eyas.referee.reading import Reading
from eyas.referee.tensorfile import Integers

TOKENS_AT_ONCE = 16_384
"""Tokens of sequences that are computed together."""


@dataclass(frozen=True)
class Simulated:
    """Draft rounds of some sequences."""

    steps: int
    """Draft tokens K of each round."""
    counts: Integers
    """[S, K + 1]: for each sequence its rounds, then those of which at least the first 1..K tokens were accepted."""
    hits: list[Integers]
    """For each sequence [P]: leading accepted tokens of a draft from each anchor, whether an engine starts there or
    not."""

    @property
    def total(self) -> AcceptanceCounts:
        """Of all sequences together."""
        return AcceptanceCounts(int(self.counts[:, 0].sum()), self.counts[:, 1:].sum(axis=0).tolist())

    @property
    def length(self) -> float:
        """Acceptance length; 1 where nothing is drafted."""
        return self.total.length or 1.0

    @property
    def by_anchor(self) -> list[float]:
        """[K]: share of all anchors, each counted once, of which the first i+1 tokens would be accepted."""
        leading = np.concatenate(self.hits)
        return [float(np.mean(leading > step)) if len(leading) else 0.0 for step in range(self.steps)]


def simulate(reading: Reading, sequences: Sequence[Answered], steps: int) -> Simulated:
    """Draft from every anchor, then walk through each answer as an engine does."""
    hits: list[Integers] = []
    for group in _groups(sequences):
        hits += leading_hits(reading, group, steps)
    return Simulated(steps, np.array([rounds(each, steps) for each in hits]).reshape(-1, steps + 1), hits)


def leading_hits(reading: Reading, sequences: Sequence[Answered], steps: int) -> list[Integers]:
    """For each sequence [P]: how many leading tokens of a draft from each anchor the target would accept."""
    if not any(len(each.anchors) for each in sequences):
        return [np.empty(0, np.int64) for _ in sequences]
    run = Drafting(reading, sequences)
    lengths = np.array([len(each.token_ids) for each in sequences])
    starts = np.cumsum(lengths) - lengths
    truth = np.concatenate([each.token_ids for each in sequences])
    greedy = np.concatenate([each.greedy for each in sequences])
    counts = [len(each.anchors) for each in sequences]
    leading = np.zeros(sum(counts), np.int64)
    drafting = np.arange(len(leading))
    for step in range(steps):
        proposed = run.proposals()
        label = (
            starts[run.sequence] + run.anchors + 1 + step
        )  # the target's choice after this token is judged
        hit = (proposed == greedy[label]) & (proposed == truth[label + 1])
        leading[drafting[hit]] += 1
        going_on = hit & (run.anchors + 3 + step < lengths[run.sequence])
        if step + 1 == steps or not going_on.any():
            break
        drafting = drafting[going_on]
        run.advance(proposed, going_on)
    return np.split(leading, np.cumsum(counts)[:-1])


def rounds(leading: Integers, steps: int) -> list[int]:
    """[K + 1]: rounds of one answer, then those with at least 1..K accepted tokens.

    Args:
        leading: [P], accepted tokens of a draft from each anchor.
        steps: draft tokens K.
    """
    counts = [0] * (steps + 1)
    place = 0
    while place < len(leading):
        accepted = int(leading[place])
        for reached in range(min(accepted, steps) + 1):
            counts[reached] += 1
        place += accepted + 1
    return counts


def teacher_forced(reading: Reading, sequence: Answered, steps: int) -> list[NDArray[np.float32]]:
    """Draft logits of one sequence, each step fed with the answer's own tokens: per step [R, Vd].

    R are the anchors whose label lies in the answer: one fewer with each step.
    """
    run = Drafting(reading, [sequence])
    logits = [run.logits]
    for step in range(1, steps):
        kept = run.anchors + 2 + step < len(sequence.token_ids)
        if not kept.any():
            break
        fed = np.minimum(run.anchors + 1 + step, len(sequence.token_ids) - 1)
        run.advance(sequence.token_ids[fed], kept)
        logits.append(run.logits)
    return logits


def _groups(sequences: Sequence[Answered]) -> list[list[Answered]]:
    groups: list[list[Answered]] = []
    tokens = TOKENS_AT_ONCE + 1
    for each in sequences:
        if tokens + len(each.token_ids) > TOKENS_AT_ONCE:
            groups.append([])
            tokens = 0
        groups[-1].append(each)
        tokens += len(each.token_ids)
    return groups
