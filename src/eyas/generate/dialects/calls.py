"""Tool calls, whole or in the pieces of a stream, in one form."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from eyas.generate.dialects.text import join_surrogates
from eyas.generate.failure import RowFailure, content


def read_tool_calls(calls: Any) -> list[dict[str, Any]] | None:
    """Tool calls as `{"id", "type", "function": {"name", "arguments"}}`; None if there are none.

    The argument text of a parser is not what was generated.

    Raises:
        RowFailure: they are no list of calls with a function name.
    """
    if not calls:
        return None
    try:
        return [_tool_call(call) for call in calls]
    except (TypeError, KeyError, AttributeError) as error:
        raise _unreadable(calls) from error


class CallPieces:
    """Puts the calls of one stream together: name and id come first, the text of the arguments bit by bit."""

    def __init__(self) -> None:
        self._calls: dict[int, dict[str, Any]] = {}

    def add(self, deltas: Any) -> None:
        """Take the `tool_calls` of one chunk.

        Raises:
            RowFailure: they are no pieces of calls.
        """
        try:
            for delta in deltas or []:
                self._add(delta)
        except (TypeError, KeyError, AttributeError) as error:
            raise _unreadable(deltas) from error

    def joined(self) -> list[dict[str, Any]]:
        return [self._calls[index] for index in sorted(self._calls)]

    def _add(self, delta: Mapping[str, Any]) -> None:
        index = delta.get("index")
        if not isinstance(index, int):  # servers that send calls whole give them no number
            index = len(self._calls)
        empty = {"id": None, "type": None, "function": {"name": "", "arguments": ""}}
        call = self._calls.setdefault(index, empty)
        call["id"] = delta.get("id") or call["id"]
        call["type"] = delta.get("type") or call["type"]
        piece, function = delta.get("function") or {}, call["function"]
        if piece.get("name") and piece["name"] != function["name"]:  # some repeat it
            function["name"] += piece["name"]
        if isinstance(piece.get("arguments"), dict):
            function["arguments"] = piece["arguments"]
        elif piece.get("arguments"):
            function["arguments"] += piece["arguments"]


def _tool_call(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    name, arguments = function["name"], function.get("arguments")
    if not isinstance(name, str) or not name:
        raise TypeError("a function without a name")
    if not isinstance(arguments, str):
        arguments = "" if arguments is None else json.dumps(arguments, ensure_ascii=False)
    return {
        "id": None if call.get("id") is None else str(call["id"]),
        "type": str(call.get("type") or "function"),
        "function": {"name": name, "arguments": join_surrogates(arguments)},
    }


def _unreadable(calls: Any) -> RowFailure:
    return content("tool_calls", f"unreadable tool calls: {str(calls)[:200]}")
