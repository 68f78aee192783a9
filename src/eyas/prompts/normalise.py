"""From the many shapes of a conversation to one: messages of role and content, ending with a user turn."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from eyas.prompts.params import PromptsParams
from eyas.prompts.rows import Problem

Message = dict[str, str]

ROLES = {
    "system": "system",
    "user": "user",
    "human": "user",
    "assistant": "assistant",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "tool": "tool",
    "function": "tool",
    "function_call": "tool",
    "observation": "tool",
}
"""Role names of public data sets, and what they mean here."""


def normalise(value: Any, params: PromptsParams) -> list[Message] | Problem:
    """A prompt (string) or a conversation (list of messages) as messages up to its last user turn.

    Text is kept as it is. User turns in a row are joined by an empty line, because most chat templates refuse
    them. What cannot be sent to a model as it stands is a Problem, never repaired by guessing.
    """
    turns = _turns(value)
    if isinstance(turns, Problem):
        return turns
    problem = _structure_problem(turns)
    if problem:
        return problem
    characters = sum(len(turn["content"]) for turn in turns)
    if characters > params.max_characters:
        return Problem(
            "too_long", f"{characters} characters, `prompts.max_characters` is {params.max_characters}"
        )
    if params.system is not None and turns[0]["role"] != "system":
        return [{"role": "system", "content": params.system}, *turns]
    return turns


def _turns(value: Any) -> list[Message] | Problem:
    if isinstance(value, str):
        value = [{"role": "user", "content": value}]
    if not isinstance(value, list):
        return Problem("content_not_text", f"neither a string nor a list of messages but {_kind(value)}")
    roles: list[str] = []
    for item in value:
        role = _role(item)
        if isinstance(role, Problem):
            return role
        roles.append(role)
    if "user" not in roles:
        return Problem("no_user_turn", f"{len(roles)} messages, none of a user")
    last_user = len(roles) - 1 - roles[::-1].index("user")
    turns: list[Message] = []
    for role, item in zip(roles[: last_user + 1], value, strict=False):
        content = _content(item)
        if isinstance(content, Problem):
            return content
        if role == "user" and turns and turns[-1]["role"] == "user":
            turns[-1]["content"] += f"\n\n{content}"
        else:
            turns.append({"role": role, "content": content})
    return turns


def _role(item: Any) -> str | Problem:
    if not isinstance(item, dict):
        return Problem("message_not_a_mapping", f"a message is {_kind(item)}")
    name = item.get("role", item.get("from"))
    if not isinstance(name, str) or name.strip().lower() not in ROLES:
        return Problem("unknown_role", f"role {name!r}")
    return ROLES[name.strip().lower()]


def _content(item: dict[str, Any]) -> str | Problem:
    if item.get("tool_calls"):
        return Problem("tools_unsupported", "a message with tool_calls")
    content = item.get("content", item.get("value"))
    if isinstance(content, list):
        content = _joined_parts(content)
        if isinstance(content, Problem):
            return content
    if not isinstance(content, str):
        return Problem("content_not_text", f"content is {_kind(content)}")
    if not content.strip():
        return Problem("empty_turn", "a message without text before the last user turn ends")
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


def _structure_problem(turns: list[Message]) -> Problem | None:
    roles = [turn["role"] for turn in turns]
    if "tool" in roles:
        return Problem("tools_unsupported", "a tool message before the last user turn")
    if "system" in roles[1:]:
        return Problem("system_not_first", f"a system message at place {roles.index('system', 1) + 1}")
    talk = roles[1:] if roles[0] == "system" else roles
    if talk[0] != "user":
        return Problem("first_turn_not_user", f"the conversation starts with {talk[0]!r}")
    if any(left == right for left, right in pairwise(talk)):
        return Problem("turns_not_alternating", f"roles {' '.join(talk)}")
    return None


def _kind(value: Any) -> str:
    return "null" if value is None else type(value).__name__
