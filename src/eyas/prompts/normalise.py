"""From the many shapes of a conversation to one: messages as eyas.turns describes them, ending with a question."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile
from typing import Any

from eyas.prompts.params import PromptsParams
from eyas.prompts.rows import Problem
from eyas.prompts.tools import tool_calls
from eyas.turns import OPEN, Message

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "function_call": "assistant",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
}
"""Role names of public data sets, and what they mean here."""


@dataclass(frozen=True)
class _Item:
    """A message of the source and what its role means."""

    role: str
    message: dict[str, Any]


def normalise(
    value: Any, params: PromptsParams, history: str = "regenerate", *, has_tools: bool = False
) -> list[Message] | Problem:
    """A prompt (string) or a conversation (list of messages) as messages up to its last user or tool turn.

    Text is kept as it is. User turns in a row are joined by an empty line, because most chat templates refuse
    them. With history `regenerate` assistant turns are left out, whatever they hold; with `keep` they stay. What
    cannot be sent to a model as it stands is a Problem, never repaired by guessing.
    """
    items = _items(value)
    if isinstance(items, Problem):
        return items
    keep = history == "keep"
    problem = _structure_problem([item.role for item in items], keep=keep, has_tools=has_tools)
    if problem:
        return problem
    turns = _kept(items) if keep else _regenerated(items)
    if isinstance(turns, Problem):
        return turns
    characters = sum(len(turn.get("content", "")) for turn in turns)
    if characters > params.max_characters:
        return Problem(
            "too_long", f"{characters} characters, `prompts.max_characters` is {params.max_characters}"
        )
    if params.system is not None and turns[0]["role"] != "system":
        return [{"role": "system", "content": params.system}, *turns]
    return turns


def _items(value: Any) -> list[_Item] | Problem:
    """The messages up to the last one that an answer follows or should follow."""
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        return Problem("content_not_text", f"neither a string nor a list of messages but {_kind(value)}")
    items: list[_Item] = []
    for message in value:
        role = _role(message)
        if isinstance(role, Problem):
            return role
        items.append(_Item(role, message))
    if not any(item.role == "user" for item in items):
        return Problem("no_user_turn", f"{len(items)} messages, none of a user")
    while items[-1].role not in ("user", "tool"):
        items.pop()
    return items


def _role(message: Any) -> str | Problem:
    if not isinstance(message, dict):
        return Problem("message_not_a_mapping", f"a message is {_kind(message)}")
    name = message.get("role", message.get("from"))
    if not isinstance(name, str) or name.strip().lower() not in ROLES:
        return Problem("unknown_role", f"role {name!r}")
    return ROLES[name.strip().lower()]


def _structure_problem(roles: Sequence[str], *, keep: bool, has_tools: bool) -> Problem | None:
    if "system" in roles[1:]:
        return Problem("system_not_first", f"a system message at place {roles.index('system', 1) + 1}")
    talk = roles[1:] if roles[0] == "system" else roles
    if talk[0] != "user":
        return Problem("first_turn_not_user", f"the conversation starts with {talk[0]!r}")
    pairs = set(pairwise(talk))
    if ("user", "tool") in pairs:
        return Problem("tool_result_without_call", f"roles {' '.join(talk)}")
    if keep and pairs & {("assistant", "assistant"), ("tool", "user")}:
        return Problem("turns_not_alternating", f"roles {' '.join(talk)}")
    if "tool" in talk and not keep and not has_tools:
        return Problem("tools_missing", "tool turns, but no `tools` that an answer could call")
    return None


def _regenerated(items: Sequence[_Item]) -> list[Message] | Problem:
    """Without assistant turns; an open one where two blocks of tool turns would else be one."""
    turns: list[Message] = []
    before = None
    for item in items:
        if item.role != "assistant":
            turn = _asking(item)
            if isinstance(turn, Problem):
                return turn
            if item.role == before == "user":
                turns[-1]["content"] += f"\n\n{turn['content']}"
            elif before == "assistant" and item.role == turns[-1]["role"] == "tool":
                turns += [dict(OPEN), turn]
            else:
                turns.append(turn)
        before = item.role
    return turns


def _kept(items: Sequence[_Item]) -> list[Message] | Problem:
    """With assistant turns, their reasoning and tool calls as they are."""
    turns: list[Message] = []
    for item in items:
        turn = _given(item.message) if item.role == "assistant" else _asking(item)
        if isinstance(turn, Problem):
            return turn
        if turns and turn["role"] == turns[-1]["role"] == "user":
            turns[-1]["content"] += f"\n\n{turn['content']}"
        else:
            turns.append(turn)
    return _results_problem(turns) or turns


def _results_problem(turns: Sequence[Message]) -> Problem | None:
    """Whether the results behind a given answer are those of its calls."""
    for place, turn in enumerate(turns):
        if turn["role"] == "assistant":
            results = list(takewhile(lambda after: after["role"] == "tool", turns[place + 1 :]))
            calls = [call["id"] for call in turn.get("tool_calls", [])]
            named = [result["tool_call_id"] for result in results if "tool_call_id" in result]
            if len(results) != len(calls) or not set(named) <= set(calls):
                return Problem(
                    "tool_results_differ", f"{len(calls)} tool calls ({calls}), results of {named}"
                )
    return None


def _asking(item: _Item) -> Message | Problem:
    """A system, user or tool turn. Only a tool may return nothing."""
    text = _text(item.message)
    if isinstance(text, Problem):
        return text
    if item.role != "tool":
        if not text.strip():
            return Problem("empty_turn", f"a {item.role} message without text")
        return {"role": item.role, "content": text}
    call = item.message.get("tool_call_id")
    named = {"tool_call_id": call} if isinstance(call, str) else {}
    return {"role": "tool", "content": text, **named}


def _given(message: dict[str, Any]) -> Message | Problem:
    """An assistant turn of the source."""
    calls = tool_calls(message.get("tool_calls") or [])
    if isinstance(calls, Problem):
        return calls
    content = message.get("content", message.get("value"))
    text = "" if content is None and calls else _text(message)
    if isinstance(text, Problem):
        return text
    if not text.strip() and not calls:
        return Problem("empty_turn", "an assistant message without text")
    reasoning = message.get("reasoning") or message.get("reasoning_content")
    if not isinstance(reasoning, str | None):
        return Problem("content_not_text", f"reasoning is {_kind(reasoning)}")
    turn = {"role": "assistant", "content": text, "reasoning": reasoning, "tool_calls": calls}
    return {name: value for name, value in turn.items() if value}


def _text(message: dict[str, Any]) -> str | Problem:
    content = message.get("content", message.get("value"))
    if isinstance(content, list):
        content = _joined_parts(content)
        if isinstance(content, Problem):
            return content
    if not isinstance(content, str):
        return Problem("content_not_text", f"content is {_kind(content)}")
    try:
        content.encode()
    except UnicodeEncodeError:
        return Problem("lone_surrogate", "half of a UTF-16 pair, which no UTF-8 text can hold")
    return content


def _joined_parts(parts: list[Any]) -> str | Problem:
    """The text of a content list that holds nothing but text."""
    texts: list[str] = []
    for part in parts:
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            return Problem("multimodal_unsupported", f"a content part of type {kind!r}")
        if not isinstance(part.get("text"), str):
            return Problem("content_not_text", f"a text part holds {_kind(part.get('text'))}")
        texts.append(part["text"])
    return "\n".join(texts)


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
