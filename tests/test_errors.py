"""Messages of errors: what they quote comes from servers and files."""

from __future__ import annotations

import pytest

from eyas.errors import GateError, JournalError, JournalInUse, printable


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain – 漢字", "plain – 漢字"),
        ("two\nlines", "two\nlines"),
        ("\x1b[31mred\x1b]0;title\x07", "\\x1b[31mred\\x1b]0;title\\x07"),
        ("\x9b31m \x7f\r\t", "\\x9b31m \\x7f\\r\\t"),
        ("\u202eabc\u200b\u2028\ud800", "\\u202eabc\\u200b\\u2028\\ud800"),
    ],
)
def test_what_a_terminal_would_obey_is_written_out(text: str, shown: str) -> None:
    assert printable(text) == shown
    assert str(GateError(text, where=text, hint=text)) == f"{shown}\n  where: {shown}\n  to do: {shown}"


def test_only_a_journal_in_use_asks_to_try_again_later() -> None:
    assert (JournalError("damaged").exit_code, JournalInUse("in use").exit_code) == (1, 75)
