"""Lists of ids that are cut out of lines come out as the JSON parser reads them, and nothing else is taken for them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eyas import jsonl
from eyas.errors import EyasError
from eyas.schema import TOKEN_IDS
from eyas.validate import idlists
from eyas.validate.idlists import MARK, cut, ids_of
from eyas.validate.responses import read_blocks, responses_of
from tests.hand_made import raw

FIELDS = ("prompt_token_ids", "token_ids")
LISTS = st.lists(st.lists(st.integers(0, 10**8 - 1) | st.integers(0, 9), max_size=20), max_size=12)


def compact(ids: list[int]) -> bytes:
    return json.dumps(ids, separators=(",", ":"))[1:-1].encode()


@given(LISTS, st.integers(1, 5))
def test_numbers_are_what_json_says(lists: list[list[int]], rows: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(idlists, "ROWS", rows)
        found = ids_of([compact(ids) for ids in lists])
    assert found is not None
    assert found.dtype == TOKEN_IDS
    assert found.to_list() == [ids or None for ids in lists]


@pytest.mark.parametrize(
    "text",
    [b"1,,2", b",1", b"1,", b"01", b"00", b"1 2", b"1, 2", b"-1", b"+1", b"1.5", b"1e3", b"123456789", b"a",
     b"1\n", b"null", b"1,/", b"1:2"],
)  # fmt: skip
def test_what_is_not_plain_is_left_to_the_parser(text: bytes) -> None:
    assert ids_of([b"5,6", text]) is None


def test_a_line_is_cut_at_its_fields_and_keeps_everything_else() -> None:
    line = b'{"a":"x","prompt_token_ids":[1,2],"token_ids":[3],"b":[4]}\n'
    found = cut([line, b'{"token_ids":[],"b":1}', b'{"token_ids":null}', b'{"token_ids":[1'], FIELDS)
    mark = str(MARK).encode()
    assert found.lines == [
        line.replace(b"[1,2]", b"[%b]" % mark).replace(b"[3]", b"[%b]" % mark),
        b'{"token_ids":[],"b":1}', b'{"token_ids":null}', b'{"token_ids":[1',
    ]  # fmt: skip
    assert found.lists == {"prompt_token_ids": [b"1,2", b"", b"", b""], "token_ids": [b"3", b"", b"", b""]}


def read(path: Path, *lines: bytes) -> pl.DataFrame:
    path.write_bytes(b"".join(lines))
    return pl.concat([responses_of(block) for block in read_blocks(path)])


TEXTS = st.text(max_size=6) | st.sampled_from(
    ['"token_ids":[1,2]', ',"token_ids":[7],', '\\"token_ids":[', "]"]
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(st.lists(st.tuples(TEXTS, LISTS.filter(bool), st.booleans()), min_size=1, max_size=6))
def test_rows_are_those_that_the_parser_reads(tmp_path: Path, given_rows: list[Any]) -> None:
    rows = [
        raw(
            f"talk:{number}", content=text, prompt_token_ids=lists[0], token_ids=None if no_ids else lists[-1]
        )
        for number, (text, lists, no_ids) in enumerate(given_rows)
    ]
    ours = read(tmp_path / "a.jsonl", *map(jsonl.encode, rows))
    spaced = read(tmp_path / "b.jsonl", *(json.dumps(row).encode() + b"\n" for row in rows))  # never cut
    assert ours.drop("offset", "size").equals(spaced.drop("offset", "size"))
    assert ours["token_ids"].to_list() == [row["token_ids"] for row in rows]


@pytest.mark.parametrize("first", [True, False], ids=["before", "behind"])
def test_a_list_of_another_object_is_no_list_of_the_row(tmp_path: Path, first: bool) -> None:
    row = raw("talk:1", token_ids=[30, 31, 2])
    other = {"debug": {"token_ids": [5, 6], "prompt_token_ids": [7]}}
    line = jsonl.encode(other | row if first else row | other)
    plain = jsonl.encode(raw("talk:2", token_ids=[32, 2]))
    assert read(tmp_path / "r.jsonl", line, plain)["token_ids"].to_list() == [[30, 31, 2], [32, 2]]


@pytest.mark.parametrize("value", [[MARK], [MARK, 5], [2**31 - 1], [0, 10**8]])
def test_ids_of_any_size_come_through(tmp_path: Path, value: list[int]) -> None:
    table = read(tmp_path / "r.jsonl", *(jsonl.encode(raw(f"talk:{n}", token_ids=ids)) for n, ids in
                                         enumerate([value, [30, 2]])))  # fmt: skip
    assert table["token_ids"].to_list() == [value, [30, 2]]


@pytest.mark.parametrize("wrong", [b"01,2", b"1,,2", b"1 2", b"+1"])
def test_ids_that_are_no_json_stop_as_before(tmp_path: Path, wrong: bytes) -> None:
    good, bad = (jsonl.encode(raw(f"talk:{number}", token_ids=[30, 2])) for number in range(2))
    with pytest.raises(EyasError, match=r"r\.jsonl:2"):
        read(tmp_path / "r.jsonl", good, bad.replace(b'"token_ids":[30,2]', b'"token_ids":[%b]' % wrong))
