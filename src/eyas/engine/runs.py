"""What was measured on all servers of a stage, put together."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add

from eyas.engine.asking import Asking
from eyas.engine.compare import Comparison, compare
from eyas.engine.margin import Margins
from eyas.engine.measure import Measurement
from eyas.engine.questions import Question

Variant = int | None
"""Draft tokens of a server, or None for one without drafter."""


@dataclass(frozen=True)
class Runs:
    """Measurements side by side."""

    asking: Asking
    rounds: Sequence[Mapping[Variant, Measurement]]
    """By round and variant; each round asked other questions, the same of every variant."""
    draft_tokens: int | None
    """The variant that the reports are about; None if no server speculates."""
    external: bool = False
    """Made on servers that were there already."""
    dialect: str = "vllm"
    chain: bool = True
    """Whether a draft is a chain of tokens; only then it can be compared with the simulation."""
    margins: Margins = field(default_factory=dict)
    """Of differences between answers."""

    def side(self, variant: Variant) -> Measurement | None:
        """One variant over all rounds; None if it was not measured."""
        found = [each[variant] for each in self.rounds if variant in each]
        return reduce(add, found) if found else None

    @property
    def without_drafter(self) -> Measurement | None:
        return self.side(None)

    @property
    def with_drafter(self) -> Measurement | None:
        return None if self.draft_tokens is None else self.side(self.draft_tokens)

    @property
    def measured(self) -> list[int]:
        """Draft tokens of all servers with a drafter, ascending."""
        return sorted({variant for each in self.rounds for variant in each if variant is not None})

    @property
    def version(self) -> str | None:
        """Of the server."""
        return next((each.version for found in self.rounds for each in found.values()), None)


def same_answers(without: Measurement | None, with_drafter: Measurement | None) -> Comparison | None:
    """Over all levels; an answer at concurrency 1 is compared with the one at concurrency 1. None without both."""
    if without is None or with_drafter is None:
        return None
    return _sum(
        compare(token_ids(without, level), token_ids(with_drafter, level)) for level in with_drafter.answers
    )


def stored_answers(questions: Iterable[Question], run: Measurement | None) -> Comparison | None:
    """Answers of all levels against the stored ones; None without a measurement."""
    if run is None:
        return None
    stored = {each.sequence_id: each.answer_ids for each in questions}
    return _sum(compare(stored, token_ids(run, level)) for level in run.answers)


def token_ids(run: Measurement, level: int) -> dict[str, list[int]]:
    """Answers at a concurrency, by sequence_id."""
    return {sequence_id: answer.token_ids for sequence_id, answer in run.answers[level].items()}


def _sum(comparisons: Iterable[Comparison]) -> Comparison:
    return reduce(add, comparisons, Comparison(0, 0, []))
