"""The one record type that every dialect reads its replies into."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self


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
    """Answer; None unless there is text, so that streaming and non-streaming replies read alike."""
    tool_calls: list[dict[str, Any]] | None
    """Each `{"id", "type", "function": {"name", "arguments"}}`, arguments as text; None unless there are any."""
    finish_reason: str
    stop_reason: int | str | None
    """None when an end-of-turn id ended it, else the stop id or string."""
    usage: Usage
    prompt_token_ids: list[int] | None
    """Null in both if the dialect sends text only."""
    token_ids: list[int] | None
    reasoning_field: str | None
    """Where the reasoning stood: `reasoning`, `reasoning_content`, or `content` between its markers."""
    streamed: bool
    """What a server's parsers do to whitespace depends on it (sgl-project/sglang#24251)."""
    flags: list[str]
    """What reading noticed: names of eyas.answers, in the order of FLAGS."""

    def to_json(self) -> dict[str, Any]:
        return vars(self) | {"usage": vars(self.usage)}  # asdict would copy every id

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Self:
        """The answer that `to_json` was called on."""
        return cls(**{**value, "usage": Usage(**value["usage"])})
