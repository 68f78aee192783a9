from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import ArtifactError, GateError
from eyas.identity import prompt_hash
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.publish import check_files, write_sequences
from eyas.reassemble.sequences import candidates
from eyas.reassemble.split import check_split, in_val, smallest_bucket
from tests.hand_made import END, PROMPT_IDS, profile, raw, validated

PARAMS = ReassembleParams(val_share=0.25, max_length=100, keep_truncated=True)
Row = dict[str, Any]

hashes = st.lists(st.text(min_size=1), unique=True, min_size=1, max_size=30).map(
    lambda texts: [hashlib.sha256(text.encode()).hexdigest() for text in texts]
)


def held_out(split_hashes: list[str], share: float) -> list[bool]:
    table = pl.DataFrame({"split_hash": split_hashes, "reason": None}, schema_overrides={"reason": pl.String})
    return table.select(in_val(share, smallest_bucket(table))).to_series().to_list()


@given(hashes, st.floats(0.01, 0.99))
def test_split_is_decided_by_the_hash_alone(split_hashes: list[str], share: float) -> None:
    sides = dict(zip(split_hashes, held_out(split_hashes, share), strict=True))
    smallest = min(split_hashes)
    assert sides[smallest]
    for split_hash, side in sides.items():
        assert side == (int(split_hash[:12], 16) < int(share * 16**12) or split_hash == smallest)
    assert held_out(split_hashes[::-1] * 2, share) == list(sides.values())[::-1] * 2


def test_split_share_is_kept_and_a_larger_one_only_adds() -> None:
    split_hashes = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(5000)]
    small, large = held_out(split_hashes, 0.06), held_out(split_hashes, 0.2)
    assert abs(sum(small) / 5000 - 0.06) < 0.01
    assert all(large[place] for place, side in enumerate(small) if side)


def ids_of(text: str) -> list[int]:
    """Some ids that stand for a text."""
    return [20 + byte % 20 for byte in hashlib.sha256(text.encode()).digest()]


def turns(sample_id: str, *questions: str, system: str | None = None, **changes: Any) -> list[Row]:
    """The rows of a conversation whose answers repeat the question."""
    asked = [{"role": "user", "content": question} for question in questions]
    messages: list[Row] = [] if system is None else [{"role": "system", "content": system}]
    rows = []
    for turn, question in enumerate(asked):
        messages = [*messages, question]
        values = {
            "turn": turn,
            "prompt_hash": prompt_hash(asked),
            "messages": messages,
            "prompt_token_ids": [*ids_of(json.dumps(messages)), *PROMPT_IDS],
            "token_ids": [*ids_of(question["content"]), END],
        }
        rows.append(raw(sample_id, **(values | changes)))
        messages = [*messages, {"role": "assistant", "content": question["content"]}]
    return rows


def question_hash(question: str) -> str:
    return prompt_hash([{"role": "user", "content": question}])


def sequences(train: list[Row], evaluation: list[Row]) -> dict[str, pl.LazyFrame]:
    tables = {"quiz": evaluation, "talk": train}
    return {name: candidates(validated(rows).lazy(), profile(), PARAMS) for name, rows in tables.items()}


def write(folder: Path, train: list[Row], evaluation: list[Row], share: float) -> pl.DataFrame:
    """The index of sequences that lie in a folder."""
    roles = {"talk": "train", "quiz": "eval"}
    return write_sequences(folder, sequences(train, evaluation), roles, share, question_hash)


def indexed(train: list[Row], evaluation: list[Row], share: float) -> pl.DataFrame:
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder), train, evaluation, share)


def test_answers_to_one_question_are_split_by_its_prompt_hash() -> None:
    rows = [
        row
        for number in range(40)
        for row in turns(f"talk:{number:02}", f"Question {number}?", system="Talk.")
    ]
    table = indexed(rows, [], 0.3)
    assert table["split_hash"].to_list() == [row["prompt_hash"] for row in rows]
    expected = ["val" if int(row["prompt_hash"][:12], 16) < int(0.3 * 16**12) else "train" for row in rows]
    assert min(row["prompt_hash"] for row in rows) < "4"  # the smallest is below the share anyway
    assert table["split"].to_list() == expected
    assert set(expected) == {"train", "val"}


def test_conversations_that_begin_alike_never_straddle() -> None:
    rows = [
        row
        for number in range(60)
        for row in turns(f"talk:{number:02}", f"Begin {number % 12}", f"and {number}", f"then {number}")
    ]
    table = indexed(rows, [], 0.4)
    begins = pl.Series("begins", [row["messages"][0]["content"] for row in rows])
    sides = table.with_columns(begins).drop_nulls("split").group_by("begins").agg(pl.col("split").n_unique())
    assert sides["split"].to_list() == [1] * 12
    assert set(table["split"].drop_nulls()) == {"train", "val"}
    assert table["prompt_hash"].n_unique() == 60


def test_a_system_message_and_spelling_do_not_move_a_conversation() -> None:
    rows = [
        *turns("talk:1", "Say  Hello", "More"),
        *turns("talk:2", "say hello", "Less", system="Be kind."),
        *turns("talk:3", "say hello"),
    ]
    assert indexed(rows, [], 0.5)["split_hash"].unique().to_list() == [question_hash("say hello")]


def test_the_same_turn_of_two_conversations_is_kept_once() -> None:
    rows = [
        *turns("talk:1", "Begin", "One"),
        *turns("talk:2", "Begin", "Two"),
        *turns("talk:3", "Begin"),
        *turns("talk:4", "Another"),
    ]
    table = indexed(rows, [], 0.01)
    duplicates = table.filter(reason="duplicate")
    assert duplicates["sequence_id"].to_list() == ["talk:2", "talk:3"]
    assert duplicates["split"].to_list() == [None, None]
    kept = table.filter(pl.col("split").is_not_null())["sequence_id"].to_list()
    assert kept == ["talk:1", "talk:1#1", "talk:2#1", "talk:4"]


def test_other_tokens_or_another_border_are_no_duplicate() -> None:
    first = turns("talk:1", "Begin")[0]
    moved: Row = {"prompt_token_ids": first["prompt_token_ids"][:-1], "token_ids": [10, *first["token_ids"]]}
    answer: Row = {"token_ids": [30, END]}
    rows = [first, *turns("talk:2", "Begin", **answer), *turns("talk:3", "Begin", **moved)]
    assert indexed(rows, [], 0.01)["reason"].null_count() == 3


def test_a_bad_answer_is_no_first_one_and_keeps_its_reason() -> None:
    rows = [
        *turns("talk:1", "Begin", token_ids=[]),
        *turns("talk:2", "Begin", token_ids=[]),
        *turns("talk:3", "Begin"),
        *turns("talk:4", "Another"),
    ]
    table = indexed(rows, [], 0.01)
    assert table["reason"].to_list() == ["no_ids", "no_ids", None, None]


def test_a_prompt_of_evaluation_is_not_trained_on_whatever_the_answer() -> None:
    train = [*turns("talk:1", "Begin", "One", token_ids=[30, END]), *turns("talk:2", "Another")]
    evaluation = [*turns("quiz:1", "Begin", "Two"), *turns("quiz:2", "Begin", "Three")]
    table = indexed(train, evaluation, 0.01)
    assert table.filter(reason="duplicate")["sequence_id"].to_list() == ["talk:1"]
    assert table.filter(split="eval").height == 4  # what evaluation holds twice stays


def test_the_files_hold_what_the_index_says(tmp_path: Path) -> None:
    train = [row for name in ("1", "2", "3", "5", "7") for row in turns(f"talk:{name}", "Begin", name)]
    train += [*turns("talk:8", "Another"), *turns("talk:9", "Third", token_ids=None)]
    evaluation = [*turns("quiz:1", "Fourth"), *turns("quiz:2", "Fifth")]
    table = write(tmp_path, train, evaluation, 0.3)
    for split in ("train", "val", "eval"):
        written = pl.read_parquet(tmp_path / f"{split}.parquet")
        assert written["sequence_id"].to_list() == table.filter(split=split)["sequence_id"].to_list()
    unused = table.filter(pl.col("split").is_null())["sequence_id"].to_list()
    assert unused == ["talk:2", "talk:3", "talk:5", "talk:7", "talk:9"]
    check_files(tmp_path, table, profile())


def test_a_side_without_sequences_is_an_empty_file(tmp_path: Path) -> None:
    train = [*turns("talk:1", "Begin"), *turns("talk:2", "Another")]
    write(tmp_path, train, [], 0.01)
    assert pl.read_parquet(tmp_path / "eval.parquet").is_empty()
    assert pl.read_parquet(tmp_path / "train.parquet").height == 1


def test_an_evaluation_prompt_in_training_stops() -> None:
    rows = [*turns("talk:1", "Begin"), *turns("talk:2", "Another")]
    overlapping = turns("quiz:1", "begin")  # other tokens, the same prompt
    table = indexed(rows, overlapping, 0.3)
    with pytest.raises(
        ArtifactError, match="1 training prompts are also evaluation prompts, for example talk:1"
    ):
        check_split(table)


def test_nothing_to_train_on_stops() -> None:
    with pytest.raises(GateError, match="no training sequence is left of 1"):
        check_split(indexed(turns("talk:1", "Begin"), [], 0.3))  # one prompt: it is the held-out one


def test_two_sequences_of_one_id_stop() -> None:
    rows = [raw("talk:1", turn=1), raw("talk:1#1", prompt_token_ids=[1, 2])]
    with pytest.raises(GateError, match="1 sequences are there more than once, for example talk:1#1"):
        indexed(rows, [], 0.3)
