"""Counts over answers: finish reasons, tokens, reasoning and its lengths. Small, addable, kept as JSON."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

from eyas.metrics import share
from eyas.target.spec import ThinkFormat

_BINS_PER_OCTAVE = 16


@dataclass(frozen=True)
class AnswerFacts:
    """What is counted of one answer. None where it is not known."""

    finish_reason: str
    prompt_tokens: int | None
    generated_tokens: int | None
    reasoned: bool
    """It has text that it thought."""
    reasoning_tokens: int | None
    """Without the markers."""
    flags: tuple[str, ...] = ()
    at: float | None = None
    """When it came, in Unix seconds."""


def answer_facts(answer: Mapping[str, Any], think: ThinkFormat | None, at: float | None) -> AnswerFacts:
    """Facts of an answer as journal entries and raw_responses.jsonl hold it; `answer["usage"]` may be null."""
    usage: Mapping[str, Any] = answer.get("usage") or {}
    prompt_ids, token_ids = answer.get("prompt_token_ids"), answer.get("token_ids")
    finish_reason = str(answer.get("finish_reason"))
    reasoned = bool(answer.get("reasoning"))
    length = None
    if reasoned and token_ids is not None and think is not None:
        length = reasoning_length(token_ids, think, truncated=finish_reason == "length")
    if reasoned and length is None:
        length = usage.get("reasoning_tokens")
    return AnswerFacts(
        finish_reason=finish_reason,
        prompt_tokens=_tokens(usage.get("prompt_tokens"), prompt_ids),
        generated_tokens=_tokens(usage.get("completion_tokens"), token_ids),
        reasoned=reasoned,
        reasoning_tokens=length,
        flags=tuple(answer.get("flags") or ()),
        at=at,
    )


def _tokens(reported: int | None, ids: Sequence[int] | None) -> int | None:
    """Reading a reply has checked that both agree where both are there."""
    return len(ids) if reported is None and ids is not None else reported


def reasoning_length(token_ids: Sequence[int], think: ThinkFormat, *, truncated: bool) -> int | None:
    """Tokens between the markers of a generated turn that thought; None if it has no end and was not cut."""
    start = _find(token_ids, think.start_ids, 0)
    begin = 0 if start is None else start + len(think.start_ids)
    found = [_find(token_ids, ids, begin) for ids in (think.end_ids, *think.implicit_end_ids)]
    ends = [end for end in found if end is not None]
    if ends:
        return min(ends) - begin
    return len(token_ids) - begin if truncated else None


def _find(ids: Sequence[int], part: Sequence[int], begin: int) -> int | None:
    """Where `part` starts in `ids`, at `begin` or later."""
    while part:
        try:
            begin = ids.index(part[0], begin)
        except ValueError:
            return None
        if list(ids[begin : begin + len(part)]) == list(part):
            return begin
        begin += 1
    return None


@dataclass
class Lengths:
    """Distribution of lengths in bins of 4.4 %; lengths below 23 have a bin each."""

    count: int = 0
    total: int = 0
    least: int | None = None
    most: int | None = None
    bins: Counter[int] = field(default_factory=Counter)

    @property
    def mean(self) -> float | None:
        return share(self.total, self.count)

    def add(self, length: int) -> None:
        self.count += 1
        self.total += length
        self.least = length if self.least is None else min(self.least, length)
        self.most = length if self.most is None else max(self.most, length)
        self.bins[math.floor(math.log2(length) * _BINS_PER_OCTAVE) if length else -1] += 1

    def merge(self, other: Lengths) -> None:
        self.count += other.count
        self.total += other.total
        ends = [end for end in (self.least, self.most, other.least, other.most) if end is not None]
        self.least, self.most = min(ends, default=None), max(ends, default=None)
        self.bins.update(other.bins)

    def quantile(self, part: float) -> int | None:
        """The length that a `part` of all do not exceed, within 2.2 % and rounding; None if there are none."""
        if self.least is None or self.most is None:
            return None
        rank, seen = max(1, math.ceil(part * self.count)), 0
        for number in sorted(self.bins):
            seen += self.bins[number]
            if seen >= rank:
                middle = 0 if number < 0 else round(2 ** ((number + 0.5) / _BINS_PER_OCTAVE))
                return min(max(middle, self.least), self.most)
        return self.most

    def to_json(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "total": self.total,
            "least": self.least,
            "most": self.most,
            "bins": {str(number): self.bins[number] for number in sorted(self.bins)},
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        bins = Counter({int(number): count for number, count in value["bins"].items()})
        return cls(value["count"], value["total"], value["least"], value["most"], bins)


@dataclass
class Tally:
    """Sums over answers."""

    answers: int = 0
    prompt_tokens: int = 0
    generated_tokens: int = 0
    uncounted: int = 0
    """Answers whose generated tokens nobody counted."""
    reasoned: int = 0
    reasoning: Lengths = field(default_factory=Lengths)
    """Tokens of reasoning, of the answers where they are known."""
    finish_reasons: Counter[str] = field(default_factory=Counter)
    flags: Counter[str] = field(default_factory=Counter)
    last_at: float | None = None
    """When the last answer came, in Unix seconds."""

    @property
    def truncated_share(self) -> float | None:
        return share(self.finish_reasons["length"], self.answers)

    @property
    def reasoned_share(self) -> float | None:
        return share(self.reasoned, self.answers)

    def add(self, facts: AnswerFacts) -> None:
        self.answers += 1
        self.prompt_tokens += facts.prompt_tokens or 0
        self.generated_tokens += facts.generated_tokens or 0
        self.uncounted += facts.generated_tokens is None
        self.reasoned += facts.reasoned
        if facts.reasoning_tokens is not None:
            self.reasoning.add(facts.reasoning_tokens)
        self.finish_reasons[facts.finish_reason] += 1
        self.flags.update(facts.flags)
        self._came(facts.at)

    def merged(self, other: Tally) -> Tally:
        """The sums over the answers of both."""
        result = Tally.from_json(self.to_json())
        for name in ("answers", "prompt_tokens", "generated_tokens", "uncounted", "reasoned"):
            setattr(result, name, getattr(self, name) + getattr(other, name))
        result.reasoning.merge(other.reasoning)
        result.finish_reasons.update(other.finish_reasons)
        result.flags.update(other.flags)
        result._came(other.last_at)  # noqa: SLF001 - of the same class
        return result

    def to_json(self) -> dict[str, Any]:
        return {
            "answers": self.answers,
            "prompt_tokens": self.prompt_tokens,
            "generated_tokens": self.generated_tokens,
            "uncounted": self.uncounted,
            "reasoned": self.reasoned,
            "reasoning": self.reasoning.to_json(),
            "finish_reasons": dict(sorted(self.finish_reasons.items())),
            "flags": dict(sorted(self.flags.items())),
            "last_at": self.last_at,
        }

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The tally that `to_json` was called on."""
        nested = {
            "reasoning": Lengths.from_json(value["reasoning"]),
            "finish_reasons": Counter(value["finish_reasons"]),
            "flags": Counter(value["flags"]),
        }
        return cls(**{**value, **nested})

    def _came(self, at: float | None) -> None:
        if at is not None:
            self.last_at = at if self.last_at is None else max(self.last_at, at)
