"""What a journal's index needs of a line: its key, and whether it records a failed attempt."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from eyas import jsonl
from eyas.errors import InputError

_PLAIN = re.compile(rb'\{"key":"([^"\\\x00-\x1f]*)"(,"error":(?!null))?')
"""How a line starts that `Journal.append` wrote for a key that needs no escapes."""


@dataclass(frozen=True)
class Head:
    """Key and kind of an entry."""

    key: str
    is_error: bool


def plain_head(line: bytes) -> Head | None:
    """The head by the start of a line that `Journal.append` wrote; None if only parsing can tell.

    Of other lines it says nothing: an error may stand further behind.
    """
    match = _PLAIN.match(line)
    return None if match is None else Head(match[1].decode(errors="replace"), match[2] is not None)


def parsed_head(line: bytes, where: str) -> Head:
    """The head of any line, parsed in full.

    Raises:
        InputError: not strict JSON, or no entry.
    """
    entry = jsonl.parse(line, where)
    if not is_entry(entry):
        raise InputError("an entry without a key", where=where)
    return Head(entry["key"], entry.get("error") is not None)


def is_entry(value: Any) -> bool:
    """Whether a parsed line is an entry."""
    return isinstance(value, dict) and isinstance(value.get("key"), str)
