"""Token counts in every shape that servers send."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.generate.record import Usage

_LARGEST = 2**63 - 1


def read_usage(usage: Any) -> Usage:
    """Counts of a `usage` object: null, partial, reasoning tokens in details or at top level.

    A missing count is derived from the other two where it can be, and is else None, never 0.
    """
    if not isinstance(usage, Mapping):
        return Usage(None, None, None)
    prompt = _count(usage.get("prompt_tokens"))
    completion = _count(usage.get("completion_tokens"))
    total = _count(usage.get("total_tokens"))
    if completion is None and prompt is not None:
        completion = _difference(total, prompt)
    elif prompt is None and completion is not None:
        prompt = _difference(total, completion)
    details = usage.get("completion_tokens_details")
    reasoning = _count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else None
    if reasoning is None:
        reasoning = _count(usage.get("reasoning_tokens"))
    return Usage(prompt, completion, reasoning)


def _count(value: Any) -> int | None:
    return value if type(value) is int and 0 <= value <= _LARGEST else None


def _difference(total: int | None, part: int) -> int | None:
    return None if total is None or total < part else total - part
