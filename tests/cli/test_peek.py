"""`eyas peek`: rows as a person reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from rich.console import Console

from eyas import jsonl, paths
from eyas.journal import Journal
from tests.cli.runs import URL, command, directory, make_run, publish
from tests.generate.counted import answer, failed, failed_entry, journal_entry, outcome

pytestmark = pytest.mark.usefixtures("repository")

ROW: dict[str, Any] = {
    "sample_id": "a:1",
    "dataset": "a",
    "messages": [{"role": "system", "content": "S"}, {"role": "user", "content": "Q\u200b?"}],
    "turn": 0,
    "reasoning": "R" * 400,
    "content": "\ufeffOne\u00a0two\n\t\u2028three</think> ",
    "tool_calls": None,
    "finish_reason": "length",
    "stop_reason": None,
    "usage": {"prompt_tokens": 4, "completion_tokens": 40, "reasoning_tokens": None},
    "prompt_token_ids": [5, 6, 7, 8],
    "token_ids": list(range(100, 140)),
    "model": "tiny",
    "flags": ["think_marker_in_content"],
}


def shown(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """What is printed, white space squeezed."""
    assert command("peek", *arguments) == 0
    return " ".join(capsys.readouterr().out.split())


def test_one_row_with_everything_that_can_not_be_seen(capsys: pytest.CaptureFixture[str]) -> None:
    publish("a", [ROW])
    text = shown(capsys, "a", "--chars", "20")
    for part in (
        "raw_responses.jsonl (published)",
        "a:1",
        "length flags: think_marker_in_content",
        "message 0 system 1 chars “S”",
        r"message 1 user 3 chars “Q\u200b?”",
        f"reasoning 400 chars “{'R' * 20} … 360 more … {'R' * 20}”",
        r"content 25 chars “\ufeffOne\xa0two\n\t\u2028three</think> ”",
        "</think> in content at character 16",
        "usage prompt_tokens 4, completion_tokens 40, reasoning_tokens null",
        "prompt_token_ids 4 ids 5 6 7 8",
        "token_ids 40 ids 100 101 102 103 104 105 106 107 … 132 133 134 135 136 137 138 139",
        'model "tiny"',
    ):
        assert part in text


def test_the_newest_rows_come_first_and_where_filters(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [
        ROW | {"sample_id": f"a:{number}", "finish_reason": "stop" if number % 2 else "length"}
        for number in range(6)
    ]
    publish("a", rows)
    text = shown(capsys, "a", "-n", "2")
    assert text.index("a:5") < text.index("a:4")
    assert "a:3" not in text
    text = shown(capsys, "a", "-n", "9", "--where", "finish_reason=length", "usage.completion_tokens=40")
    assert [f"a:{number}" in text for number in range(6)] == [True, False, True, False, True, False]
    assert "a:4" in shown(capsys, "--where", "finish_reason=length", "a")


def test_nothing_that_fits_says_what_there_is(capsys: pytest.CaptureFixture[str]) -> None:
    publish("a", [ROW, ROW | {"sample_id": "a:2", "finish_reason": "stop"}])
    assert command("peek", "a", "--where", "finish_reason=lenght") == 1
    said = capsys.readouterr().out
    assert "none of 2 answers fits; finish_reason is: " in said
    assert "length (1 times)" in said
    assert command("peek", "a", "--where", "finish=stop") == 1
    assert "finish is: (no such key) (2 times)" in capsys.readouterr().out
    assert command("peek", "a", "--sample", "a:9") == 1
    assert "no row has the sample id a:9" in capsys.readouterr().out


def test_all_turns_of_a_sample_and_its_failure(capsys: pytest.CaptureFixture[str]) -> None:
    with Journal(directory("a"), {}) as journal:
        for turn in (0, 1):
            journal.append(
                journal_entry(f"k{turn}", answer(content=f"turn {turn}"), sample_id="a:1", turn=turn)
            )
        journal.append(journal_entry("other", answer(content="other"), sample_id="a:11"))
        journal.append(failed_entry("k2", "context_length") | {"sample_id": "a:1", "turn": 2})
    text = shown(capsys, "a", "--sample", "a:1")
    assert (
        text.index("turn 0") < text.index("turn 1") < text.index("a:1 turn 2") < text.index("context_length")
    )
    assert "other" not in text.replace("other keys", "")


def test_errors_of_a_journal_are_rows_that_stayed_without_an_answer(
    capsys: pytest.CaptureFixture[str],
) -> None:
    make_run(
        "a",
        [
            failed("abort", sample_id="a:1"),
            outcome(answer(), sample_id="a:1"),
            failed("http_400", sample_id="a:2"),
        ],
        total=2,
    )
    text = shown(capsys, "a", "--errors", "-n", "5")
    assert "http_400 (permanent)" in text
    assert "“why”" in text
    assert "abort" not in text
    assert "a:2" in shown(capsys, "a", "--errors", "--where", "reason=http_400", "kind=permanent")
    assert command("peek", "a", "--errors", "--where", "reason=abort") == 1
    assert "none of 1 rows without an answer fits; reason is: http_400 (1 times)" in capsys.readouterr().out


def test_published_errors(capsys: pytest.CaptureFixture[str]) -> None:
    row = {
        "sample_id": "a:2",
        "dataset": "a",
        "turn": 1,
        "request_key": None,
        "kind": None,
        "reason": "earlier_turn_failed",
        "detail": None,
    }
    publish("a", [ROW], [row])
    assert "a:2 turn 1" in (text := shown(capsys, "a", "--errors"))
    assert "earlier_turn_failed (None)" in text
    assert "earlier_turn_failed" in shown(capsys, "a", "--sample", "a:2")
    publish("b", [ROW])
    assert command("peek", "b", "--errors") == 1
    assert "there are no rows without an answer" in capsys.readouterr().out


def test_a_journal_row_shows_its_prompt_and_its_markers(capsys: pytest.CaptureFixture[str]) -> None:
    make_run("a", [outcome(answer([901, 4, 902, 5], reasoning="R"), sample_id="a:1", url=URL)], total=1)
    path = paths.prompts("a")
    path.parent.mkdir(parents=True)
    pl.DataFrame({"sample_id": ["a:1"], "messages": [[{"role": "user", "content": "Why?"}]]}).write_parquet(
        path
    )
    text = shown(capsys, "a")
    assert "(journal, nothing is published)" in text
    assert "message 0 user 4 chars “Why?”" in text
    assert 'server {"url": "http://127.0.0.1:1/v1",' in text


def test_damaged_lines_are_shown_among_the_errors(capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_run("a", [outcome(answer())], total=2) / "rows.jsonl"
    size = rows.stat().st_size
    with rows.open("ab") as file:
        file.write(b"garbage\n" + b'{"torn":')
    text = shown(capsys, "a", "--errors")
    assert f"damaged line at byte {size}" in text
    assert "C" in shown(capsys, "a")


def test_the_schema_is_of_all_rows_not_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    rows: list[dict[str, Any]] = [
        {"sample_id": f"a:{number}", "reasoning": None, "flags": []} for number in range(150)
    ]
    rows[120] |= {"reasoning": "R\u00a0!", "usage": {"prompt_tokens": 3}, "flags": ["lossy_text"]}
    rows[130] |= {"reasoning": 7, "messages": [{"role": "user"}, {"role": "assistant", "content": None}]}
    path = publish("a", rows)
    with path.open("ab") as file:
        file.write(b"{\n")
    text = shown(capsys, "a", "--schema")
    for part in (
        "150 answers, all of them read",
        r"reasoning 150 148 int 1, text 1 3 to 3",
        "sample_id 150 text 3 to 5",
        "flags 150 list of text 0 to 1",
        "usage 1 object",
        "usage.prompt_tokens 1 int 3",
        "messages[].role 2 text",
        "messages[].content 1 1 null only",
        "damaged line at byte",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "needs a dataset"),
        (["a"], "no dataset has been generated"),
        (["a", "-n", "0"], "above 0"),
        (["--where", "x=1"], "needs a dataset"),
    ],
)
def test_what_can_not_be_shown_is_a_clear_error(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command("peek", *arguments) == 1
    assert message in capsys.readouterr().err


def test_looking_changes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    rows = make_run("a", [outcome(answer())], total=2) / "rows.jsonl"
    with rows.open("ab") as file:
        file.write(b'{"torn":')
    before = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in Path().rglob("*") if path.is_file()
    }
    for arguments in (["peek", "a"], ["peek", "a", "--schema"], ["status"], ["status", "a", "--json"]):
        assert command(*arguments) == 0
    after = {
        path: (path.stat().st_mtime_ns, path.read_bytes()) for path in Path().rglob("*") if path.is_file()
    }
    assert after == before


def test_case_G01_separators_in_a_published_row_split_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    publish("a", [ROW | {"content": "a\u2028b\u0085c\x0bd"}, ROW | {"sample_id": "a:2"}])
    text = shown(capsys, "a", "--sample", "a:1")
    assert r"content 7 chars “a\u2028b\x85c\x0bd”" in text


def test_a_row_without_an_id_is_named_by_its_place(capsys: pytest.CaptureFixture[str]) -> None:
    row = {key: value for key, value in ROW.items() if key != "sample_id"}
    publish("a", [ROW, row])
    assert f"row at byte {len(jsonl.encode(ROW))}" in shown(capsys, "a")


def test_a_sequence_is_shown_by_its_id(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def show(sequence_id: str, console: Console, *, ids: bool = False) -> int:
        asked.append((sequence_id, ids))
        return 3

    monkeypatch.setattr("eyas.cli.sequence.show", show)
    assert command("peek", "--sequence", "a:1#2") == 3
    assert command("peek", "--sequence", "a:1", "--ids") == 3
    assert asked == [("a:1#2", False), ("a:1", True)]


EVIL = "\x1b[31m \x9b31m \u202e \x7f"
"""What a terminal would obey."""


@pytest.mark.parametrize("arguments", [[], ["--schema"], ["--errors"], ["--errors", "--schema"]])
def test_nothing_that_a_terminal_would_obey_is_shown(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    evil: dict[str, Any] = {
        EVIL: [EVIL],
        "model": EVIL,
        "sample_id": EVIL,
        "content": EVIL,
        "stop_reason": EVIL,
    }
    evil |= {"messages": [{"role": f"[red]{EVIL}", "content": EVIL}]}
    failed_row = {"sample_id": EVIL, "kind": "content", "reason": EVIL, "detail": EVIL, "more": [EVIL]}
    publish("a", [ROW | evil], [failed_row])
    text = shown(capsys, "a", *arguments)
    assert "\\x1b[31m \\x9b31m \\u202e \\x7f" in text
    assert all(character.isprintable() or character == "\n" for character in text)
    if not arguments:
        assert "[red]" in text


@pytest.mark.parametrize(
    "odd", [{"at": "noon"}, {"token_ids": 7}, {"flags": [1]}, {"tool_calls": ["call"]}, {"messages": 3}]
)
def test_a_row_of_another_form_is_shown_all_the_same(
    odd: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    publish("a", [ROW | odd])
    text = shown(capsys, "a", "--chars", "2000")
    assert "a:1" in text
    assert "a row of another form" in text
    assert next(iter(odd)) in text
