"""From a server's reply to one record type, or to the reason why there is none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self

from eyas.answers import FINISH_REASONS
from eyas.generate.failure import RowFailure, content, permanent, transient
from eyas.jsonl import has_surrogates

_REASONING_FIELDS = ("reasoning", "reasoning_content")
"""vLLM >= 0.16 says `reasoning`, vLLM <= 0.11.0 and SGLang `reasoning_content`, those between both."""

_PASSING = (408, 409, 425, 429)


@dataclass(frozen=True)
class Usage:
    """Token counts as the server reports them; None where it does not."""

    prompt_tokens: int | None
    completion_tokens: int | None
    reasoning_tokens: int | None


@dataclass(frozen=True)
class Answer:
    """One finished answer."""

    model: str | None
    reasoning: str | None
    """Thinking; None unless there is text."""
    content: str | None
    tool_calls: list[Any] | None
    finish_reason: str
    stop_reason: int | str | None
    """None when the end-of-turn id ended it, else the stop id or string."""
    usage: Usage
    prompt_token_ids: list[int]
    token_ids: list[int]
    reasoning_field: str | None
    """The name under which reasoning came."""
    surrogates: bool
    """Half characters in the text were replaced by U+FFFD; the ids are exact."""

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The answer that `to_json` was called on."""
        return cls(**{**value, "usage": Usage(**value["usage"])})


def read_answer(reply: Any, max_tokens: int) -> Answer:
    """Read the reply of a chat completion with `return_token_ids` (dialect vllm).

    Raises:
        RowFailure: the reply is an error, is not finished, or contradicts itself.
    """
    if not isinstance(reply, Mapping):
        raise transient("not_an_object", f"the reply is {type(reply).__name__}, not an object")
    _refuse_error(reply)
    choice = _only_choice(reply)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise transient("no_message", "the reply's choice has no message")
    finish_reason = _finish_reason(choice)
    field, reasoning = _reasoning(message)
    if not isinstance(message.get("content"), str | None):
        raise content("content_type", f"the content is {type(message['content']).__name__}, not text")
    answer = Answer(
        model=reply.get("model"),
        reasoning=reasoning,
        content=message.get("content"),
        tool_calls=message.get("tool_calls") or None,
        finish_reason=finish_reason,
        stop_reason=choice.get("stop_reason"),
        usage=read_usage(reply.get("usage")),
        prompt_token_ids=_ids(reply.get("prompt_token_ids"), "prompt_token_ids"),
        token_ids=_ids(choice.get("token_ids"), "token_ids"),
        reasoning_field=field,
        surrogates=has_surrogates(message),
    )
    _check_counts(answer, max_tokens)
    return answer


def read_usage(usage: Any) -> Usage:
    """Token counts in every shape that servers send: null, partial, reasoning tokens at top level or in details."""
    if not isinstance(usage, Mapping):
        return Usage(None, None, None)
    prompt, completion, total = (
        _count(usage.get(key)) for key in ("prompt_tokens", "completion_tokens", "total_tokens")
    )
    if completion is None and total is not None and prompt is not None:
        completion = total - prompt
    details = usage.get("completion_tokens_details")
    reasoning = _count(details.get("reasoning_tokens")) if isinstance(details, Mapping) else None
    return Usage(
        prompt, completion, _count(usage.get("reasoning_tokens")) if reasoning is None else reasoning
    )


def error_failure(error: Any, code: int | None) -> RowFailure:
    """The failure that an error object stands for; its own code wins over `code`, the HTTP status.

    429 and 5xx pass, as does an error without a code; another 4xx stays.
    """
    message = str(error.get("message") if isinstance(error, Mapping) else error)[:500]
    own = error.get("code") if isinstance(error, Mapping) else None
    status = own if isinstance(own, int) and not isinstance(own, bool) else code
    refused = status is not None and 400 <= status < 500 and status not in _PASSING
    if not refused:
        return transient(f"http_{status}" if status else "error_in_reply", message)
    if "context length" in message or "max_model_len" in message:
        return permanent("context_length", message)
    return permanent(f"http_{status}", message)


def _refuse_error(reply: Mapping[str, Any]) -> None:
    """Errors come with status 200 too: {"error": {...}} or {"object": "error", ...}."""
    if reply.get("error"):
        raise error_failure(reply["error"], None)
    if reply.get("object") == "error":
        raise error_failure(reply, None)


def _only_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise transient("no_choice", "the reply does not have exactly one choice")
    return choices[0]


def _finish_reason(choice: Mapping[str, Any]) -> str:
    reason = choice.get("finish_reason")
    if reason in FINISH_REASONS:
        return str(reason)
    if reason is None:
        raise transient("unfinished", "the reply has no finish reason")
    if reason in ("abort", "error"):
        raise transient(str(reason), f"the server ended the answer with finish reason {reason!r}")
    raise content("finish_reason", f"unexpected finish reason {reason!r}")


def _reasoning(message: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Field name and text of the reasoning; a field counts as present only if it has text."""
    found = {name: str(message[name]) for name in _REASONING_FIELDS if message.get(name)}
    if len(set(found.values())) > 1:
        raise content("reasoning_conflict", "`reasoning` and `reasoning_content` hold different texts")
    return next(iter(found.items()), (None, None))


def _ids(ids: Any, name: str) -> list[int]:
    if not isinstance(ids, list) or not all(isinstance(token, int) for token in ids):
        raise content("no_token_ids", f"the reply has no `{name}` although `return_token_ids` was sent")
    return ids


def _check_counts(answer: Answer, max_tokens: int) -> None:
    generated, usage = len(answer.token_ids), answer.usage
    if generated == 0:
        raise transient("empty", "the answer has no tokens")
    if usage.completion_tokens is not None and usage.completion_tokens != generated:
        raise content("token_count", f"{generated} token ids, but usage says {usage.completion_tokens}")
    if usage.prompt_tokens is not None and usage.prompt_tokens != len(answer.prompt_token_ids):
        raise content(
            "token_count", f"{len(answer.prompt_token_ids)} prompt ids, but usage says {usage.prompt_tokens}"
        )
    if answer.finish_reason == "length" and generated < max_tokens:
        raise permanent(
            "context_length",
            f"cut after {generated} tokens, before max_tokens {max_tokens}: the server's context is full",
        )


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None
