"""The set rule against hand-made conversations."""

from __future__ import annotations

import random
from itertools import accumulate, product
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas import tables
from eyas.errors import ArtifactError, GateError
from eyas.schema import MESSAGES
from eyas.turns import questions
from eyas.validate.turns import (
    asked_of,
    check_set,
    examples,
    generation_points,
    points_of,
    read_asked,
    to_generate,
)
from tests.hand_made import prompts, raw

CALLS = [{"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}]


def conversation(shape: str) -> list[dict[str, Any]]:
    """s system, u user, a given answer, c given tool call, t tool, o an empty assistant turn."""
    turns: dict[str, dict[str, Any]] = {
        "s": {"role": "system", "content": "be brief"},
        "u": {"role": "user", "content": "hello"},
        "a": {"role": "assistant", "content": "hi"},
        "c": {"role": "assistant", "tool_calls": CALLS},
        "t": {"role": "tool", "content": "3", "tool_call_id": "1"},
        "o": {"role": "assistant"},
    }
    return [turns[letter] for letter in shape]


@pytest.mark.parametrize(
    ("shape", "points"),
    [
        pytest.param("u", [1], id="one-question"),
        pytest.param("su", [2], id="system-is-given"),
        pytest.param("uu", [1, 2], id="each-user-turn"),
        pytest.param("suuu", [2, 3, 4], id="three-turns"),
        pytest.param("uau", [2], id="given-answer-is-history"),
        pytest.param("uauu", [2, 3], id="given-then-generated"),
        pytest.param("ut", [1, 2], id="tool-result"),
        pytest.param("utt", [1, 3], id="block-of-results"),
        pytest.param("uttu", [1, 3, 4], id="question-behind-results"),
        pytest.param("uct", [2], id="given-call"),
        pytest.param("utot", [1, 2, 3], id="two-blocks-parted"),
        pytest.param("uttotu", [1, 3, 4, 5], id="parted-and-going-on"),
        pytest.param("ua", [], id="nothing-to-ask"),
    ],
)
def test_generated_turns_of_a_conversation(shape: str, points: list[int]) -> None:
    table = pl.DataFrame({"messages": [conversation(shape)]}, schema={"messages": MESSAGES})
    assert table.select(generation_points(pl.col("messages"))).to_series().to_list() == [points]


def test_points_are_those_at_which_generation_asks() -> None:
    """`eyas.turns` cuts one conversation for asking; the set rule counts whole columns, and must come to the same."""
    rng = random.Random(3)
    shapes = ["".join(rng.choice("suuattoc") for _ in range(rng.randrange(1, 9))) for _ in range(400)]
    table = pl.DataFrame(
        {"messages": [conversation(shape) for shape in shapes]}, schema={"messages": MESSAGES}
    )
    points = table.select(generation_points(pl.col("messages"))).to_series().to_list()
    for shape, found in zip(shapes, points, strict=True):
        given = [
            sum(message["role"] != "assistant" for message in part) for part in questions(conversation(shape))
        ]
        assert found == list(accumulate(given)), shape
    assert len(set(map(len, points))) > 4


def test_points_are_the_same_where_a_conversation_asks_once() -> None:
    """Those that ask once are told without a look at every message: every sequence of up to four roles."""
    shapes = ["".join(roles) for length in range(1, 5) for roles in product("suat", repeat=length)]
    messages = pl.Series("messages", [conversation(shape) for shape in shapes], dtype=MESSAGES)
    plain = messages.to_frame().select(generation_points(pl.col("messages"))).to_series()
    assert points_of(messages).to_list() == plain.to_list()
    assert points_of(messages.head(0)).to_list() == []


def test_turns_to_generate_name_conversation_and_turn() -> None:
    rows = [raw(f"talk:{shape}", messages=conversation(shape)) for shape in ("uu", "su", "utt")]
    assert to_generate(asked_of(prompts(rows))).rows() == [
        ("talk:uu", 0), ("talk:uu", 1), ("talk:su", 0), ("talk:utt", 0), ("talk:utt", 1),
    ]  # fmt: skip


def keys(*names: str) -> pl.DataFrame:
    """`a:1` and `a:1#2` as a table of sample_id and turn."""
    parts = [(name.partition("#")[0], int(name.partition("#")[2] or 0)) for name in names]
    return pl.DataFrame(parts, schema={"sample_id": pl.String, "turn": pl.Int32}, orient="row")


EXPECTED = keys("a:1", "a:1#1", "a:2")


def test_set_rule_passes_when_each_turn_has_one_outcome() -> None:
    check_set(EXPECTED, keys("a:2", "a:1"), keys("a:1#1"))


@pytest.mark.parametrize(
    ("answered", "failed", "message"),
    [
        pytest.param(["a:1", "a:2"], [], r"1 turns have neither an answer nor an error \(a:1#1\)", id="lost"),
        pytest.param([], [], r"3 turns have neither .* \(a:1, a:1#1, a:2\)", id="all-lost"),
        pytest.param(
            ["a:1", "a:1#1", "a:2", "b:9"], [], r"1 turns are not in the prompt table \(b:9\)", id="foreign"
        ),
        pytest.param(
            ["a:1", "a:1#1", "a:2", "a:2#1"], [], r"not in the prompt table \(a:2#1\)", id="foreign-turn"
        ),
        pytest.param(
            ["a:1", "a:1#1", "a:2"], ["a:2"], r"1 turns have more than one outcome \(a:2\)", id="both"
        ),
        pytest.param(
            ["a:1", "a:1#1", "a:1#1", "a:2"], [], r"more than one outcome \(a:1#1\)", id="answered-twice"
        ),
        pytest.param(
            ["a:1", "a:2"], ["a:1#1", "a:1#1"], r"more than one outcome \(a:1#1\)", id="failed-twice"
        ),
        pytest.param(
            ["a:1", "a:1", "a:2"], [], r"neither .* \(a:1#1\); 1 turns have more", id="two-problems"
        ),
    ],
)
def test_case_H02_lost_foreign_and_repeated_turns_stop(
    answered: list[str], failed: list[str], message: str
) -> None:
    with pytest.raises(GateError, match=message):
        check_set(EXPECTED, keys(*answered), keys(*failed))


def test_examples_are_few_and_sorted() -> None:
    assert examples(keys("a:9", "a:3#1", "a:3", "a:5")) == "a:3, a:3#1, a:5, ..."
    assert examples(keys("a:9")) == "a:9"


def test_a_prompt_table_is_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "ROW_GROUP", 7)
    table = prompts(
        [raw(f"talk:{number:02}", messages=conversation("u" * (number % 3 + 1))) for number in range(40)]
    )
    table.write_parquet(tmp_path / "p.parquet", row_group_size=5)
    assert read_asked(tmp_path / "p.parquet").equals(asked_of(table))
    prompts([]).write_parquet(tmp_path / "empty.parquet")
    assert read_asked(tmp_path / "empty.parquet").is_empty()
    twice = table.vstack(table[:1].with_columns(prompt_hash=pl.lit("0" * 64)))
    twice.write_parquet(tmp_path / "twice.parquet")
    with pytest.raises(ArtifactError, match="talk:00 stands in 2 rows"):
        read_asked(tmp_path / "twice.parquet")


@pytest.mark.parametrize("content", [None, b"no table"])
def test_what_is_no_prompt_table_stops(tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "p.parquet"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ArtifactError, match=r"not a readable Parquet file(?s:.*)p\.parquet"):
        read_asked(path)


def test_a_prompt_table_of_other_columns_stops(tmp_path: Path) -> None:
    prompts([raw()]).drop("tools").write_parquet(tmp_path / "p.parquet")
    with pytest.raises(ArtifactError, match="not a Prompts table"):
        read_asked(tmp_path / "p.parquet")
