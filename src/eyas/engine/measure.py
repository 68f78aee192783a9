"""One run against one server: every level timed, acceptance counted by dataset at the highest level."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

from eyas.acceptance import AcceptanceCounts
from eyas.engine.client import Answers, Endpoint, ask
from eyas.engine.counters import acceptance_between, settled_metrics
from eyas.engine.questions import Level
from eyas.errors import ServerError

logger = logging.getLogger(__name__)

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Timing:
    """Tokens and seconds of some requests."""

    requests: int
    tokens: int
    seconds: float

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.seconds

    def __add__(self, other: Timing) -> Timing:
        return Timing(
            self.requests + other.requests, self.tokens + other.tokens, self.seconds + other.seconds
        )


@dataclass
class Measurement:
    """What one server answered, how fast, and what it accepted."""

    version: str | None
    """Of the server; None if it does not say."""
    answers: dict[int, dict[str, list[int]]] = field(default_factory=dict)
    """Token ids by concurrency and sequence_id."""
    timings: dict[int, dict[str, Timing]] = field(default_factory=dict)
    """By concurrency and dataset."""
    acceptance: dict[str, AcceptanceCounts] | None = None
    """By dataset, at the highest concurrency; None where the server does not speculate or does not tell."""


def measure(endpoint: Endpoint, levels: Sequence[Level], version: str | None) -> Measurement:
    """Warm up, then run every level, one dataset after another.

    Raises:
        ServerError: a request failed.
    """
    result = Measurement(version=version)
    _warm_up(endpoint, levels[0])
    for level in levels:
        counted = _run_level(endpoint, level, result)
        if level is levels[0]:
            result.acceptance = counted
    return result


def _run_level(endpoint: Endpoint, level: Level, result: Measurement) -> dict[str, AcceptanceCounts] | None:
    counts: dict[str, AcceptanceCounts] = {}
    result.answers[level.concurrency], result.timings[level.concurrency] = {}, {}
    for dataset, questions in level.datasets.items():
        before = _metrics(endpoint)
        answers = ask(endpoint, questions, level.concurrency)
        after = _metrics(endpoint)
        timing = _timing(answers)
        result.answers[level.concurrency].update(answers.token_ids)
        result.timings[level.concurrency][dataset] = timing
        counted = acceptance_between(before, after) if before is not None and after is not None else None
        if counted is not None:
            counts[dataset] = counted
        _log(level.concurrency, dataset, timing, counted)
    return counts if len(counts) == len(level.datasets) else None


def _warm_up(endpoint: Endpoint, level: Level) -> None:
    """A few short answers: the first requests of a fresh server allocate and compile."""
    questions = [question for group in level.datasets.values() for question in group]
    ask(endpoint, questions[: level.concurrency], level.concurrency, max_tokens=WARM_UP_TOKENS)


def _metrics(endpoint: Endpoint) -> dict[str, float] | None:
    try:
        return settled_metrics(endpoint.base_url)
    except ServerError as error:
        logger.warning("acceptance can't be counted: %s", error.what)
        return None


def _timing(answers: Answers) -> Timing:
    return Timing(requests=len(answers.token_ids), tokens=answers.tokens, seconds=answers.seconds)


def _log(concurrency: int, dataset: str, timing: Timing, counted: AcceptanceCounts | None) -> None:
    length = f", acceptance length {counted.length:.3f}" if counted and counted.length else ""
    logger.info(
        "  %s, %d in flight: %d answers, %d tokens, %.1f tokens/s%s",
        dataset,
        concurrency,
        timing.requests,
        timing.tokens,
        timing.tokens_per_s,
        length,
    )
