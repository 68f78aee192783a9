"""Answers, outcomes and journal entries for tests of what is counted and shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from eyas.generate.failure import Kind, RowFailure
from eyas.generate.gate import Outcome
from eyas.generate.record import Answer, Usage
from eyas.generate.request import ChatRequest
from eyas.target.spec import ThinkFormat

THINK = ThinkFormat("test", "<think>", "</think>", [901], [902], prefilled=False)


def answer(
    token_ids: Sequence[int] | None = (11, 12, 2),
    *,
    reasoning: str | None = None,
    finish_reason: str = "stop",
    usage: Usage | None = None,
    content: str | None = "C",
    flags: Sequence[str] = (),
) -> Answer:
    """An answer whose usage agrees with its ids, as reading checks."""
    ids = None if token_ids is None else list(token_ids)
    return Answer(
        model="tiny",
        reasoning=reasoning,
        content=content,
        tool_calls=None,
        finish_reason=finish_reason,
        stop_reason=None,
        usage=usage or Usage(4, None if ids is None else len(ids), None),
        prompt_token_ids=None if ids is None else [5, 6, 7, 8],
        token_ids=ids,
        reasoning_field="reasoning" if reasoning else None,
        streamed=False,
        flags=list(flags),
    )


def outcome(
    given: Answer | None = None,
    failure: RowFailure | None = None,
    *,
    sample_id: str = "a:1",
    url: str | None = None,
) -> Outcome:
    request = ChatRequest(sample_id, 0, sample_id, [{"role": "user", "content": "p"}], None, None)
    return Outcome(request, given, failure, 1.5, 1, url)


def failed(reason: str, kind: Kind = Kind.PERMANENT, sample_id: str = "a:failed") -> Outcome:
    return outcome(None, RowFailure(kind, reason, "why"), sample_id=sample_id)


def journal_entry(key: str, given: Answer, at: float = 1000.0, **changes: Any) -> dict[str, Any]:
    """As `eyas.generate.entry` lays entries out."""
    return {
        "key": key,
        "sample_id": key,
        "turn": 0,
        "answer": given.to_json(),
        "server": {"url": "http://127.0.0.1:1/v1", "version": "1", "max_model_len": 99},
        "seconds": 1.5,
        "attempts": 1,
        "at": at,
        **changes,
    }


def failed_entry(key: str, reason: str, kind: str = "permanent") -> dict[str, Any]:
    error: Mapping[str, Any] = {"kind": kind, "reason": reason, "detail": "why"}
    return {"key": key, "error": error, "sample_id": key, "turn": 0, "at": 1000.0}
