"""Tools that a conversation offers, and calls of them that its given answers make."""

from __future__ import annotations

import json
from typing import Any

from eyas import jsonl
from eyas.errors import InputError
from eyas.hashing import canonical_json
from eyas.prompts.rows import Problem


def tools_text(value: Any) -> str | Problem | None:
    """A row's `tools` as canonical JSON text; None if it has none.

    `value` is a list of {"type": "function", "function": {"name": ..., ...}}, or the JSON text of one.
    """
    if isinstance(value, str) and value.strip():
        try:
            value = jsonl.parse(value.encode(errors="surrogatepass"), "tools")
        except InputError as error:
            return Problem("bad_tools", error.what)
    if not value:
        return None
    if not isinstance(value, list):
        return Problem("bad_tools", f"tools are {type(value).__name__}, not a list")
    for tool in value:
        function = tool.get("function") if isinstance(tool, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return Problem("bad_tools", f"no name of a function in the tool {json.dumps(tool)[:80]}")
        if tool.get("type") != "function":
            return Problem("bad_tools", f"a tool of type {tool.get('type')!r}, not function")
    try:
        return canonical_json(value).decode()
    except UnicodeEncodeError:
        return Problem("lone_surrogate", "half of a UTF-16 pair in the tools")


def tool_calls(value: Any) -> list[dict[str, Any]] | Problem:
    """Calls of a given assistant turn as [{"id", "type", "function": {"name", "arguments"}}], arguments as text."""
    if not isinstance(value, list):
        return Problem("bad_tool_calls", f"tool_calls are {type(value).__name__}, not a list")
    calls: list[dict[str, Any]] = []
    for call in value:
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            return Problem("bad_tool_calls", f"no name of a function in the call {json.dumps(call)[:80]}")
        if not isinstance(call.get("id"), str):
            return Problem("bad_tool_calls", f"the call of {function['name']!r} has no id")
        arguments = function.get("arguments")
        text = arguments if isinstance(arguments, str) else canonical_json(arguments or {}).decode()
        calls.append(
            {
                "id": call["id"],
                "type": "function",
                "function": {"name": function["name"], "arguments": text},
            }
        )
    return calls
