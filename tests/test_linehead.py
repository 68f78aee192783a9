"""A line's head by its start is its head by parsing, for every line that the journal writes."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas import jsonl
from eyas.errors import InputError
from eyas.linehead import Head, parsed_head, plain_head

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6) | st.sampled_from(
    ['","error":1', "\\", "\x7f"]
)
VALUES = st.none() | st.booleans() | TEXT | st.dictionaries(TEXT, st.none(), max_size=2)


@given(key=TEXT, error=VALUES, rest=st.dictionaries(TEXT, VALUES, max_size=3))
def test_the_start_of_a_written_line_tells_the_truth_or_nothing(
    key: str, error: Any, rest: dict[str, Any]
) -> None:
    others = {name: value for name, value in rest.items() if name not in ("key", "error")}
    head = {"key": key} if error is None else {"key": key, "error": error}
    for entry in (head | others, head | others | {"error": error}):
        line = jsonl.encode(entry)
        expected = Head(key, error is not None)
        assert parsed_head(line, "x") == expected
        assert plain_head(line) in (None, expected)


def test_keys_as_they_are_need_no_parsing() -> None:
    for key in ("0" * 64, "", "é\u2028", "a b"):
        assert plain_head(jsonl.encode({"key": key})) == Head(key, is_error=False)
        assert plain_head(jsonl.encode({"key": key, "error": {}})) == Head(key, is_error=True)
        assert plain_head(jsonl.encode({"key": key, "error": None})) == Head(key, is_error=False)


@pytest.mark.parametrize("line", [b"", b"{}", b"[]", b'{"key":1}', b'{"key":null}', b'"key"', b'{"key":"a"'])
def test_what_is_no_entry_is_refused(line: bytes) -> None:
    with pytest.raises(InputError):
        parsed_head(line, "x")
