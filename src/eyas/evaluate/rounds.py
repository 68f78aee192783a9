"""The draft rounds of answers, from the acceptance of each draft step: expected numbers, exact for greedy drafts.

A round at position p of an answer drafts k tokens after token p; j of them are accepted and the target adds one, so the
next round is at p + j + 1. Given the answer, step i of a round is accepted with probability `follow[p, i]` if the steps
before it were, so the rounds are a Markov chain over positions, and the expected number of rounds at p is

    w[0] = 1,   w[p + j + 1] += w[p] * P(exactly j accepted at p)

With a greedy drafter these probabilities are 0 and 1, and the chain is one walk. The last step of a product is counted by
its expectation over the token that comes there (`expected`), not by the token that came: its mean is the same and its
variance smaller (Rao-Blackwell), for whether a round takes place at p does not depend on tokens behind p.

Shapes: B answers, P positions at which a draft can start, K draft tokens at most, D rounds.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Answers:
    """Draft steps of several answers, padded with zeros to the longest."""

    starts: Ints
    """[B]: positions at which a draft can start; after the last one comes the answer's last token."""
    follow: Floats
    """[B, P, K]: probability that the step was accepted given the answer, if the steps before it were; 0 past its end."""
    expected: Floats
    """[B, P, K]: the same before the step's token is known."""

    @classmethod
    def of(cls, follow: Sequence[Floats], expected: Sequence[Floats]) -> Answers:
        """Pad tables [own P, K] of each answer."""
        starts = np.array([len(table) for table in follow], dtype=np.int64)
        return cls(starts, _padded(follow, starts), _padded(expected, starts))


@dataclass(frozen=True)
class Rounds:
    """The rounds of several answers with k draft tokens, by answer and position; those that can't happen left out."""

    draft_tokens: int
    answer: Ints
    """[D]: which answer."""
    position: Ints
    """[D]: last known token, in the answer, from 0."""
    weight: Floats
    """[D]: how often this round takes place, 1 with a greedy drafter."""
    reached: Floats
    """[D, k]: probability that all earlier steps were accepted and this one is judged; 0 past the answer's end."""
    followed: Floats
    """[D, k]: probability that this step is accepted too, given the answer."""
    accepted_at: Floats
    """[D, k]: the same before the step's token is known."""
    judged: Ints
    """[D]: steps within the answer."""
    open_end: Floats
    """[D]: probability that all judged steps were accepted and some lie past the end: an engine goes on to judge those."""


def rounds_of(answers: Answers, spare: int = 0) -> list[Rounds]:
    """Rounds with 1..K draft tokens.

    Args:
        answers: of one batch.
        spare: so many last tokens of each answer only judge drafts, as if the answer was cut before them: an engine that
            is asked for so many tokens less counts exactly these rounds, if `spare` is k at least.
    """
    most = answers.follow.shape[2]
    reach = np.ones((*answers.follow.shape[:2], most + 1))
    np.cumprod(answers.follow, axis=2, out=reach[:, :, 1:])  # [B, P, K + 1]: first j steps accepted
    weights = _weights(reach)  # [K, B, P]
    begun = np.arange(reach.shape[1]) < (answers.starts - spare)[:, None]  # [B, P]
    result = []
    for draft_tokens in range(1, most + 1):
        answer, position = np.nonzero(begun & (weights[draft_tokens - 1] > 0))
        own = reach[answer, position, : draft_tokens + 1]  # [D, k + 1]
        left = answers.starts[answer] - position
        judged = np.minimum(left, draft_tokens)
        inside = np.arange(draft_tokens) < judged[:, None]  # [D, k]
        reached = np.where(inside, own[:, :-1], 0.0)
        at_end = own[np.arange(len(own)), judged]
        result.append(
            Rounds(
                draft_tokens=draft_tokens,
                answer=answer,
                position=position,
                weight=weights[draft_tokens - 1, answer, position],
                reached=reached,
                followed=np.where(inside, own[:, 1:], 0.0),
                accepted_at=reached * answers.expected[answer, position, :draft_tokens],
                judged=judged,
                open_end=np.where(judged < draft_tokens, at_end, 0.0),
            )
        )
    return result


def _weights(reach: Floats) -> Floats:
    """Expected rounds at each position, [K, B, P], for each number of draft tokens at once."""
    count, positions, width = reach.shape
    most = width - 1
    stops = np.zeros((most, count, positions, width))  # P(exactly j accepted)
    for draft_tokens in range(1, most + 1):
        own = stops[draft_tokens - 1]
        own[:, :, :draft_tokens] = reach[:, :, :draft_tokens] - reach[:, :, 1 : draft_tokens + 1]
        own[:, :, draft_tokens] = reach[:, :, draft_tokens]
    weights = np.zeros((most, count, positions + width))
    weights[:, :, 0] = 1.0
    for position in range(positions):
        weights[:, :, position + 1 : position + 1 + width] += (
            weights[:, :, position, None] * stops[:, :, position]
        )
    return weights[:, :, :positions]


def _padded(tables: Sequence[Floats], starts: Ints) -> Floats:
    """[B, P, K] from tables [own P, K]."""
    result = np.zeros((len(tables), int(starts.max(initial=0)), tables[0].shape[1]))
    for place, table in enumerate(tables):
        result[place, : len(table)] = table
    return result
