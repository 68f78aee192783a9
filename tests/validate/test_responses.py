from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.errors import ArtifactError
from eyas.schema import Responses, columns_of
from eyas.validate.responses import read_failed_ids, read_responses, read_template_kwargs, unknown_keys
from tests.hand_made import PROMPT_IDS, raw


def write(path: Path, *rows: Any) -> Path:
    path.write_bytes(b"".join(json.dumps(row, ensure_ascii=False).encode() + b"\n" for row in rows))
    return path


def test_a_line_becomes_a_row_and_keeps_its_text(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1]}'}}
    row = raw(content="a\u2028b\u0085c\r\nd", tool_calls=[call], stop_reason=2)
    table = read_responses(write(tmp_path / "r.jsonl", row))
    assert table.columns == [*columns_of(Responses).names(), "row"]
    read = table.row(0, named=True)
    assert read["content"] == "a\u2028b\u0085c\r\nd"
    assert read["tool_calls"] == [call]
    assert read["stop_reason"] == "2"
    assert read["prompt_token_ids"] == PROMPT_IDS
    assert (read["usage_prompt_tokens"], read["usage_reasoning_tokens"]) == (10, None)
    assert json.loads(read["row"]) == row


def test_case_G06_late_values_and_keys_are_read(tmp_path: Path) -> None:
    rows = [raw(f"talk:{number}", usage=None) for number in range(120)]
    late = raw("talk:late", reasoning="because", stop_reason="\n")
    table = read_responses(write(tmp_path / "r.jsonl", *rows, late))
    assert table.row(-1, named=True)["reasoning"] == "because"
    assert table["usage_prompt_tokens"].to_list() == [None] * 120 + [10]


@pytest.mark.parametrize(
    "changes",
    [{"token_ids": ["30"]}, {"usage": {"prompt_tokens": "ten"}}, {"messages": "hello"}],
    ids=["ids-are-text", "count-is-text", "messages-are-text"],
)
def test_a_line_of_other_types_is_named(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = write(tmp_path / "r.jsonl", raw("talk:1"), raw("talk:2") | changes, raw("talk:3"))
    with pytest.raises(ArtifactError, match=r"(?s)does not fit the schema.*r\.jsonl:2"):
        read_responses(path)


def test_equal_sample_ids_stop(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="sample_id: field_uniqueness"):
        read_responses(write(tmp_path / "r.jsonl", raw("talk:1"), raw("talk:1")))


def test_a_torn_file_stops(tmp_path: Path) -> None:
    path = write(tmp_path / "r.jsonl", raw("talk:1"))
    path.write_bytes(path.read_bytes() + b'{"sample_id": "ta')
    with pytest.raises(Exception, match=r"r\.jsonl:2"):
        read_responses(path)


def test_unknown_keys_are_reported_with_their_place(tmp_path: Path) -> None:
    row = raw() | {"latency": 3}
    row["usage"] = {**row["usage"], "cached_tokens": 1}
    row["messages"] = [{**row["messages"][0], "name": "x"}]
    assert unknown_keys(write(tmp_path / "r.jsonl", raw("talk:1"), row)) == [
        "latency", "messages.name", "usage.cached_tokens",
    ]  # fmt: skip


def test_failed_requests_are_optional(tmp_path: Path) -> None:
    assert read_failed_ids(tmp_path / "errors.jsonl").to_list() == []
    path = write(tmp_path / "errors.jsonl", {"sample_id": "a:1", "reason": "abort", "detail": None})
    assert read_failed_ids(path).to_list() == ["a:1"]
    path.write_bytes(b"")
    assert read_failed_ids(path).dtype == pl.String


@pytest.mark.parametrize("content", [None, "{}", '{"chat_template_kwargs": 3}', "no json"])
def test_how_prompts_were_rendered_must_be_known(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "server_profile.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ArtifactError, match="chat_template_kwargs"):
        read_template_kwargs(path)


def test_template_arguments_are_read(tmp_path: Path) -> None:
    path = tmp_path / "server_profile.json"
    path.write_text('{"chat_template_kwargs": {"thinking": false}, "model": "m"}')
    assert read_template_kwargs(path) == {"thinking": False}
