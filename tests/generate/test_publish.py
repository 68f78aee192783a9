"""From the journal to data/responses/X."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.errors import GateError
from eyas.generate.publish import Published
from eyas.generate.record import Usage
from eyas.journal import Journal
from eyas.schema import FAILED_REQUEST, RAW_RESPONSE, Responses, check, columns_of
from eyas.validate.responses import unknown_keys
from tests.generate.example import generate_params
from tests.generate.talking import (
    PARAMS,
    Message,
    answer,
    answered,
    call,
    open_journal,
    refused,
    responses,
    tool,
    user,
    write_table,
)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    with open_journal(tmp_path / "journal") as opened:
        yield opened


def converse(
    directory: Path, journal: Journal, conversations: Sequence[Sequence[Message]], *replies: Any
) -> Any:
    """Ask all; an answer or the name of a failure for each request in order. Returns the responses."""
    table = write_table(directory / "talk.parquet", *conversations)
    made = responses(table, journal)
    left = iter(replies)
    for conversation in made.pending():
        while (request := conversation.next()) is not None:
            reply = next(left)
            if isinstance(reply, str):
                journal.append(refused(request, reply))
                conversation.end()
            else:
                journal.append(answered(request, reply))
                conversation.add(reply)
    return made


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def decoded(path: Path) -> pl.DataFrame:
    """raw_responses.jsonl with the columns of schema.Responses."""
    rows = pl.Series("row", path.read_text().splitlines(), dtype=pl.String).str.json_decode(RAW_RESPONSE)
    usage = pl.col("usage").name.prefix_fields("usage_")
    return rows.struct.unnest().with_columns(usage).unnest("usage").select(columns_of(Responses).names())


def test_a_row_per_generated_turn_and_one_error_per_turn_without(tmp_path: Path, journal: Journal) -> None:
    talks = [
        [user("a"), user("b"), user("c"), user("c")],
        [user("d"), tool("r"), user("e")],
        [user("f"), user("g")],
    ]
    made = converse(
        tmp_path, journal, talks,
        answer("A"), "http_500",
        answer("D"),
        answer("F", finish_reason="length"),
    )  # fmt: skip
    done = made.publish(tmp_path / "out")
    assert done == Published(rows=3, failed=3, ended=3, truncated=1, tokens=9)
    rows = lines(tmp_path / "out/raw_responses.jsonl")
    assert [(row["sample_id"], row["turn"], row["content"]) for row in rows] == [
        ("talk:0000", 0, "A"),
        ("talk:0001", 0, "D"),
        ("talk:0002", 0, "F"),
    ]
    errors = lines(tmp_path / "out/errors.jsonl")
    assert [list(error) for error in errors] == [
        ["sample_id", "dataset", "turn", "request_key", "kind", "reason", "detail"]
    ] * 6
    assert [(e["sample_id"], e["turn"], e["kind"], e["reason"]) for e in errors] == [
        ("talk:0000", 1, "transient", "http_500"),
        ("talk:0000", 2, None, "earlier_turn_failed"),
        ("talk:0000", 3, None, "earlier_turn_failed"),
        ("talk:0001", 1, "content", "tool_calls_differ"),
        ("talk:0001", 2, None, "earlier_turn_failed"),
        ("talk:0002", 1, "content", "truncated_history"),
    ]
    assert [error["request_key"] is None for error in errors] == [False, True, True, True, True, True]
    assert [error["detail"] for error in errors[1:3]] == ["turn 1: http_500"] * 2
    assert errors[4]["detail"] == "turn 1: tool_calls_differ"
    assert not {row["request_key"] for row in rows} & {error["request_key"] for error in errors}


def test_a_row_holds_what_was_asked_and_what_came(tmp_path: Path, journal: Journal) -> None:
    first = answer(None, reasoning="R", tool_calls=[call("c1")], finish_reason="tool_calls", stop_reason=7)
    last = answer(
        "done", flags=["lossy_text"], prompt_token_ids=None, token_ids=None, usage=Usage(9, 4, None)
    )
    table = write_table(tmp_path / "talk.parquet", [user("a"), tool("r")], tools='[{"x":1}]')
    made = responses(table, journal)
    [conversation] = made.pending()
    for reply in (first, last):
        request = conversation.next()
        assert request is not None
        journal.append(answered(request, reply))
        conversation.add(reply)
    assert made.publish(tmp_path / "out").tokens == 3 + 4
    rows = lines(tmp_path / "out/raw_responses.jsonl")
    asked = [user("a")]
    said = {"role": "assistant", "reasoning": "R", "tool_calls": [call("c1")]}
    assert [row["messages"] for row in rows] == [asked, [*asked, said, tool("r", "c1")]]
    assert [row["tools"] for row in rows] == ['[{"x":1}]'] * 2
    assert request is not None
    assert rows[1]["request_key"] == request.key
    assert {name: rows[1][name] for name in ("content", "flags", "token_ids", "usage", "model")} == {
        "content": "done",
        "flags": ["lossy_text"],
        "token_ids": None,
        "usage": {"prompt_tokens": 9, "completion_tokens": 4, "reasoning_tokens": None},
        "model": "m",
    }
    assert list(rows[0]) == list(RAW_RESPONSE.to_schema())


def test_prompts_never_asked_are_said_to_be(tmp_path: Path, journal: Journal) -> None:
    made = converse(tmp_path, journal, [[user("a")]], answer())
    table = write_table(tmp_path / "more.parquet", [user("a")], [user("b"), user("c")])
    made = responses(table, journal)
    assert made.publish(tmp_path / "out") == Published(rows=1, failed=2, tokens=3)
    assert [(e["turn"], e["reason"]) for e in lines(tmp_path / "out/errors.jsonl")] == [
        (0, "not_asked"),
        (1, "earlier_turn_failed"),
    ]


def test_what_a_server_refused_for_good_is_asked_again_only_on_request(
    tmp_path: Path, journal: Journal
) -> None:
    table = write_table(tmp_path / "talk.parquet", [user("a"), user("b")], [user("c")])
    made = responses(table, journal)
    first, second = made.pending()
    for conversation, kind in ((first, "permanent"), (second, "transient")):
        request = conversation.next()
        assert request is not None
        entry = refused(request, "context_length")
        journal.append(entry | {"error": entry["error"] | {"kind": kind}})
    pending = responses(table, journal).pending()
    assert (pending.turns, [talk.sample_id for talk in pending]) == (1, ["talk:0001"])
    again = responses(table, journal).pending(refused=True)
    assert (again.turns, [talk.sample_id for talk in again]) == (3, ["talk:0000", "talk:0001"])


@pytest.mark.parametrize(
    ("failed", "allowed", "stops"),
    [(0, 0.0, False), (1, 0.0, True), (1, 0.1, False), (2, 0.1, True), (5, 0.5, False), (6, 0.5, True)],
)
def test_the_share_of_failed_turns_decides(
    tmp_path: Path, journal: Journal, failed: int, allowed: float, stops: bool
) -> None:
    talks = [[user(str(number))] for number in range(10)]
    converse(tmp_path, journal, talks, *["http_500"] * failed, *[answer()] * (10 - failed))
    params = generate_params(max_failed_share=allowed)
    table = write_table(tmp_path / "talk.parquet", *talks)
    made = responses(table, journal, params)
    if not stops:
        assert made.publish(tmp_path / "out").failed == failed
        return
    with pytest.raises(GateError, match=f"{failed} of 10 turns have no answer.*http_500 {failed}") as caught:
        made.publish(tmp_path / "out")
    assert caught.value.where == "talk:0000"
    assert not (tmp_path / "out").exists()


def test_turns_that_could_not_be_asked_are_no_failures(tmp_path: Path, journal: Journal) -> None:
    talks = [[user(str(number)), tool("r"), user("more"), user("end")] for number in range(4)]
    converse(tmp_path, journal, talks, *[answer()] * 4)
    table = write_table(tmp_path / "talk.parquet", *talks)
    done = responses(table, journal, generate_params(max_failed_share=0.0)).publish(tmp_path / "out")
    assert (done.rows, done.failed, done.ended) == (4, 0, 12)


def test_a_dataset_without_prompts_is_an_error(tmp_path: Path, journal: Journal) -> None:
    table = write_table(tmp_path / "talk.parquet")
    with pytest.raises(GateError, match="no prompts"):
        responses(table, journal, PARAMS).check()


def test_what_the_journal_holds_is_published_whatever_the_order(tmp_path: Path) -> None:
    talks = [[user("a"), user("b")], [user("a")], [user("c")]]
    replies = {"a": answer("A"), "b": answer("B"), "c": answer("C")}
    for name, turn in (("one", 1), ("two", -1)):
        with open_journal(tmp_path / name) as journal:
            table = write_table(tmp_path / "talk.parquet", *talks)
            made = responses(table, journal)
            for conversation in list(made.pending())[::turn]:
                while (request := conversation.next()) is not None:
                    reply = replies[request.messages[-1]["content"]]
                    journal.append(answered(request, reply))
                    conversation.add(reply)
            made.publish(tmp_path / f"out-{name}")
    for file in (tmp_path / "out-one").iterdir():
        assert file.read_bytes() == (tmp_path / "out-two" / file.name).read_bytes()


def test_published_rows_fit_the_tables(tmp_path: Path, journal: Journal) -> None:
    made = converse(tmp_path, journal, [[user("a"), user("b")]], answer(reasoning="R"), "http_500")
    made.publish(tmp_path / "out")
    check(Responses, decoded(tmp_path / "out/raw_responses.jsonl"), "rows")
    errors = pl.read_ndjson(tmp_path / "out/errors.jsonl", schema=FAILED_REQUEST.to_schema())
    assert errors.rows() == [("talk:0000", 1)]
    assert unknown_keys(tmp_path / "out/raw_responses.jsonl") == []


def test_case_G08_a_field_that_is_null_or_absent_for_100_rows_is_read_from_row_101(
    tmp_path: Path, journal: Journal
) -> None:
    """Reading infers nothing: reasoning, tool calls, usage and history keys first seen late are all there."""
    late = answer("x", reasoning="R", tool_calls=[call("c1")], usage=Usage(1, 2, 3), flags=["lossy_text"])
    plain = answer("x", usage=Usage(None, None, None))
    talks: list[list[Message]] = [[user(f"{number}")] for number in range(100)]
    converse(tmp_path, journal, [*talks, [user("late"), tool("r")]], *[plain] * 100, late, plain)
    made = responses(write_table(tmp_path / "t.parquet", *talks, [user("late"), tool("r")]), journal)
    made.publish(tmp_path / "out")
    path = tmp_path / "out/raw_responses.jsonl"
    table = decoded(path)
    assert table.height == 102
    assert table["reasoning"].to_list() == [None] * 100 + ["R", None]
    assert table["usage_reasoning_tokens"].to_list() == [None] * 100 + [3, None]
    assert table["tool_calls"][100].to_list() == [call("c1")]
    assert table["messages"][101].to_list()[1]["reasoning"] == "R"
    assert table["messages"][101].to_list()[2]["tool_call_id"] == "c1"
    with path.open("ab") as file:
        file.write(path.read_bytes().splitlines()[0].replace(b'"turn":0', b'"turn":1,"novel":[1]') + b"\n")
    assert unknown_keys(path) == ["novel"]
    assert decoded(path).height == 103
