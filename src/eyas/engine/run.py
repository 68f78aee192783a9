"""The runs of the engine stage on servers of our own: fresh ones, in alternating order."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eyas.engine.asking import Asking
from eyas.engine.client import Endpoint
from eyas.engine.margin import Margins, margins_of
from eyas.engine.measure import Measurement, measure
from eyas.engine.questions import Level, Question
from eyas.engine.runs import Runs, Variant, same_answers, stored_answers
from eyas.errors import ServerError
from eyas.serving.drafted import check_drafted_sampling
from eyas.serving.endpoint import check_model
from eyas.serving.params import ServerParams
from eyas.serving.vllm import LocalVllm

logger = logging.getLogger(__name__)

BENCHMARK_ARGS = ("--no-enable-prefix-caching",)
"""Levels ask the same prompts again: a cached prompt would make the later ones look fast."""
DRAFT_ARGS = ("--per-request-spec-decode-metrics", "detailed")
"""How many tokens each draft had accepted, request by request."""


@dataclass(frozen=True)
class Served:
    """What our own servers serve."""

    target: Path
    name: str
    dtype: str
    drafter: Path
    """Exported vLLM checkpoint."""
    draft_tokens: int
    draft_sampling: str = "greedy"
    sweep: Sequence[int] = ()
    """Further numbers of draft tokens."""
    trust_remote_code: bool = False

    @property
    def variants(self) -> list[Variant]:
        return [None, *sorted({self.draft_tokens, *self.sweep})]


def run_local(
    served: Served, rounds: Sequence[Sequence[Level]], server: ServerParams, asking: Asking
) -> Runs:
    """Start vLLM once per round and variant, on 127.0.0.1, each time measured when fresh.

    Args:
        served: target and drafter.
        rounds: what each round asks.
        server: how servers are started.
        asking: how they are asked.

    Raises:
        ServerError: a server did not start, died, served without counting drafts, or could not sample with a drafter.
    """
    if not asking.greedy:
        check_drafted_sampling(server)
    measured: list[dict[Variant, Measurement]] = []
    margins: Margins = {}
    for number, levels in enumerate(rounds):
        found: dict[Variant, Measurement] = {}
        for variant in served.variants if number % 2 == 0 else reversed(served.variants):
            side = "without drafter" if variant is None else f"with drafter, draft tokens: {variant}"
            logger.info("round %d of %d, %s", number + 1, len(rounds), side)
            _run(served, levels, server, asking, variant, found, margins)
        measured.append(found)
    return Runs(asking, measured, served.draft_tokens, margins=margins)


def _run(
    served: Served,
    levels: Sequence[Level],
    server: ServerParams,
    asking: Asking,
    variant: Variant,
    found: dict[Variant, Measurement],
    margins: Margins,
) -> None:
    """Measure one variant; while its server lives, ask it why its answers differ from those that are there."""
    draft_args = () if variant is None else DRAFT_ARGS
    params = replace(server, extra_args=[*BENCHMARK_ARGS, *draft_args, *server.extra_args])
    log_name = "engine-without" if variant is None else f"engine-with-{variant}"
    with LocalVllm(
        served.target,
        served.name,
        served.dtype,
        params,
        log_name,
        None if variant is None else _speculative(served, variant),
        trust_remote_code=served.trust_remote_code,
    ) as vllm:
        model = check_model(vllm.base_url, served.name)
        endpoint = Endpoint(vllm.base_url, served.name, server, asking)
        try:
            result = measure(endpoint, levels, model.version)
            if variant is not None and result.acceptance is None:
                raise ServerError(
                    "vLLM served the drafter but counted no drafts", hint="see its log: is speculation on?"
                )
            found[variant] = result
            margins.update(explained(endpoint, levels, found, variant, margins))
        except ServerError:
            vllm.check_alive()  # a dead server is the better explanation, with its log
            raise


def explained(
    endpoint: Endpoint,
    levels: Sequence[Level],
    found: dict[Variant, Measurement],
    variant: Variant,
    known: Margins,
) -> Margins:
    """Margins of the differences between this variant's answers and all others that are there; sampled ones have none."""
    if not endpoint.asking.greedy:
        return {}
    questions = questions_of(levels)
    comparisons = [stored_answers(questions.values(), found[variant])]
    if variant is None:
        comparisons += [same_answers(found[None], each) for key, each in found.items() if key is not None]
    else:
        comparisons.append(same_answers(found.get(None), found[variant]))
    differences = [each for group in comparisons if group is not None for each in group.differences]
    return margins_of(endpoint, questions, [each for each in dict.fromkeys(differences) if each not in known])


def questions_of(levels: Sequence[Level]) -> dict[str, Question]:
    """All questions of the levels by sequence_id."""
    return {each.sequence_id: each for level in levels for group in level.datasets.values() for each in group}


def _speculative(served: Served, draft_tokens: int) -> dict[str, Any]:
    return {
        "method": "eagle3",
        "model": str(served.drafter.resolve()),
        "num_speculative_tokens": draft_tokens,
        "draft_sample_method": served.draft_sampling,
    }
