"""Whether a head that equals the target's was in place when the drafter was trained.

Training with a frozen head moves everything before it until the head suits. So the last weights before the head, those
of the final norm, are at rest: moving them against their gradient, found on half of the sequences, gains nothing on
the other half. Behind a head that was put there later they are not.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eyas.doctor.likelihood import Advantage, advantage
from eyas.referee.drafting import Answered, Drafting
from eyas.referee.reading import Reading
from eyas.referee.tensorfile import Floats, Integers

ROUNDS = 6
STRIDES = tuple(0.02 * 2.0**power for power in range(8))
"""Tried lengths of a move: the root mean square of the change of weights."""


@dataclass(frozen=True)
class _Rows:
    final: Floats
    """[R, H]: what the head reads."""
    label: Integers
    """[R]: draft ids."""
    sequence: Integers
    """[R]"""


def unrest(reading: Reading, answers: list[Answered]) -> Advantage:
    """How much better the first draft token is predicted after the final norm's weights were moved."""
    learn, judge = answers[::2], answers[1::2]
    head = np.asarray(reading.head[:])
    rows = _rows(reading, learn)
    scale = np.ones(head.shape[1], np.float32)
    for _ in range(ROUNDS):
        logits = (rows.final * scale) @ head.T
        gradient = _gradient(rows, logits, head)
        direction = -gradient / max(float(np.sqrt(np.mean(gradient**2))), 1e-12)
        along = (rows.final * direction.astype(np.float32)) @ head.T
        gains = [_likelihood(logits + stride * along, rows.label).mean() for stride in (0.0, *STRIDES)]
        best = int(np.argmax(gains))
        if best == 0:
            break
        scale = (scale + STRIDES[best - 1] * direction).astype(np.float32)
    held = _rows(reading, judge)
    before = _likelihood(held.final @ head.T, held.label)
    after = _likelihood((held.final * scale) @ head.T, held.label)
    return advantage(_by_sequence(after, held, len(judge)), _by_sequence(before, held, len(judge)))


def _rows(reading: Reading, answers: list[Answered]) -> _Rows:
    run = Drafting(reading, answers)
    inverse = np.full(reading.shape.vocab_size, -1)
    inverse[reading.target_ids] = np.arange(len(reading.target_ids))
    truth = np.concatenate([each.token_ids for each in answers])
    lengths = np.array([len(each.token_ids) for each in answers])
    label = inverse[truth[(np.cumsum(lengths) - lengths)[run.sequence] + run.anchors + 2]]
    known = label >= 0
    return _Rows(run.final[known], label[known], run.sequence[known])


def _gradient(rows: _Rows, logits: Floats, head: Floats) -> NDArray[np.float64]:
    """Of the mean negative log-likelihood by the weights, [H]."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    pull = weights @ head - head[rows.label]
    result: NDArray[np.float64] = (rows.final * pull).mean(axis=0, dtype=np.float64)
    return result


def _likelihood(logits: Floats, label: Integers) -> NDArray[np.float64]:
    """[R]: log-likelihood of each label."""
    top = logits.max(axis=-1, keepdims=True)
    total = np.log(np.exp(logits - top).sum(axis=-1))
    result: NDArray[np.float64] = (logits[np.arange(len(label)), label] - top[:, 0] - total).astype(
        np.float64
    )
    return result


def _by_sequence(values: NDArray[np.float64], rows: _Rows, sequences: int) -> NDArray[np.float64]:
    """[S]: sums by sequence, per token of the average one."""
    sums = np.bincount(rows.sequence, values, sequences)
    result: NDArray[np.float64] = sums / max(len(values) / sequences, 1e-9)
    return result
