"""How well a reading predicts answers: its log-likelihood of the target's own tokens, fed with them step by step.

A drafter was trained to predict what its target says. Of several ways to read its folder, the one that it was trained
with predicts best, and by far more than the acceptance shows, since every token of every step counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.referee.drafting import Answered, Drafting
from eyas.referee.reading import Reading
from eyas.referee.tensorfile import Floats, Integers

TOKENS_AT_ONCE = 8_192
FIT_EVERY = 4
"""The temperature is fitted on every fourth row: it is one number."""
FIT_ROUNDS = 4


@dataclass(frozen=True)
class Predictions:
    """Sums over the anchors of each sequence, [S, K] each; K draft steps."""

    log_likelihood: NDArray[np.float64]
    """Nats. Logits are scaled by the temperature that fits best, so that over-confidence tells nothing."""
    hits: NDArray[np.float64]
    """Tokens that were predicted best of all."""
    rows: NDArray[np.float64]
    """Tokens that were predicted."""

    @property
    def per_token(self) -> NDArray[np.float64]:
        """[S]: mean over the draft steps of the log-likelihood per token of the average sequence, nats."""
        wide = self.log_likelihood / np.maximum(self.rows.mean(axis=0), 1e-9)
        result: NDArray[np.float64] = wide.mean(axis=1)
        return result

    def first(self, count: int) -> Predictions:
        """Those of the first sequences."""
        return Predictions(self.log_likelihood[:count], self.hits[:count], self.rows[:count])

    @property
    def accuracy(self) -> list[float]:
        """[K]: share of tokens that were predicted best."""
        shares = self.hits.sum(axis=0) / np.maximum(self.rows.sum(axis=0), 1.0)
        return [float(share) for share in shares]


@dataclass(frozen=True)
class _Row:
    """Rows of one draft step."""

    sequence: Integers
    logits: Floats
    label: Integers
    """[R]: as draft ids; -1 outside the draft vocabulary."""


def predictions(reading: Reading, sequences: Sequence[Answered], steps: int) -> Predictions:
    """Predict every token that a draft of `steps` tokens could reach, each step fed with the answer itself.

    A token outside the draft vocabulary counts as guessed among the target's whole vocabulary.
    """
    parts: list[list[_Row]] = [[] for _ in range(steps)]
    for start, group in _groups(sequences):
        for step, row in enumerate(_steps(reading, group, steps)):
            parts[step].append(_Row(row.sequence + start, row.logits, row.label))
    shape = (len(sequences), steps)
    result = Predictions(np.zeros(shape), np.zeros(shape), np.zeros(shape))
    for step, rows in enumerate(parts):
        scale = _best_scale(rows)
        for row in rows:
            known = row.label >= 0
            value = np.full(len(row.label), -np.log(reading.shape.vocab_size))
            value[known] = _log_likelihood(row.logits[known], row.label[known], scale)
            np.add.at(result.log_likelihood[:, step], row.sequence, value)
            np.add.at(result.hits[:, step], row.sequence, known & (row.logits.argmax(axis=-1) == row.label))
            np.add.at(result.rows[:, step], row.sequence, 1.0)
    return result


def _steps(reading: Reading, sequences: Sequence[Answered], steps: int) -> list[_Row]:
    if not any(len(each.anchors) for each in sequences):
        return []
    run = Drafting(reading, sequences)
    lengths = np.array([len(each.token_ids) for each in sequences])
    starts = np.cumsum(lengths) - lengths
    truth = np.concatenate([each.token_ids for each in sequences])
    draft_ids = _draft_ids(reading)
    rows = []
    for step in range(steps):
        if step > 0:
            kept = run.anchors + 2 + step < lengths[run.sequence]
            if not kept.any():
                break
            fed = starts[run.sequence] + run.anchors + 1 + step
            run.advance(truth[np.minimum(fed, len(truth) - 1)], kept)
        label = draft_ids[truth[starts[run.sequence] + run.anchors + 2 + step]]
        rows.append(_Row(run.sequence, run.logits, label))
    return rows


def _draft_ids(reading: Reading) -> Integers:
    """[V]: draft id of each target id, -1 for those that can't be drafted."""
    inverse = np.full(reading.shape.vocab_size, -1)
    inside = (reading.target_ids >= 0) & (reading.target_ids < len(inverse))
    inverse[reading.target_ids[inside]] = np.flatnonzero(inside)
    return inverse


def _best_scale(rows: Sequence[_Row]) -> float:
    """What logits are multiplied with for the highest likelihood: Newton's method, the likelihood is concave in it."""
    picked = [(row.logits[::FIT_EVERY], row.label[::FIT_EVERY]) for row in rows]
    picked = [(logits[label >= 0], label[label >= 0]) for logits, label in picked]
    scale = 1.0
    for _ in range(FIT_ROUNDS if any(len(label) for _, label in picked) else 0):
        slope = curve = 0.0
        for logits, label in picked:
            weights = _softmax(scale * logits)
            mean = (weights * logits).sum(axis=-1)
            slope += float((logits[np.arange(len(label)), label] - mean).sum())
            curve += float(((weights * logits * logits).sum(axis=-1) - mean * mean).sum())
        if not np.isfinite(slope) or curve <= 0:
            return 1.0
        scale = float(np.clip(scale + slope / curve, scale / 3, scale * 3))
    return scale


def _log_likelihood(logits: Floats, label: Integers, scale: float) -> Any:
    scaled = scale * logits
    top = scaled.max(axis=-1, keepdims=True)
    total = np.log(np.exp(scaled - top).sum(axis=-1))
    return scaled[np.arange(len(label)), label] - top[:, 0] - total


def _softmax(logits: Floats) -> Floats:
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    normed: Floats = weights / weights.sum(axis=-1, keepdims=True)
    return normed


def _groups(sequences: Sequence[Answered]) -> list[tuple[int, list[Answered]]]:
    """Sequences that are computed together, with the place of the first."""
    groups: list[tuple[int, list[Answered]]] = []
    tokens = TOKENS_AT_ONCE + 1
    for place, each in enumerate(sequences):
        if tokens + len(each.token_ids) > TOKENS_AT_ONCE:
            groups.append((place, []))
            tokens = 0
        groups[-1][1].append(each)
        tokens += len(each.token_ids)
    return groups
