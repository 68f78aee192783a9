from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.errors import ArtifactError, EyasError
from eyas.schema import Responses, columns_of
from eyas.validate import responses
from eyas.validate.responses import (
    LINE_SCHEMA,
    block_of,
    read_blocks,
    read_failed,
    read_server_notes,
    responses_of,
    unknown_keys,
)
from tests.hand_made import PROMPT_IDS, raw


def write(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
    return path


def read(path: Path) -> pl.DataFrame:
    return pl.concat([responses_of(block) for block in read_blocks(path)])


def test_a_line_becomes_a_row_and_keeps_its_text(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    row = raw(content="a\u2028b\u0085c\r\nd", tool_calls=[call], stop_reason=2, flags=["lossy_text"], turn=3)
    table = read(write(tmp_path / "r.jsonl", row))
    assert table.columns == [*columns_of(Responses).names(), *LINE_SCHEMA.names()]
    found = table.row(0, named=True)
    assert found["content"] == "a\u2028b\u0085c\r\nd"
    assert found["tool_calls"] == [call]
    assert (found["stop_reason"], found["turn"], found["flags"]) == ("2", 3, ["lossy_text"])
    assert found["prompt_token_ids"] == PROMPT_IDS
    assert (found["usage_prompt_tokens"], found["usage_reasoning_tokens"]) == (10, None)


@pytest.mark.parametrize("batch_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("newline_at_end", [True, False])
def test_lines_are_found_again_by_their_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, batch_bytes: int, newline_at_end: bool
) -> None:
    monkeypatch.setattr(responses, "BATCH_BYTES", batch_bytes)
    rows = [raw(f"talk:{number}", content="é\u2028" * (number * 50)) for number in range(9)]
    path = write(tmp_path / "r.jsonl", *rows)
    path.write_bytes(b"\n" + path.read_bytes().replace(b"\n", b"\r\n\n", 1))  # a blank line, and another end
    if not newline_at_end:
        path.write_bytes(path.read_bytes().removesuffix(b"\n"))
    table = read(path)
    assert table["content"].to_list() == [row["content"] for row in rows]
    assert [json.loads(line) for line in block_of(path, table).rows()] == rows
    blocks = len(list(read_blocks(path)))
    assert blocks == 1 if batch_bytes == 1 << 20 else blocks >= len(rows)


def test_case_G06_late_values_and_keys_are_read(tmp_path: Path) -> None:
    rows = [raw(f"talk:{number}", usage=None) for number in range(120)]
    late = raw("talk:late", reasoning="because", stop_reason="\n")
    table = read(write(tmp_path / "r.jsonl", *rows, late))
    assert table.row(-1, named=True)["reasoning"] == "because"
    assert table["usage_prompt_tokens"].to_list() == [None] * 120 + [10]


@pytest.mark.parametrize(
    "changes",
    [{"token_ids": ["30"]}, {"usage": {"prompt_tokens": "ten"}}, {"messages": "hello"}, {"turn": "first"}],
    ids=["ids-are-text", "count-is-text", "messages-are-text", "turn-is-text"],
)
@pytest.mark.parametrize("batch_bytes", [1, 1 << 20])
def test_a_line_of_other_types_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], batch_bytes: int
) -> None:
    monkeypatch.setattr(responses, "BATCH_BYTES", batch_bytes)
    path = write(tmp_path / "r.jsonl", raw("talk:1"), raw("talk:2") | changes, raw("talk:3"))
    path.write_bytes(b"\n" + path.read_bytes())
    with pytest.raises(ArtifactError, match=r"(?s)does not fit the schema.*r\.jsonl:3"):
        read(path)


def test_equal_keys_stop_and_equal_ids_of_two_turns_do_not(tmp_path: Path) -> None:
    assert read(write(tmp_path / "r.jsonl", raw("talk:1"), raw("talk:1", turn=1))).height == 2
    with pytest.raises(ArtifactError, match="uniq"):
        read(write(tmp_path / "r.jsonl", raw("talk:1"), raw("talk:1")))


def test_all_rows_that_break_the_schema_are_counted_at_once(tmp_path: Path) -> None:
    rows = [raw("no-dataset"), raw("none-either"), raw("talk:1", prompt_hash="abc")]
    with pytest.raises(ArtifactError, match=r"sample_id: str_matches.*2 times.*prompt_hash: str_matches"):
        read(write(tmp_path / "r.jsonl", *rows))


def test_a_torn_file_stops(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", raw("talk:1"))
    path.write_bytes(path.read_bytes() + b'{"sample_id": "ta')
    with pytest.raises(EyasError, match=r"r\.jsonl:2"):
        read(path)


def test_a_file_that_is_no_text_stops(tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"sample_id": "\xff\xfe"}\n')
    with pytest.raises(ArtifactError, match=r"r\.jsonl"):
        read(path)


def test_a_missing_file_stops(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match=r"no such file(?s:.*)none\.jsonl"):
        read(tmp_path / "none.jsonl")


def test_unknown_keys_are_reported_with_their_place(tmp_path: Path) -> None:
    row = raw() | {"latency": 3}
    row["usage"] = {**row["usage"], "cached_tokens": 1}
    row["messages"] = [{**row["messages"][0], "name": "x"}]
    assert unknown_keys(write(tmp_path / "r.jsonl", raw("talk:1"), row)) == [
        "latency", "messages.name", "usage.cached_tokens",
    ]  # fmt: skip


def test_failed_turns_are_optional(tmp_path: Path) -> None:
    assert read_failed(tmp_path / "errors.jsonl").rows() == []
    error = {"sample_id": "a:1", "turn": 2, "kind": "transient", "reason": "abort", "detail": None}
    path = write(tmp_path / "errors.jsonl", error, error | {"turn": 3})
    assert read_failed(path).rows() == [("a:1", 2), ("a:1", 3)]
    path.write_bytes(b"")
    assert read_failed(path).schema == {"sample_id": pl.String, "turn": pl.Int32}


@pytest.mark.parametrize(
    "content",
    [
        None,
        "{}",
        '{"chat_template_kwargs": 3, "dialect": "vllm"}',
        '{"chat_template_kwargs": {}}',
        "[]",
        "no json",
    ],
)
def test_how_prompts_were_rendered_must_be_known(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "server_profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ArtifactError, match="chat_template_kwargs"):
        read_server_notes(path)


@pytest.mark.parametrize(("dialect", "text_only"), [("vllm", False), ("sglang", False), ("openai", True)])
def test_what_the_servers_were_is_read(tmp_path: Path, dialect: str, text_only: bool) -> None:
    path = tmp_path / "server_profile.json"
    path.write_text(json.dumps({"chat_template_kwargs": {"thinking": False}, "dialect": dialect}))
    notes = read_server_notes(path)
    assert (notes.template_kwargs, notes.text_only) == ({"thinking": False}, text_only)
