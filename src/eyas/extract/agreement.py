"""Whether the generated tokens are what the target, as its states show it, would have said.

Greedy tokens must be the argmax. An engine rounds otherwise than we do (other kernels, other batches), so where two
logits lie closer together than rounding, either token is right: a near-tie. Sampled tokens are compared with the
distribution that they were drawn from: see `sampled`.

Letters in shape comments: G generated tokens.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from eyas.errors import GateError
from eyas.extract.predictions import Predictions
from eyas.extract.rules import MIN_VARIANCE, ODD_NATS, ODD_SHARE, Rules
from eyas.extract.tally import SHOWN, Disagreement, Suspect, Tally
from eyas.metrics import share

LARGEST_MARGIN = 1e4
"""Stands for an infinite one, of a token whose logit is -inf: records are JSON, which has no infinity."""


@dataclass
class Agreement:
    """Holds generated tokens against the target, per dataset of a split."""

    rules: Rules
    expected: dict[str, int]
    """Generated tokens of each dataset, known before the run."""
    tallies: dict[str, Tally] = field(default_factory=dict)

    def fresh(self) -> Agreement:
        """An empty one with the same rules, for one shard."""
        return Agreement(self.rules, self.expected)

    def add(
        self, sequence_id: str, dataset: str, before: Tensor, following: Tensor, predicted: Predictions
    ) -> None:
        """Count a sequence.

        Args:
            sequence_id: for messages.
            dataset: a key of `expected`.
            before: int64 [G], positions whose distribution predicts a generated token.
            following: int64 [G], the tokens at those positions + 1.
            predicted: for these positions, on the CPU.
        """
        self._tally(dataset).add(tally_of(self.rules, sequence_id, before, following, predicted))

    def merge(self, other: Agreement) -> None:
        """Add what another one has counted: a shard's or a rank's."""
        for dataset, tally in other.tallies.items():
            self._tally(dataset).add(tally)

    def to_json(self) -> dict[str, Any]:
        """The counts, for the record of a shard."""
        return {dataset: tally.to_json() for dataset, tally in self.tallies.items()}

    def load(self, values: Mapping[str, Any]) -> None:
        """Add the counts of a shard's record.

        Raises:
            KeyError, TypeError: these are no counts.
        """
        for dataset, tally in values.items():
            self._tally(dataset).add(Tally.from_json(tally))

    def check(self) -> None:
        """Stop as soon as no further sequence can make a dataset good.

        Raises:
            GateError: names the dataset, and the sequences or tokens that speak most clearly.
        """
        for dataset, tally in self.tallies.items() if self.rules.checks else ():
            odd = self.odd(dataset)
            if not self.rules.sampling.greedy:
                self._check_sampled(dataset, tally, odd)
            elif 2 * len(odd) >= tally.sequences or not odd:  # else they explain the disagreement
                self._check_greedy(dataset, tally)
            if odd:
                raise _odd_error(dataset, tally, odd)

    def odd(self, dataset: str) -> list[Suspect]:
        """Sequences whose tokens can't come from their states by the limits of this run, the strongest evidence first."""
        suspects = self.tallies.get(dataset, Tally()).suspects
        judged = [(self.rules.evidence(suspect), suspect) for suspect in suspects]
        odd = [(evidence, suspect) for evidence, suspect in judged if evidence > ODD_NATS]
        return [suspect for _, suspect in sorted(odd, key=lambda pair: (-pair[0], pair[1].sequence_id))]

    def report(self, dataset: str) -> dict[str, Any]:
        """Of a dataset, for reports/extraction.json; null where nothing was counted."""
        tally = self.tallies.get(dataset, Tally())
        values: dict[str, Any] = {
            "generated_tokens": tally.checked,
            "agreement": share(tally.checked - tally.disagreed - tally.near_ties, tally.checked),
            "odd_sequences": len(self.odd(dataset)),
        }
        if self.rules.sampling.greedy:
            return values | {"near_ties": tally.near_ties}
        z, excess = tally.z(self.rules.bias), share(tally.excess, tally.checked - tally.outside)
        return values | {
            "sampling_z": None if z is None else round(z, 2),
            "excess_nats": None if excess is None else round(excess, 5),
            "outside_share": share(tally.outside, tally.checked),
        }

    def _tally(self, dataset: str) -> Tally:
        return self.tallies.setdefault(dataset, Tally())

    def _check_greedy(self, dataset: str, tally: Tally) -> None:
        expected, minimum = self.expected[dataset], self.rules.min_agreement
        if expected - tally.disagreed >= minimum * expected:
            return
        raise GateError(
            f"{tally.disagreed} of {tally.checked} generated tokens of {dataset} are not what the target predicts, by a "
            f"margin of {tally.margins / tally.disagreed:.3g} on average; extract.min_agreement {minimum} allows fewer "
            f"({tally.near_ties} more are near-ties, which rounding explains). "
            f"Worst: {'; '.join(map(str, tally.worst))}",
            where=f"dataset {dataset}",
            hint="the answers come from another model, dtype or sampling than target.* and generate.* say, or the states "
            "are wrong. If the server quantises the target, lower extract.min_agreement. If it was the wrong server, "
            f"remove its answers before running again: data/.journal/generate/{dataset}",
        )

    def _check_sampled(self, dataset: str, tally: Tally, odd: list[Suspect]) -> None:
        limit = self.rules.outside_limit(tally.checked)
        if tally.outside > limit:
            raise _other_sampling(
                dataset,
                tally,
                odd,
                f"{tally.outside} of {tally.checked} generated tokens of {dataset} are none that {self.rules.sampling} "
                f"could give; rounding explains {limit:.0f}",
            )
        z, most = tally.z(self.rules.bias), self.rules.max_sampling_z
        if z is not None and abs(z) > most and tally.variance >= MIN_VARIANCE:
            mean = tally.excess / (tally.checked - tally.outside)
            raise _other_sampling(
                dataset,
                tally,
                odd,
                f"the generated tokens of {dataset} are {abs(mean):.3g} nats {'more' if mean > 0 else 'less'} surprising "
                f"than tokens sampled with {self.rules.sampling}: {z:.1f} standard deviations over {tally.checked} "
                f"tokens, extract.max_sampling_z allows {most:g}",
            )


def _other_sampling(dataset: str, tally: Tally, odd: list[Suspect], what: str) -> GateError:
    return GateError(
        f"{what}; {_odd_ones(dataset, tally, odd)}" if odd else what,
        where=f"dataset {dataset}",
        hint="the answers come from another model, dtype or sampling than target.* and generate.* say (a server may add "
        "defaults of its own to what it is not asked: repetition penalty, min_p), or the states are wrong. If it was "
        f"the wrong server, remove its answers before running again: data/.journal/generate/{dataset}",
    )


def _odd_error(dataset: str, tally: Tally, odd: list[Suspect]) -> GateError:
    return GateError(
        _odd_ones(dataset, tally, odd),
        where=f"dataset {dataset}: {odd[0].sequence_id}",
        hint="states of other sequences or positions were computed for them (report the backend), or these answers are "
        "not the target's, or were sampled more freely than generate.* says. Such answers can be removed from "
        f"data/.journal/generate/{dataset}",
    )


def _odd_ones(dataset: str, tally: Tally, odd: list[Suspect]) -> str:
    shown = "; ".join(map(str, odd[:SHOWN]))
    more = f" and {len(odd) - SHOWN} more" if len(odd) > SHOWN else ""
    return (
        f"the tokens of {len(odd)} of {tally.sequences} sequences of {dataset} can't come from their states: "
        f"{shown}{more}"
    )


def tally_of(
    rules: Rules, sequence_id: str, before: Tensor, following: Tensor, predicted: Predictions
) -> Tally:
    """The counts of one sequence; arguments as in Agreement.add."""
    differs = predicted.argmax != following  # [G]
    margin = predicted.margin.clamp_max(LARGEST_MARGIN)
    wrong = differs & (margin > rules.rounding(predicted.logsumexp))
    found = torch.nonzero(wrong).flatten()
    largest = found[margin[found].argsort(descending=True, stable=True)][:SHOWN]
    tally = Tally(
        sequences=1,
        checked=len(before),
        near_ties=int((differs & ~wrong).sum()),
        disagreed=len(found),
        margins=float(margin[found].sum()),
        worst=[
            Disagreement(
                sequence_id=sequence_id,
                position=int(before[at]) + 1,
                token=int(following[at]),
                argmax=int(predicted.argmax[at]),
                margin=float(margin[at]),
            )
            for at in largest.tolist()
        ],
    )
    evidence = None
    if predicted.sampled is not None:
        tally.excess = float(predicted.sampled.excess.double().sum())
        tally.variance = float(predicted.sampled.varentropy.double().sum())
        tally.outside = int(predicted.sampled.outside.sum())
        evidence = float(predicted.sampled.evidence.double().sum())
    if tally.disagreed > ODD_SHARE * tally.checked if evidence is None else evidence > ODD_NATS:
        suspect = Suspect(sequence_id, tally.checked, int(differs.sum()), tally.disagreed, evidence)
        tally.suspects.append(suspect)
    return tally
