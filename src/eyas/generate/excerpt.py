"""One reply in a few readable lines, for the errors of the gates."""

from __future__ import annotations

from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest

_HEAD, _TAIL = 70, 40


def place(request: ChatRequest) -> str:
    """Where a row stands: its sample id, and the turn of a conversation behind the first."""
    return request.sample_id if request.turn == 0 else f"{request.sample_id} (turn {request.turn})"


def excerpt(answer: Answer) -> str:
    """Texts with invisible characters shown, how it ended, and its size in tokens."""
    field = answer.reasoning_field or "reasoning"
    reasoning = f"`{field}` {shown(answer.reasoning)}"
    if field == "content":
        reasoning = f"thinking {shown(answer.reasoning)}, divided off `content`"
    lines = [reasoning, f"`content` {shown(answer.content)}"]
    if answer.tool_calls:
        lines.append(f"{len(answer.tool_calls)} tool calls")
    lines.append(f"finish_reason {answer.finish_reason}, {_size(answer)}")
    return "\n".join(f"    | {line}" for line in lines)


def shown(text: str | None) -> str:
    """A text in quotes with escapes, its middle left out if it is long."""
    if text is None:
        return "null"
    if len(text) <= _HEAD + _TAIL:
        return repr(text)
    return f"{text[:_HEAD]!r} ... {text[-_TAIL:]!r} ({len(text):,} characters)"


def _size(answer: Answer) -> str:
    if answer.token_ids is not None:
        return f"{len(answer.token_ids)} tokens"
    completion = answer.usage.completion_tokens
    return "unknown number of tokens" if completion is None else f"{completion} tokens"
