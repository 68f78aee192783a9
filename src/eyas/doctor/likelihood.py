"""How much more likely one explanation is than another.

Numbers of one sequence depend on each other, so sequences are the units: differences are judged by their spread from
sequence to sequence, and counts by a design effect taken from it. Tails are those of Student's t, so that one odd
position does not decide everything.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from eyas.acceptance import AcceptanceCounts
from eyas.referee.simulation import Simulated

DEGREES = 4.0
"""Degrees of freedom of the tails: a position four standard deviations off costs a factor of 60, one of ten 4,000."""
MODEL_ERROR = 0.004
"""Of a conditional rate: rounding in the engine, and tokens accepted behind the end of an answer."""
SAME_ANSWERS = 0.05
"""Share of the binomial variance that is left where engine and simulation count the very same answers."""

WITHOUT_NUMBERS = -1e3
"""Log-likelihood per token of a reading that computes no numbers."""


@dataclass(frozen=True)
class Advantage:
    """How much better one reading predicts than another, over the same sequences."""

    nats: float
    """Mean difference of the log-likelihood per token."""
    t: float
    """Its ratio to its standard error."""
    log_ratio: float
    """Natural logarithm of the likelihood ratio: the difference as it is, against none."""


def advantage(better: NDArray[np.float64], other: NDArray[np.float64]) -> Advantage:
    """Of log-likelihoods by sequence [S] each. The ratio is that of a normal mean with unknown variance.

    log ratio = S / 2 * log(1 + t^2 / (S - 1)), negative where `better` is worse.
    """
    difference = np.nan_to_num(better, nan=WITHOUT_NUMBERS) - np.nan_to_num(other, nan=WITHOUT_NUMBERS)
    count, mean = len(difference), float(difference.mean())
    if count < 2:
        return Advantage(mean, 0.0, 0.0)
    error = float(difference.std(ddof=1)) / count**0.5
    if error == 0:
        return Advantage(mean, 0.0, 0.0)
    t = mean / error
    return Advantage(mean, t, float(np.sign(t)) * count / 2 * float(np.log1p(t * t / (count - 1))))


@dataclass(frozen=True)
class Fit:
    """How well counts of an engine fit a simulation."""

    log_likelihood: float
    deviations: list[float]
    """[K]: of the conditional rate at each position, in standard deviations; engine minus simulation."""

    @property
    def worst(self) -> float:
        """Largest deviation without sign; 0 without positions."""
        return max((abs(each) for each in self.deviations), default=0.0)


def fit(engine: AcceptanceCounts, simulated: Simulated, *, same_answers: bool) -> Fit:
    """Compare conditional rates position by position.

    Args:
        engine: what was counted.
        simulated: what a hypothesis predicts, by sequence.
        same_answers: engine and simulation count the same answers, so that chance has hardly a part in it.
    """
    expected = simulated.total
    reached_there = [engine.drafts, *engine.accepted_at]
    reached_here = [expected.drafts, *expected.accepted_at]
    effects = _design_effects(simulated)
    total, deviations = 0.0, []
    for place in range(min(len(engine.accepted_at), simulated.steps)):
        there = _smoothed(reached_there[place + 1], reached_there[place])
        here = _smoothed(reached_here[place + 1], reached_here[place])
        middle = 0.5 * (there + here)
        chance = middle * (1 - middle) / max(reached_there[place], 1)
        own = middle * (1 - middle) / max(reached_here[place], 1)
        spread = SAME_ANSWERS * chance if same_answers else effects[place] * (chance + own)
        scale = float(np.sqrt(spread + MODEL_ERROR**2 + 1.0 / max(reached_there[place], 1) ** 2))
        z = (there - here) / scale
        total += -0.5 * (DEGREES + 1) * float(np.log1p(z * z / DEGREES)) - float(np.log(scale))
        deviations.append(z)
    return Fit(total, deviations)


def _smoothed(part: float, whole: float) -> float:
    return (part + 0.5) / (whole + 1.0)


def _design_effects(simulated: Simulated) -> list[float]:
    """[K]: variance of a conditional rate over sequences against that of independent rounds, at least 1."""
    counts = simulated.counts.astype(np.float64)
    effects: list[float] = []
    for place in range(simulated.steps):
        whole, part = counts[:, place], counts[:, place + 1]
        total = whole.sum()
        rate = part.sum() / total if total else 0.0
        binomial = rate * (1 - rate) / total if total else 0.0
        clustered = float(((part - rate * whole) ** 2).sum()) / total**2 if total else 0.0
        effects.append(max(1.0, clustered / binomial) if binomial > 0 else 1.0)
    return effects
