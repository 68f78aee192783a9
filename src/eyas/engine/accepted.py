"""Acceptance of one variant: what the engine counted, what of it lies in the answers, and its sampling error."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add
from typing import Any

from eyas.acceptance import AcceptanceCounts
from eyas.engine.answer import Answer, within
from eyas.engine.measure import Measurement
from eyas.metrics import share


@dataclass(frozen=True)
class Accepted:
    """Of the answers to some questions."""

    counted: AcceptanceCounts | None
    """The engine's counters; drafted tokens that it accepted behind the end of an answer are in them."""
    in_answers: AcceptanceCounts | None
    """The same without those, as a simulation counts; None where the engine does not tell it draft by draft."""
    tokens_per_draft: float | None
    """Tokens that one draft adds to an answer, its end included; None where drafts are not counted."""
    errors: StandardErrors | None
    """Of `in_answers`, over other answers of the same kind."""

    @property
    def best(self) -> AcceptanceCounts | None:
        """What can be compared with a simulation most closely."""
        return self.in_answers or self.counted

    def report(self, draft_tokens: int) -> dict[str, Any]:
        """As it stands in reports/engine.json; nulls for what is not known."""
        return {
            **counts_report(self.counted, draft_tokens),
            "in_answers": None if self.in_answers is None else counts_report(self.in_answers, draft_tokens),
            "tokens_per_draft": self.tokens_per_draft,
            "standard_error": None if self.errors is None else self.errors.report(),
        }


@dataclass(frozen=True)
class StandardErrors:
    """Standard errors of rates, answers being drawn independently of each other."""

    length: float
    rates: list[float]
    """[K]."""

    def report(self) -> dict[str, float]:
        return {"length": self.length} | {
            f"at_{place}": rate for place, rate in enumerate(self.rates, start=1)
        }


def accepted(run: Measurement, level: int, names: Sequence[str], datasets: Mapping[str, str]) -> Accepted:
    """Acceptance over some datasets.

    Args:
        run: of a server with drafter.
        level: the concurrency at which acceptance was counted.
        names: datasets.
        datasets: of each sequence_id.
    """
    counters = run.acceptance
    known = None if counters is None else [counters[name] for name in names if name in counters]
    counted = reduce(add, known) if known else None
    answers = [each for key, each in run.answers.get(level, {}).items() if datasets[key] in names]
    parts = [] if counted is None else [within(each, len(counted.accepted_at)) for each in answers]
    told = [each for each in parts if each is not None]
    complete = bool(told) and len(told) == len(parts)
    return Accepted(
        counted=counted,
        in_answers=reduce(add, told) if complete else None,
        tokens_per_draft=_tokens_per_draft(answers, counted),
        errors=standard_errors(told) if complete else None,
    )


def standard_errors(parts: Sequence[AcceptanceCounts]) -> StandardErrors | None:
    """Of the rates of a sum of counts, one part per answer: drafts of one answer are not independent of each other.

    Linearised ratio estimator. None for fewer than two parts or without drafts.
    """
    drafts = sum(part.drafts for part in parts)
    if len(parts) < 2 or not drafts:
        return None
    columns = zip(*(part.accepted_at for part in parts), strict=True)
    per_part = [part.drafts for part in parts]
    return StandardErrors(
        length=_ratio_error([part.accepted for part in parts], per_part),
        rates=[_ratio_error(column, per_part) for column in columns],
    )


def counts_report(counts: AcceptanceCounts | None, draft_tokens: int) -> dict[str, Any]:
    """Counts and rates; nulls where nothing was counted."""
    if counts is None:
        nothing = AcceptanceCounts(drafts=0, accepted_at=[0] * draft_tokens).report()
        return {**nothing, "drafts": None, "accepted": None, "accepted_at": None}
    return {**counts.report(), "accepted_at": counts.accepted_at}


def _ratio_error(numerators: Sequence[float], denominators: Sequence[float]) -> float:
    total, count = sum(denominators), len(denominators)
    ratio = sum(numerators) / total
    residuals = (top - ratio * bottom for top, bottom in zip(numerators, denominators, strict=True))
    return math.sqrt(sum(each**2 for each in residuals) * count / (count - 1)) / total


def _tokens_per_draft(answers: Sequence[Answer], counted: AcceptanceCounts | None) -> float | None:
    """The first token of an answer comes from the prompt and from no draft."""
    tokens = sum(len(each.token_ids) - 1 for each in answers)
    drafts = counted.drafts if counted else sum(each.drafts or 0 for each in answers)
    return share(tokens, drafts)
