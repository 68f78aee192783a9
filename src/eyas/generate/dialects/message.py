"""The parts of one chat message: text, reasoning under its several names, tool calls."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas import jsonl
from eyas.answers import REASONING_CONFLICT
from eyas.generate.dialects.calls import read_tool_calls
from eyas.generate.dialects.text import join_surrogates
from eyas.generate.failure import content

REASONING_FIELDS = ("reasoning", "reasoning_content")
"""vLLM >= 0.16 says `reasoning`, vLLM <= 0.11.0 and SGLang `reasoning_content`, those between both."""


@dataclass(frozen=True)
class Message:
    """What a server says, before thinking that it left in the content is divided off."""

    content: str | None
    reasoning: str | None
    reasoning_field: str | None
    tool_calls: list[dict[str, Any]] | None
    surrogates: bool
    """Half characters were replaced."""


def read_message(message: Mapping[str, Any]) -> Message:
    """Read the message of a choice. A text is present only if it is not empty.

    Raises:
        RowFailure: a text is not text, the tool calls are unreadable, or the two reasonings differ.
    """
    texts = {name: _text(message, name) for name in ("content", *REASONING_FIELDS)}
    found = {name: texts[name] for name in REASONING_FIELDS if texts[name] is not None}
    if len(set(found.values())) > 1:
        raise content(REASONING_CONFLICT, "`reasoning` and `reasoning_content` hold different texts")
    field, reasoning = next(iter(found.items()), (None, None))
    calls = read_tool_calls(message.get("tool_calls"))
    surrogates = jsonl.has_surrogates([texts, calls])
    return Message(
        content=_whole(texts["content"]),
        reasoning=_whole(reasoning),
        reasoning_field=field,
        tool_calls=json.loads(jsonl.encode(calls)) if surrogates else calls,
        surrogates=surrogates,
    )


def _text(message: Mapping[str, Any], name: str) -> str | None:
    value = message.get(name)
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise content("content_type", f"`{name}` is {type(value).__name__}, not text")
    return join_surrogates(value)


def _whole(text: str | None) -> str | None:
    return None if text is None else jsonl.replace_surrogates(text)
