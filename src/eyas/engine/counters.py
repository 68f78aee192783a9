"""Acceptance as the engine itself counts it: vLLM's `vllm:spec_decode_*` counters, before and after."""

from __future__ import annotations

import time
from collections.abc import Mapping

from eyas.acceptance import AcceptanceCounts
from eyas.errors import ServerError
from eyas.serving.endpoint import read_metrics

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED_AT = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%d"}'
RUNNING = "vllm:num_requests_running"
COUNTED = ("vllm:spec_decode_num", "vllm:generation_tokens_total", "vllm:request_success_total")

SETTLE_TIMEOUT_S = 10.0
SETTLE_EVERY_S = 0.2


def acceptance_between(before: Mapping[str, float], after: Mapping[str, float]) -> AcceptanceCounts | None:
    """Drafts and accepted tokens between two readings; None where the server counts none (no speculation)."""
    if DRAFTS not in after:
        return None
    positions = _positions(after)
    return AcceptanceCounts(
        drafts=int(after[DRAFTS] - before.get(DRAFTS, 0.0)),
        accepted_at=[int(after[key] - before.get(key, 0.0)) for key in positions],
    )


def served_draft_tokens(values: Mapping[str, float]) -> int | None:
    """Tokens of a draft of a server with these counters; None if it does not speculate."""
    return len(_positions(values)) if DRAFTS in values else None


def settled_metrics(base_url: str) -> dict[str, float]:
    """A reading of /metrics after the last request has been counted: two equal readings with nothing running.

    Raises:
        ServerError: there is no /metrics, or the server does not come to rest.
    """
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    last: dict[str, float] = {}
    while time.monotonic() < deadline:
        values = read_metrics(base_url)
        counted = {key: value for key, value in values.items() if key.startswith(COUNTED)}
        if counted == last and not values.get(RUNNING):
            return values
        last = counted
        time.sleep(SETTLE_EVERY_S)
    raise ServerError(
        "the server's counters do not come to rest",
        where=base_url,
        hint="acceptance can only be counted while nobody else uses the server",
    )


def _positions(values: Mapping[str, float]) -> list[str]:
    """Counters of accepted tokens, in the order of draft positions."""
    return [key for index in range(len(values)) if (key := ACCEPTED_AT % index) in values]
