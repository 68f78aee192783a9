"""Which turns of a conversation are generated, from its messages as data/prompts/X.parquet holds them.

A turn is generated behind every user turn, and behind every block of tool turns, that no given assistant turn
follows. An assistant turn without text and tool calls is no given one: it only marks such a place, where two blocks of
tool turns that belong to different answers would else be one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import polars as pl

Message = dict[str, Any]
"""`role`, and of `content`, `reasoning`, `tool_calls`, `tool_call_id` those that are not null."""

OPEN: Message = {"role": "assistant"}
"""The message that marks a place."""


def questions(messages: Sequence[Message]) -> list[list[Message]]:
    """Messages cut into what each generated turn adds: [[system, user], [user], [tool, tool], ...].

    What stands behind the last generated turn's place is left out.
    """
    parts: list[list[Message]] = []
    part: list[Message] = []
    for message, after in zip(messages, [*messages[1:], None], strict=False):
        if _is_open(message):
            continue
        part.append(message)
        if _asks(message, after):
            parts.append(part)
            part = []
    return parts


def turn_count() -> pl.Expr:
    """How many turns of a row's `messages` are generated: the length of `questions`, for whole columns."""
    role = pl.element().struct.field("role")
    content, calls = (pl.element().struct.field(name) for name in ("content", "tool_calls"))
    given = (role == "assistant") & ((content.fill_null("") != "") | (calls.list.len().fill_null(0) > 0))
    same_block = (role == "tool") & (role.shift(-1) == "tool")
    answered = (given.shift(-1) | same_block).fill_null(value=False)
    asks = role.is_in(["user", "tool"]) & ~answered
    return pl.col("messages").list.eval(asks).list.sum()


def _asks(message: Message, after: Message | None) -> bool:
    if message["role"] not in ("user", "tool"):
        return False
    if after is None or _is_open(after):
        return True
    same_block = message["role"] == after["role"] == "tool"
    return after["role"] != "assistant" and not same_block


def _is_open(message: Mapping[str, Any]) -> bool:
    if message["role"] != "assistant":
        return False
    return not (message.get("content") or message.get("tool_calls"))
