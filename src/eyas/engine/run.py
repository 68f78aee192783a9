"""The two runs of the engine stage: a fresh server without the drafter, then a fresh one with it."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from eyas.engine.client import Endpoint
from eyas.engine.measure import Measurement, measure
from eyas.engine.questions import Level
from eyas.errors import ServerError
from eyas.serving.endpoint import check_model
from eyas.serving.params import ServerParams
from eyas.serving.vllm import LocalVllm

logger = logging.getLogger(__name__)

BENCHMARK_ARGS = ("--no-enable-prefix-caching",)
"""Levels ask the same prompts again: a cached prompt would make the later ones look fast."""


@dataclass(frozen=True)
class Runs:
    """Measurements side by side; None where none was made."""

    without_drafter: Measurement | None
    with_drafter: Measurement | None
    external: bool
    """Made on a server that was there already, one run only."""

    @property
    def version(self) -> str | None:
        """Of the server."""
        run = self.with_drafter or self.without_drafter
        return run.version if run else None


@dataclass(frozen=True)
class Served:
    """What our own servers serve."""

    target: Path
    name: str
    dtype: str
    drafter: Path
    """Exported vLLM checkpoint."""
    draft_tokens: int
    trust_remote_code: bool = False


def run_local(served: Served, levels: Sequence[Level], server: ServerParams) -> Runs:
    """Start vLLM twice, on 127.0.0.1, each time measured when fresh.

    Raises:
        ServerError: a server did not start, died, or served without counting drafts.
    """
    speculative = {
        "method": "eagle3",
        "model": str(served.drafter.resolve()),
        "num_speculative_tokens": served.draft_tokens,
    }
    logger.info("without drafter")
    without = _run(served, levels, server, None, "engine-without")
    logger.info("with drafter, %d draft tokens", served.draft_tokens)
    with_drafter = _run(served, levels, server, speculative, "engine-with")
    if with_drafter.acceptance is None:
        raise ServerError(
            "vLLM served the drafter but counted no drafts", hint="see its log: is speculation on?"
        )
    return Runs(without_drafter=without, with_drafter=with_drafter, external=False)


def run_external(base_url: str, name: str, levels: Sequence[Level], server: ServerParams) -> Runs:
    """Measure a server that is there; whether it speculates shows in its counters.

    Raises:
        ServerError: it can't be reached, serves another model, or a request failed.
    """
    model = check_model(base_url, name)
    result = measure(Endpoint(base_url, name, server), levels, model.version)
    speculates = result.acceptance is not None
    logger.info(
        "an external server was measured as it is, %s drafter; the other side stays empty",
        "with its" if speculates else "without",
    )
    return Runs(
        without_drafter=None if speculates else result,
        with_drafter=result if speculates else None,
        external=True,
    )


def _run(
    served: Served,
    levels: Sequence[Level],
    server: ServerParams,
    speculative: dict[str, Any] | None,
    log_name: str,
) -> Measurement:
    params = replace(server, extra_args=[*BENCHMARK_ARGS, *server.extra_args])
    with LocalVllm(
        served.target,
        served.name,
        served.dtype,
        params,
        log_name,
        speculative,
        trust_remote_code=served.trust_remote_code,
    ) as vllm:
        model = check_model(vllm.base_url, served.name)
        try:
            return measure(Endpoint(vllm.base_url, served.name, server), levels, model.version)
        except ServerError:
            vllm.check_alive()  # a dead server is the better explanation, with its log
            raise
