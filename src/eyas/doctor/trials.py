"""Runs hypotheses: how well each predicts, and what acceptance it would give."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from eyas.doctor.hypothesis import Hypothesis
from eyas.doctor.likelihood import Advantage, advantage
from eyas.doctor.material import Material
from eyas.referee.drafting import Answered
from eyas.referee.prediction import Predictions, predictions
from eyas.referee.simulation import Simulated, simulate

LEVELS = (12, 80, 320)
"""Sequences on which a repair is judged: more of them as long as it neither wins nor loses."""
COSTLY_LEVELS = (8, 24)
"""The same where states have to be recomputed."""
LOST = -2.0
"""The t of a repair that loses."""
MIN_LOG_RATIO = float(np.log(1000))
"""A cause is named from here on: about twenty are looked at, and a sound drafter must be called sound."""
MIN_NATS = 0.002
"""A repair that predicts better by less, per token, is of no account."""

LEARNED = 0.25
"""Share of the first draft tokens that a drafter predicts right which was trained for more than a few steps."""
LARGE = 0.1
"""Nats per token by which a repair of a drafter that has learned less must be better: in weights that are still close
to random, any change may happen to be one for the better."""


@dataclass(frozen=True)
class Trial:
    """A repair that predicts better than the folder as it is."""

    hypothesis: Hypothesis
    predictions: Predictions
    advantage: Advantage

    @property
    def convinces(self) -> bool:
        """Better beyond doubt, and of a drafter of which that means something."""
        learned = bool(self.predictions.accuracy) and self.predictions.accuracy[0] >= LEARNED
        return tells(self.advantage) and (learned or self.advantage.nats >= LARGE)

    def against(self, other: Trial) -> Advantage:
        """Over the sequences that both were judged on."""
        count = min(len(self.predictions.rows), len(other.predictions.rows))
        return advantage(self.predictions.first(count).per_token, other.predictions.first(count).per_token)


def tells(found: Advantage) -> bool:
    """Whether a difference is beyond doubt, and large enough to matter."""
    return found.log_ratio >= MIN_LOG_RATIO and found.nats >= MIN_NATS


class Judge:
    """Compares repairs with the folder as it is."""

    def __init__(self, material: Material, as_is: Hypothesis, skipped: list[str]) -> None:
        self._material, self._plain, self._skipped = material, as_is, skipped
        self._as_is: dict[int, Predictions] = {}

    def as_is(self, count: int) -> Predictions | None:
        """Predictions of the folder as it is, on the first sequences; None if the states can't be had."""
        count = min(count, len(self._material.learned))
        if count not in self._as_is:
            found = self._predict(self._plain, count)
            if found is None:
                return None
            self._as_is[count] = found
        return self._as_is[count]

    @property
    def usual(self) -> Predictions | None:
        """The same on as many sequences as decide most questions."""
        costly = self._plain.layer_ids != self._material.store_ids
        return self.as_is(COSTLY_LEVELS[-1] if costly else LEVELS[1])

    def better(self, hypotheses: Iterable[Hypothesis]) -> list[Trial]:
        """Those that predict better beyond doubt, the best first."""
        tried = [self._try(each) for each in hypotheses]
        found = [each for each in tried if each is not None and each.convinces]
        return sorted(found, key=lambda each: -each.advantage.nats)

    def leaning(self, hypothesis: Hypothesis) -> Trial | None:
        """A repair that something speaks for already, if it predicts better at all."""
        count = COSTLY_LEVELS[-1]
        as_is, other = self.as_is(count), self._predict(hypothesis, count)
        if as_is is None or other is None:
            return None
        found = advantage(other.per_token, as_is.per_token)
        return Trial(hypothesis, other, found) if found.t > 0 else None

    def _try(self, hypothesis: Hypothesis) -> Trial | None:
        stored = self._material.store_ids
        costly = hypothesis.layer_ids != stored or self._plain.layer_ids != stored
        for count in COSTLY_LEVELS if costly else LEVELS:
            as_is, other = self.as_is(count), self._predict(hypothesis, count)
            if as_is is None or other is None:
                self._skipped.append(f"{hypothesis.what}: {self._material.layers.unavailable}")
                return None
            found = advantage(other.per_token, as_is.per_token)
            if found.t < LOST or (count >= len(self._material.learned) and not tells(found)):
                return None
            if tells(found) and count > LEVELS[0]:
                return Trial(hypothesis, other, found)
        return None

    def _predict(self, hypothesis: Hypothesis, count: int) -> Predictions | None:
        states = fed(self._material, self._material.learned[:count], hypothesis)
        return None if states is None else predictions(hypothesis.reading, states, self._material.steps)


def fed(material: Material, answers: Sequence[Answered], hypothesis: Hypothesis) -> list[Answered] | None:
    """Answers with the states that a hypothesis feeds; None if they can't be had."""
    if hypothesis.quantised:
        states = material.layers.of(answers, hypothesis.layer_ids, quantised=True)
    else:
        states = material.states(answers, hypothesis.layer_ids)
    if states is None or not hypothesis.order:
        return states
    return [replace(each, aux=each.aux[:, hypothesis.order]) for each in states]


def simulate_hypothesis(material: Material, hypothesis: Hypothesis) -> Simulated | None:
    """Acceptance on the held-out answers; None if the states can't be had."""
    states = fed(material, material.held_out, hypothesis)
    return None if states is None else simulate(hypothesis.reading, states, material.steps)
