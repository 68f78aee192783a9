r"""Text for a terminal, with every character that can't be seen written out: \n, \t, \u200b, \ufeff, \xa0."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable

from rich.text import Text

_SHORT = {"\n": "\\n", "\r": "\\r", "\t": "\\t", "\\": "\\\\"}
_BLANK = "\u115f\u1160\u2800\u3164\uffa0"
"""Hangul fillers and the empty braille pattern: letters and symbols by category, blank on the screen."""

ESCAPE_STYLE = "cyan"
MARKER_STYLE = "bold magenta"


def is_invisible(character: str) -> bool:
    """Whether a reader could not see it, or not tell it from a plain space or from another character.

    Controls, format characters (zero-width, BOM, direction marks), all separators but the plain space, unassigned and
    private ones, lone surrogates, variation selectors.
    """
    if character == " ":
        return False
    category = unicodedata.category(character)
    if category[0] in "CZ" or character in _BLANK:
        return True
    return category == "Mn" and unicodedata.name(character, "").startswith("VARIATION SELECTOR")


def escaped(text: str) -> str:
    r"""Text with its invisible characters, and backslashes, as Python writes them: \n, \xa0, \u200b, \U000e0001."""
    return "".join(_escape(character) for character in text)


def visible(text: str, markers: Iterable[str] = ()) -> Text:
    """The escaped text, escapes and markers (think tags) in colour."""
    result = Text()
    names = sorted({marker for marker in markers if marker}, key=len, reverse=True)
    parts = re.split(f"({'|'.join(map(re.escape, names))})", text) if names else [text]
    for part in parts:
        if part in names:
            result.append(escaped(part), style=MARKER_STYLE)
        else:
            _append(result, part)
    return result


def ends(text: str, characters: int, markers: Iterable[str] = ()) -> Text:
    """The first and last so many characters, in quotes, and how many are left out between them."""
    if len(text) <= 2 * characters:
        return Text.assemble("“", visible(text, markers), "”")
    left_out = len(text) - 2 * characters
    return Text.assemble(
        "“",
        visible(text[:characters], markers),
        (f" … {left_out:,} more … ", "dim"),
        visible(text[-characters:], markers),
        "”",
    )


def _escape(character: str) -> str:
    if character in _SHORT:
        return _SHORT[character]
    if not is_invisible(character):
        return character
    code = ord(character)
    if code < 0x100:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def _append(result: Text, text: str) -> None:
    """Runs of plain characters and of escapes, each in its style."""
    for run in re.findall(r"[^\\\W]+|.", text, re.DOTALL):
        shown = escaped(run)
        result.append(shown, style=ESCAPE_STYLE if shown != run else "")
