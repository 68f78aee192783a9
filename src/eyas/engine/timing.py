"""Tokens per second, time to the first token, and time per token after it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from eyas.engine.client import Answers


@dataclass(frozen=True)
class Timing:
    """Tokens and seconds of some requests, as the client measured them."""

    requests: int
    tokens: int
    seconds: float
    """From the first request to the last answer; over several lists of requests their sum."""
    first_token_s: list[float] = field(default_factory=list)
    """One per request: from the request to its first token."""
    token_s: list[float] = field(default_factory=list)
    """One per request of at least two tokens: its mean time per token after the first one."""

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            self.requests + other.requests,
            self.tokens + other.tokens,
            self.seconds + other.seconds,
            [*self.first_token_s, *other.first_token_s],
            [*self.token_s, *other.token_s],
        )

    def report(self) -> dict[str, Any]:
        """As it stands in reports/speed.json."""
        return {
            "requests": self.requests,
            "tokens": self.tokens,
            "seconds": self.seconds,
            "tokens_per_s": self.tokens_per_s,
            "time_to_first_token_s": _quantiles(self.first_token_s),
            "time_per_token_s": _quantiles(self.token_s),
        }


def timing_of(answers: Answers) -> Timing:
    """Of all answers to a list of questions."""
    each = answers.by_id.values()
    return Timing(
        requests=len(each),
        tokens=answers.tokens,
        seconds=answers.seconds,
        first_token_s=[answer.first_token_s for answer in each],
        token_s=[answer.token_s for answer in each if answer.token_s is not None],
    )


def _quantiles(values: Sequence[float]) -> dict[str, float | None]:
    """Median and 90th percentile, interpolated; None without values."""
    if not values:
        return {"p50": None, "p90": None}
    middle, high = np.quantile(values, (0.5, 0.9)).tolist()
    return {"p50": middle, "p90": high}
