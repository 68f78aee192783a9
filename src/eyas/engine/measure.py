"""One run against one server: every level timed, acceptance counted by dataset at the highest level."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import add
from typing import TypeVar

from eyas.acceptance import AcceptanceCounts
from eyas.engine.answer import Answer, counted
from eyas.engine.client import Answers, Endpoint, ask
from eyas.engine.counters import acceptance_between, settled_metrics
from eyas.engine.questions import Level
from eyas.engine.timing import Timing, timing_of
from eyas.errors import ServerError

logger = logging.getLogger(__name__)

Item = TypeVar("Item", Timing, AcceptanceCounts)

WARM_UP_TOKENS = 8


@dataclass
class Measurement:
    """What one server answered, how fast, and what it accepted."""

    version: str | None
    """Of the server; None if it does not say."""
    answers: dict[int, dict[str, Answer]] = field(default_factory=dict)
    """By concurrency and sequence_id."""
    timings: dict[int, dict[str, Timing]] = field(default_factory=dict)
    """By concurrency and dataset."""
    acceptance: dict[str, AcceptanceCounts] | None = None
    """By dataset, at the highest concurrency, drafted tokens behind the answers' ends included; None where the server
    does not speculate or does not tell."""

    def __add__(self, other: Measurement) -> Measurement:
        """Both together, of servers that were started in the same way and asked different questions."""
        both = self.acceptance is not None and other.acceptance is not None
        return Measurement(
            version=self.version,
            answers={
                level: self.answers.get(level, {}) | other.answers.get(level, {})
                for level in {**self.answers, **other.answers}
            },
            timings=_joined(self.timings, other.timings),
            acceptance=_summed(self.acceptance or {}, other.acceptance or {}) if both else None,
        )


def measure(
    endpoint: Endpoint, levels: Sequence[Level], version: str | None, draft_tokens: int | None = None
) -> Measurement:
    """Warm up, then run every level, one dataset after another.

    Args:
        endpoint: the server.
        levels: what is asked, the highest concurrency first.
        version: of the server.
        draft_tokens: of a server whose drafts are counted from its answers because it has no counters.

    Raises:
        ServerError: a request failed.
    """
    result = Measurement(version=version)
    _warm_up(endpoint, levels[0])
    for level in levels:
        counts = _run_level(endpoint, level, result, draft_tokens)
        if level is levels[0]:
            result.acceptance = counts
    return result


def _run_level(
    endpoint: Endpoint, level: Level, result: Measurement, draft_tokens: int | None
) -> dict[str, AcceptanceCounts] | None:
    counts: dict[str, AcceptanceCounts] = {}
    result.answers[level.concurrency], result.timings[level.concurrency] = {}, {}
    if endpoint.cache_salt is not None:
        endpoint = replace(endpoint, cache_salt=f"{endpoint.cache_salt}-{level.concurrency}")
    for dataset, questions in level.datasets.items():
        before = _metrics(endpoint)
        answers = ask(endpoint, questions, level.concurrency)
        after = _metrics(endpoint)
        timing = timing_of(answers)
        result.answers[level.concurrency].update(answers.by_id)
        result.timings[level.concurrency][dataset] = timing
        if before is not None and after is not None:
            found = acceptance_between(before, after)
        else:
            found = _from_answers(answers, draft_tokens)
        if found is not None:
            counts[dataset] = found
        _log(level.concurrency, dataset, timing, found)
    return counts if len(counts) == len(level.datasets) else None


def _warm_up(endpoint: Endpoint, level: Level) -> None:
    """A few short answers: the first requests of a fresh server allocate and compile."""
    questions = [question for group in level.datasets.values() for question in group]
    ask(endpoint, questions[: level.concurrency], level.concurrency, max_tokens=WARM_UP_TOKENS)


def _metrics(endpoint: Endpoint) -> dict[str, float] | None:
    if endpoint.dialect != "vllm":
        return None
    try:
        return settled_metrics(endpoint.base_url)
    except ServerError as error:
        logger.warning("acceptance can't be counted: %s", error.what)
        return None


def _from_answers(answers: Answers, draft_tokens: int | None) -> AcceptanceCounts | None:
    """Sum of what the answers say; None if one says nothing."""
    if draft_tokens is None:
        return None
    each = list(answers.by_id.values())
    known = [found for answer in each if (found := counted(answer, draft_tokens)) is not None]
    if each and len(known) == len(each):
        return reduce(add, known)
    return None


def _joined(
    first: dict[int, dict[str, Item]], second: dict[int, dict[str, Item]]
) -> dict[int, dict[str, Item]]:
    """By level and name; what both have is added up."""
    return {level: _summed(first.get(level, {}), second.get(level, {})) for level in {**first, **second}}


def _summed(first: dict[str, Item], second: dict[str, Item]) -> dict[str, Item]:
    both = {name: first[name] + second[name] for name in first if name in second}
    return {**first, **second, **both}


def _log(concurrency: int, dataset: str, timing: Timing, found: AcceptanceCounts | None) -> None:
    length = f", acceptance length {found.length:.3f}" if found and found.length else ""
    logger.info(
        "  %s, %d in flight: %d answers, %d tokens, %.1f tokens/s%s",
        dataset,
        concurrency,
        timing.requests,
        timing.tokens,
        timing.tokens_per_s,
        length,
    )
