from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.prompts.jsonl import read_jsonl
from eyas.prompts.rows import SourceRow

Write = Callable[..., None]


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write sources/x.jsonl: a mapping is one line, bytes are taken as they are."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sources").mkdir()

    def write_lines(*lines: Any) -> None:
        encoded = [line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines]
        (tmp_path / "sources" / "x.jsonl").write_bytes(b"".join(line + b"\n" for line in encoded))

    return write_lines


def dataset(column: str | None = "prompt", **changes: Any) -> DatasetParams:
    return DatasetParams(
        **({"source": "jsonl", "role": "train", "path": "x.jsonl", "column": column} | changes)
    )


def test_rows_keep_their_ids_places_and_tasks(write: Write) -> None:
    write({"id": "a", "prompt": "p", "task": "t"}, {"id": 7, "prompt": "q"})
    assert read_jsonl("d", dataset()).rows == [
        SourceRow("a", "sources/x.jsonl:1", "p", "t"),
        SourceRow("7", "sources/x.jsonl:2", "q", None),
    ]


def test_rows_without_id_are_named_by_their_line(write: Write) -> None:
    write({"prompt": "p"}, b"", {"prompt": "q"})
    assert [row.orig_id for row in read_jsonl("d", dataset()).rows] == ["line-000001", "line-000003"]


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        pytest.param(b'{"prompt": "torn', "not_json", id="torn"),
        pytest.param(b'{"prompt": "a"}{"prompt": "b"}', "not_json", id="two-objects"),
        pytest.param(b'{"prompt": "a", "prompt": "b"}', "not_json", id="duplicate-key"),
        pytest.param(b'{"prompt": NaN}', "not_json", id="nan"),
        pytest.param(b'{"prompt": "\xff"}', "not_json", id="not-utf8"),
        pytest.param(b'["a"]', "not_an_object", id="array"),
        pytest.param(b'{"text": "a"}', "column_missing", id="no-column"),
    ],
)
def test_a_bad_line_is_rejected_with_its_place_and_costs_no_other(
    write: Write, line: bytes, reason: str
) -> None:
    write({"id": "a", "prompt": "p"}, line, {"id": "b", "prompt": "q"})
    source = read_jsonl("d", dataset())
    assert [row.orig_id for row in source.rows] == ["a", "b"]
    assert [(row.where, row.problem.reason) for row in source.rejected] == [("sources/x.jsonl:2", reason)]


def test_lines_end_at_newlines_only_and_a_byte_order_mark_is_no_text(write: Write) -> None:
    inside = '{"prompt": "a\u2028b\u0085c"}'.encode()
    write(b"\xef\xbb\xbf" + inside, b'{"prompt": "d"}\r')
    assert [row.value for row in read_jsonl("d", dataset()).rows] == ["a\u2028b\u0085c", "d"]


def test_count_takes_the_first_rows(write: Write) -> None:
    write(*({"prompt": str(number)} for number in range(5)))
    assert [row.value for row in read_jsonl("d", dataset(count=2)).rows] == ["0", "1"]


@pytest.mark.parametrize("name", ["prompt", "question", "problem", "instruction", "input", "conversations"])
def test_case_I01_the_column_is_what_params_name(write: Write, name: str) -> None:
    write({name: "p", "other": 1})
    assert read_jsonl("d", dataset(column=name)).rows[0].value == "p"


@pytest.mark.parametrize("column", ["question", None], ids=["wrong", "not-set"])
def test_case_I01_a_wrong_or_unset_column_lists_the_columns(write: Write, column: str | None) -> None:
    write({"prompt": "a", "messages": []}, {"id": 1, "prompt": "b"})
    with pytest.raises(InputError) as caught:
        read_jsonl("d", dataset(column=column))
    assert "the file has: id, messages, prompt" in str(caught.value)
    assert "datasets.d" in str(caught.value)


def test_case_H01_equal_ids_stop_and_name_both_lines(write: Write) -> None:
    write({"id": "dup", "prompt": "a"}, {"id": "x", "prompt": "b"}, {"id": "dup", "prompt": "c"})
    with pytest.raises(InputError, match=r"(?s)'dup'.*sources/x\.jsonl:1 and sources/x\.jsonl:3"):
        read_jsonl("d", dataset())


def test_case_H04_ids_of_one_spelling_collide_whatever_their_type(write: Write) -> None:
    write({"id": 7, "prompt": "a"}, {"id": "7", "prompt": "b"})
    with pytest.raises(InputError, match="two rows have the id '7'"):
        read_jsonl("d", dataset())


def test_case_H04_leading_zeros_are_kept(write: Write) -> None:
    write({"id": 7, "prompt": "a"}, {"id": "007", "prompt": "b"})
    assert [row.orig_id for row in read_jsonl("d", dataset()).rows] == ["7", "007"]


@pytest.mark.parametrize("bad", [None, "", " ", 7.0, True, ["7"], "a\nb"])
def test_case_H04_ids_that_are_none_are_rejected(write: Write, bad: Any) -> None:
    write({"id": bad, "prompt": "a"}, {"id": "ok", "prompt": "b"})
    source = read_jsonl("d", dataset())
    assert [row.orig_id for row in source.rows] == ["ok"]
    assert [(row.orig_id, row.problem.reason) for row in source.rejected] == [("line-000001", "bad_id")]


@pytest.mark.parametrize("path", ["../params.yaml", "/etc/passwd", "a/../../b.jsonl"])
def test_only_files_below_sources_are_read(write: Write, path: str) -> None:
    with pytest.raises(InputError, match="must be below sources/"):
        read_jsonl("d", dataset(path=path))


def test_a_missing_and_an_empty_file_are_errors(write: Write) -> None:
    with pytest.raises(InputError, match="no such file"):
        read_jsonl("d", dataset())
    write(b"")
    with pytest.raises(InputError, match="no usable row"):
        read_jsonl("d", dataset())


def test_tools_are_handed_on_as_they_are(write: Write) -> None:
    write({"prompt": "p", "tools": [{"a": 1}]}, {"prompt": "q", "tools": "[]"}, {"prompt": "r"})
    assert [row.tools for row in read_jsonl("d", dataset()).rows] == [[{"a": 1}], "[]", None]


def test_keys_that_nothing_reads_are_counted(write: Write) -> None:
    write({"id": "1", "prompt": "p", "task": "t", "tool": []}, {"prompt": "q", "tool": 1, "answer": "x"})
    assert read_jsonl("d", dataset()).unused == {"answer": 1, "tool": 2}


def test_case_G08_a_key_first_seen_at_row_101_is_read_and_an_unknown_one_reported(write: Write) -> None:
    write(
        *({"prompt": "p", "task": None} for _ in range(100)),
        {"prompt": [{"role": "user", "content": "q"}], "task": "t", "tools": [{"a": 1}], "novel": 1},
    )
    source = read_jsonl("d", dataset())
    assert [(row.task, row.tools) for row in source.rows[:100]] == [(None, None)] * 100
    assert (source.rows[100].task, source.rows[100].tools) == ("t", [{"a": 1}])
    assert source.unused == {"novel": 1}


@pytest.mark.parametrize(
    "line",
    [
        b'{"id": "1", "id": "2", "prompt": "a"}',
        b'{"id": "1", "prompt": "a", "prompt": "a"}',
        b'{"id": "1", "prompt": [{"role": "user", "role": "system", "content": "a"}]}',
        b'{"id": "1", "prompt": "a", "tools": [{"function": {"name": "f", "name": "g"}}]}',
    ],
    ids=["id", "equal-values", "in-a-message", "in-a-tool"],
)
def test_case_G12_a_key_twice_in_one_object_rejects_the_row_and_no_other(write: Write, line: bytes) -> None:
    write({"id": "before", "prompt": "p"}, line, {"id": "after", "prompt": "q"})
    source = read_jsonl("d", dataset())
    assert [row.orig_id for row in source.rows] == ["before", "after"]
    [rejected] = source.rejected
    assert (rejected.where, rejected.problem.reason) == ("sources/x.jsonl:2", "not_json")
    assert "duplicate key" in rejected.problem.detail
