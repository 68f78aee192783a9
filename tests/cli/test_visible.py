"""Nothing in a text escapes the eye."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.cli.visible import ESCAPE_STYLE, MARKER_STYLE, ends, escaped, is_invisible, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("a\nb\tc\rd", r"a\nb\tc\rd"),
        ("\ufeffa\u200b\u200d\u2060", r"\ufeffa\u200b\u200d\u2060"),
        ("1\xa0000\u202f1\u3000", r"1\xa0000\u202f1\u3000"),
        ("a\u2028b\u2029c\x85d\x0b\x0c", r"a\u2028b\u2029c\x85d\x0b\x0c"),
        ("\x00\x1b[31m\x7f", r"\x00\x1b[31m\x7f"),
        ("\u202e\u061c", r"\u202e\u061c"),
        ("✓\ufe0f \U000e0041 \ue000 \U0001f600", "✓\\ufe0f \\U000e0041 \\ue000 \U0001f600"),
        ("\u3164\u2800\u115f", r"\u3164\u2800\u115f"),
        ("\ud83d", r"\ud83d"),
        (r"a\n", r"a\\n"),
        ("plain é ü 漢字 – “x”", "plain é ü 漢字 – “x”"),
    ],
)
def test_what_can_not_be_seen_is_written_out(text: str, shown: str) -> None:
    assert escaped(text) == shown


@given(text=st.text())
def test_the_escaped_text_is_visible_and_says_exactly_what_was_there(text: str) -> None:
    shown = escaped(text)
    assert not any(is_invisible(character) for character in shown)
    assert all(unicodedata.category(character)[0] not in "CZ" or character == " " for character in shown)
    back = shown.encode("ascii", "backslashreplace").decode("unicode_escape")
    assert back == text


@given(text=st.text(), characters=st.integers(1, 20))
def test_the_ends_of_a_text(text: str, characters: int) -> None:
    shown = ends(text, characters).plain
    if len(text) <= 2 * characters:
        assert shown == f"“{escaped(text)}”"
    else:
        middle = f" … {len(text) - 2 * characters:,} more … "
        assert shown == f"“{escaped(text[:characters])}{middle}{escaped(text[-characters:])}”"


def test_markers_and_escapes_stand_out() -> None:
    text = visible("a</think>\n[b]</thi", ["<think>", "</think>", ""])
    assert text.plain == r"a</think>\n[b]</thi"
    styles = {text.plain[span.start : span.end]: span.style for span in text.spans}
    assert styles == {"</think>": MARKER_STYLE, r"\n": ESCAPE_STYLE}
