"""One row, readable in a terminal: every part with its length, its first and last characters, and its token ids."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Group, RenderableType
from rich.rule import Rule
from rich.table import Table
from rich.text import Text

from eyas.cli.records import Record
from eyas.cli.visible import MARKER_STYLE, ends
from eyas.errors import printable
from eyas.target.spec import ThinkFormat

COMMON_MARKERS = ("<think>", "</think>")
"""Looked for even where the target's own markers are not known."""
_SHOWN_IDS = 8
_TEXTS = ("reasoning", "content")
_APART = frozenset(
    [
        "sample_id",
        "turn",
        "finish_reason",
        "flags",
        "kind",
        "reason",
        "detail",
        "messages",
        "tools",
        "reasoning",
        "content",
        "tool_calls",
        "usage",
        "prompt_token_ids",
        "token_ids",
        "at",
    ]
)
"""Keys that have a line of their own; the others share one."""


def record_view(
    record: Record, think: ThinkFormat | None, characters: int, prompt: Sequence[Any] = ()
) -> RenderableType:
    """A row; of long texts the first and last so many characters. `prompt`: its messages, if the row has none."""
    if record.damage is not None:
        return Group(Rule(Text(f"damaged line at byte {record.offset}")), Text(record.damage, "bold red"))
    values = record.values
    try:
        rows = list(_View(think, characters).rows(values, prompt))
    except (TypeError, ValueError, AttributeError, OverflowError):  # written by hand, or by another program
        rows = [["a row of another form", "", ends(json.dumps(values, ensure_ascii=False), characters)]]
    grid = Table.grid(padding=(0, 2))
    grid.add_column(style="dim", no_wrap=True)
    grid.add_column(justify="right", no_wrap=True)
    grid.add_column()
    for row in rows:
        grid.add_row(*(Text(printable(cell)) if isinstance(cell, str) else cell for cell in row))
    title = Text(printable(str(values.get("sample_id", f"row at byte {record.offset}"))), style="bold")
    if values.get("turn"):
        title.append(f"  turn {values['turn']}")
    return Group(Rule(title, align="left"), grid)


class _View:
    """The rows of the grid: label, size, text."""

    def __init__(self, think: ThinkFormat | None, characters: int) -> None:
        self._think = think
        self._characters = characters
        own = (think.start, think.end) if think else ()
        self._markers = tuple(dict.fromkeys([*own, *COMMON_MARKERS]))

    def rows(self, values: Mapping[str, Any], prompt: Sequence[Any]) -> Iterator[list[RenderableType]]:
        if "reason" in values:
            yield from self._failure(values)
        if "finish_reason" in values:
            yield ["finish", "", self._finish(values)]
        for number, message in enumerate(values.get("messages") or prompt):
            yield from self._message(f"message {number}", message)
        yield from self._answer(values)
        for name in ("prompt_token_ids", "token_ids"):
            if name in values:
                yield self._ids(name, values[name])
        if values.get("at") is not None:
            yield ["came at", "", Text(_local_time(values["at"]))]
        yield ["other keys", "", Text(_others(values), style="dim")]

    def _answer(self, values: Mapping[str, Any]) -> Iterator[list[RenderableType]]:
        if values.get("tools"):
            yield self._text("tools", values["tools"])
        for name in _TEXTS:
            if name in values:
                yield self._text(name, values[name])
        yield from self._markers_found(values)
        for call in values.get("tool_calls") or []:
            yield self._text("tool call", json.dumps(call.get("function", call), ensure_ascii=False))
        if "usage" in values:
            yield ["usage", "", Text(_usage(values["usage"]))]

    def _failure(self, failure: Mapping[str, Any]) -> Iterator[list[RenderableType]]:
        yield ["failed", "", Text(printable(f"{failure.get('reason')} ({failure.get('kind')})"), "bold red")]
        if failure.get("detail") is not None:
            yield self._text("detail", str(failure["detail"]))

    def _finish(self, values: Mapping[str, Any]) -> Text:
        reason = str(values["finish_reason"])
        text = Text(printable(reason), style="yellow" if reason == "length" else "")
        if values.get("stop_reason") is not None:
            text.append(f"  stop reason {values['stop_reason']!r}")
        if values.get("flags"):
            text.append(printable("  flags: " + ", ".join(values["flags"])), style="yellow")
        return text

    def _message(self, label: str, message: Any) -> Iterator[list[RenderableType]]:
        if not isinstance(message, dict):
            yield self._text(label, json.dumps(message, ensure_ascii=False))
            return
        role = message.get("role")
        for name in ("reasoning", "content"):
            if message.get(name) is not None:
                part = "" if name == "content" else f" {name}"
                yield self._text(f"{label} {role}{part}", message[name])
        for call in message.get("tool_calls") or []:
            yield self._text(f"{label} {role} tool call", json.dumps(call, ensure_ascii=False))

    def _text(self, label: str, value: Any) -> list[RenderableType]:
        if value is None:
            return [label, "", Text("null", style="dim")]
        text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
        return [label, f"{len(text):,} chars", ends(text, self._characters, self._markers)]

    def _markers_found(self, values: Mapping[str, Any]) -> Iterator[list[RenderableType]]:
        """Where think markers stand in the texts, and where their ids stand among the generated ones."""
        found = [
            f"{marker} in {name} at character {position:,}"
            for name in _TEXTS
            for marker in self._markers
            for position in _positions(str(values.get(name) or ""), marker)
        ]
        ids = values.get("token_ids")
        if self._think is not None and ids:
            for marker, part in (
                (self._think.start, self._think.start_ids),
                (self._think.end, self._think.end_ids),
            ):
                places = _places(ids, part)
                where = ", ".join(f"{place:,}" for place in places[:4]) or "nowhere"
                found.append(f"{marker} = {part} among the generated ids: {where}")
        if found:
            yield ["think markers", "", Text("\n".join(found), MARKER_STYLE)]

    def _ids(self, name: str, ids: Sequence[int] | None) -> list[RenderableType]:
        if ids is None:
            return [name, "", Text("null", style="dim")]
        if len(ids) <= 2 * _SHOWN_IDS:
            shown = " ".join(map(str, ids))
        else:
            shown = f"{' '.join(map(str, ids[:_SHOWN_IDS]))} … {' '.join(map(str, ids[-_SHOWN_IDS:]))}"
        return [name, f"{len(ids):,} ids", Text(shown)]


def _local_time(at: float) -> str:
    return datetime.fromtimestamp(at).astimezone().strftime("%Y-%m-%d %H:%M:%S %z")


def _usage(usage: Any) -> str:
    if not isinstance(usage, Mapping):
        return "null"
    return ", ".join(f"{name} {'null' if value is None else value}" for name, value in usage.items())


def _others(values: Mapping[str, Any]) -> str:
    """The remaining keys with their values, short ones in full."""
    parts = []
    for name, value in values.items():
        if name not in _APART:
            text = printable(json.dumps(value, ensure_ascii=False))
            parts.append(f"{printable(name)} {text if len(text) <= 100 else text[:97] + '...'}")
    return ", ".join(parts)


def _positions(text: str, marker: str) -> list[int]:
    positions, at = [], text.find(marker)
    while at >= 0:
        positions.append(at)
        at = text.find(marker, at + len(marker))
    return positions


def _places(ids: Sequence[int], part: Sequence[int]) -> list[int]:
    width = len(part)
    return (
        [at for at in range(len(ids) - width + 1) if list(ids[at : at + width]) == list(part)]
        if width
        else []
    )
