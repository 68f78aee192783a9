"""Keys and types over all rows of a file: what the first rows show is not what the others hold."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rich import box
from rich.table import Table
from rich.text import Text

from eyas.cli.records import Record
from eyas.cli.visible import escaped
from eyas.errors import printable

_EXAMPLE_CHARACTERS = 60
_EMPTY = "empty list"
_TYPES = {bool: "bool", int: "int", float: "float", str: "text", type(None): "null"}


@dataclass
class KeyFacts:
    """What one key holds, over all rows."""

    rows: int = 0
    """Rows (or objects in a list) that have the key."""
    nulls: int = 0
    types: Counter[str] = field(default_factory=Counter)
    """By type, nulls apart."""
    least: int | None = None
    """Shortest text or list."""
    most: int | None = None
    example: str | None = None
    """The first value that is not null and not empty."""


@dataclass
class Schema:
    """The keys of all rows, nested ones with dots, those of objects in a list behind `[]`."""

    rows: int = 0
    damaged: list[Record] = field(default_factory=list)
    keys: dict[str, KeyFacts] = field(default_factory=dict)

    def add(self, record: Record) -> None:
        if record.damage is not None:
            self.damaged.append(record)
            return
        self.rows += 1
        self._add_object("", record.values)

    def _add_object(self, prefix: str, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self._add_value(f"{prefix}{name}", value)

    def _add_value(self, key: str, value: Any) -> None:
        facts = self.keys.setdefault(key, KeyFacts())
        facts.rows += 1
        if value is None:
            facts.nulls += 1
            return
        facts.types[_type(value)] += 1
        if isinstance(value, str | list):
            facts.least = len(value) if facts.least is None else min(facts.least, len(value))
            facts.most = len(value) if facts.most is None else max(facts.most, len(value))
        if facts.example is None and value not in ("", [], {}):
            facts.example = _example(value)
        if isinstance(value, dict):
            self._add_object(f"{key}.", value)
        elif isinstance(value, list):
            for item in value:
                if not isinstance(item, dict):
                    break
                self._add_object(f"{key}[].", item)


def scan(records: Iterable[Record]) -> Schema:
    """The schema of all these rows."""
    schema = Schema()
    for record in records:
        schema.add(record)
    return schema


def schema_table(schema: Schema) -> Table:
    """A line per key; what only some rows hold stands out."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("key", no_wrap=True)
    table.add_column("rows", justify="right")
    table.add_column("null", justify="right")
    table.add_column("types")
    table.add_column("length", justify="right", no_wrap=True)
    table.add_column("example")
    for key in sorted(schema.keys, key=lambda key: key.split(".")):
        facts = schema.keys[key]
        missing = "[]" not in key and "." not in key and facts.rows < schema.rows
        types = [name for name, _ in facts.types.most_common() if name != _EMPTY] or list(facts.types)
        mixed = len(types) > 1
        kinds = ", ".join(f"{name} {facts.types[name]:,}" if mixed else name for name in types)
        table.add_row(
            Text(escaped(key)),
            Text(f"{facts.rows:,}", style="yellow" if missing else ""),
            f"{facts.nulls:,}" if facts.nulls else "",
            Text(kinds or "null only", style="yellow" if mixed else ""),
            "" if facts.least is None else f"{facts.least:,} to {facts.most:,}",
            Text(facts.example or "", style="dim", no_wrap=True, overflow="ellipsis"),
        )
    return table


def _type(value: Any) -> str:
    if isinstance(value, dict):
        return "object"
    if isinstance(value, list):
        inner = sorted(
            {_TYPES.get(kind, "object" if kind is dict else "list") for kind in set(map(type, value))}
        )
        return f"list of {'/'.join(inner)}" if inner else _EMPTY
    return _TYPES[type(value)]


def _example(value: Any) -> str:
    if isinstance(value, str):
        shown = escaped(value[:_EXAMPLE_CHARACTERS])
    else:
        first = value[:6] if isinstance(value, list) else value
        shown = printable(json.dumps(first, ensure_ascii=False))
    return shown if len(shown) <= _EXAMPLE_CHARACTERS else shown[: _EXAMPLE_CHARACTERS - 1] + "…"
