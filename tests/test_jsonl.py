"""JSON Lines at the level of bytes."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas import jsonl
from eyas.errors import InputError

# Characters of any kind, lone surrogates apart.
TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(TEXT, inner, max_size=4),
    max_leaves=12,
)


@given(values=st.lists(JSON, max_size=5))
def test_what_is_encoded_parses_back_line_by_line(values: list[object]) -> None:
    content = b"".join(jsonl.encode(value) for value in values)
    lines = content.split(b"\n")
    assert lines.pop() == b""
    assert [jsonl.parse(line, "x") for line in lines] == values


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(b'{"a":1,"a":2}', "duplicate key 'a'", id="duplicate key"),
        pytest.param(b'{"x":{"b":1,"c":2,"b":3}}', "duplicate key 'b'", id="nested duplicate key"),
        pytest.param(b'{"a":NaN}', "NaN", id="NaN"),
        pytest.param(b"[-Infinity]", "-Infinity", id="infinity"),
        pytest.param(b"[1e999]", "1e999", id="number out of range"),
        pytest.param(b'{"a":1}{"b":2}', "Extra data", id="two objects glued"),
        pytest.param(b'{"a":"\xc3"}', "utf-8", id="invalid UTF-8"),
        pytest.param(b'{"sample_id":"7","mess', "Unterminated", id="torn"),
        pytest.param(b"", "Expecting value", id="empty"),
        pytest.param(b"[" * 100_000, "recursion", id="too deep"),
    ],
)
def test_a_line_that_is_not_strict_json_is_refused_by_file_and_line(
    tmp_path: Path, line: bytes, reason: str
) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"ok":1}\n' + line + b"\n")
    lines = jsonl.read(path)
    assert next(lines).value == {"ok": 1}
    with pytest.raises(InputError, match="strict JSON") as caught:
        next(lines)
    assert caught.value.where == f"{path}:2"
    assert reason in caught.value.what


JSON_LIKE = st.text('{}[]":,0123456789.eE+-nulltrfasNI \\é\u2028', max_size=30)


@given(
    content=st.binary(max_size=40)
    | JSON_LIKE.map(str.encode)
    | JSON.map(lambda value: json.dumps(value).encode())
)
def test_any_bytes_are_parsed_as_the_standard_parser_does_or_refused_by_name(content: bytes) -> None:
    with suppress(InputError):
        assert jsonl.parse(content, "f:1") == json.loads(content.decode())
        return
    with pytest.raises(InputError) as caught:
        jsonl.parse(content, "f:1")
    assert caught.value.where == "f:1"


@given(prefix=st.lists(JSON, max_size=3), last=JSON, data=st.data())
def test_case_G02_the_tail_of_a_file_cut_anywhere_is_repaired(
    tmp_path_factory: pytest.TempPathFactory, prefix: list[object], last: object, data: st.DataObject
) -> None:
    whole = b"".join(map(jsonl.encode, prefix))
    line = jsonl.encode({"last": last})
    cut = data.draw(st.integers(0, len(line)))
    path = tmp_path_factory.mktemp("jsonl") / "rows.jsonl"
    path.write_bytes(whole + line[:cut])
    with path.open("r+b") as file:
        size = jsonl.repair_tail(file.fileno(), lambda value: "last" in value)
    complete = cut >= len(line) - 1
    assert path.read_bytes() == whole + (line if complete else b"")
    assert size == path.stat().st_size
    path.unlink()


def test_case_G01_raw_separators_inside_a_string_split_nothing(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes('{"content":"a\u2028b\u0085c\\u000bd"}\n{"content":"next"}\n'.encode())
    assert len(path.read_text().splitlines()) == 4  # what a text reader makes of it
    assert [line.value["content"] for line in jsonl.read(path)] == ["a\u2028b\u0085c\x0bd", "next"]


@pytest.mark.parametrize("separator", [*"\x0b\x0c\x1c\x1d\x1e\x85\u2028\u2029\r", "\r\n", "\n"])
def test_case_G01_variation_every_separator_survives_a_round_trip_in_one_line(
    tmp_path: Path, separator: str
) -> None:
    path = tmp_path / "rows.jsonl"
    values = [{f"k{separator}": f"{separator}a{separator * 2}"}, {"content": separator}]
    jsonl.write(path, values)
    assert path.read_bytes().count(b"\n") == 2
    assert [line.value for line in jsonl.read(path)] == values


def test_case_G06_half_a_character_in_a_reply_never_reaches_a_file(tmp_path: Path) -> None:
    reply = json.loads(r'{"content":"a\ud83db","tool":{"arguments":["\udc00"]}}')
    with pytest.raises(UnicodeEncodeError):
        json.dumps(reply, ensure_ascii=False).encode()
    assert jsonl.has_surrogates(reply)
    path = tmp_path / "rows.jsonl"
    jsonl.write(path, [reply])
    expected = {"content": "a\ufffdb", "tool": {"arguments": ["\ufffd"]}}
    assert [line.value for line in jsonl.read(path)] == [expected]
    path.read_bytes().decode()  # valid UTF-8 to everyone
    assert pl.read_ndjson(path)["content"].to_list() == ["a\ufffdb"]


def test_case_G06_variation_a_whole_pair_is_a_character(tmp_path: Path) -> None:
    reply = json.loads(r'{"content":"\ud83d\ude00\ude00"}')
    assert jsonl.parse(jsonl.encode(reply), "x") == {"content": "\U0001f600\ufffd"}
    assert jsonl.has_surrogates(reply)
    assert not jsonl.has_surrogates({"content": "\U0001f600 and \ufffd"})


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\u0085", "\x0b", "\x0c", "\x1c", "\r"])
def test_only_newline_ends_a_line(tmp_path: Path, separator: str) -> None:
    text = f"a{separator}b"
    raw = json.dumps({"content": text}, ensure_ascii=False).encode()
    path = tmp_path / "rows.jsonl"
    path.write_bytes(raw + b"\n" + jsonl.encode({"content": text}))
    assert [(line.number, line.offset, line.value) for line in jsonl.read(path)] == [
        (1, 0, {"content": text}),
        (2, len(raw) + 1, {"content": text}),
    ]


def test_the_last_line_may_lack_its_newline(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"a":1}\r\n{"a":2}')
    assert [line.value for line in jsonl.read(path)] == [{"a": 1}, {"a": 2}]


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        list(jsonl.read(tmp_path / "none.jsonl"))


@pytest.mark.parametrize(
    ("escaped", "expected"),
    [
        (r'"\ud83d"', "\ufffd"),
        (r'"a\udc00b"', "a\ufffdb"),
        (r'"\ude00\ud83d"', "\ufffd\ufffd"),
        (r'"\ud83d\ude00"', "\U0001f600"),
    ],
)
def test_half_characters_become_replacement_characters(escaped: str, expected: str) -> None:
    value = {"content": [json.loads(escaped)], json.loads(escaped): 1}
    line = jsonl.encode(value)
    assert jsonl.parse(line, "x") == {"content": [expected], expected: 1}
    assert jsonl.has_surrogates(value) == ("\ufffd" in expected)


def test_nan_is_never_written() -> None:
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsonl.encode({"a": float("nan")})


def test_case_G10_a_huge_line_is_written_and_read_whole(tmp_path: Path) -> None:
    content = "é\n" * 8_000_000
    path = tmp_path / "rows.jsonl"
    assert jsonl.write(path, [{"content": content}, {"content": "b"}]) == 2
    assert [line.value["content"] for line in jsonl.read(path)] == [content, "b"]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    jsonl.write(path, [1])
    with pytest.raises(ValueError, match="not JSON compliant"):
        jsonl.write(path, [2, float("inf")])
    assert path.read_bytes() == b"1\n"
    assert [file.name for file in tmp_path.iterdir()] == ["rows.jsonl"]
