from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.config import build
from eyas.engine.params import EngineParams
from eyas.engine.questions import by_dataset, dealt, levels, read_questions, spread
from eyas.errors import ArtifactError, ConfigError

from .examples import QUESTIONS, question


def write_table(path: Path, rows: list[dict[str, Any]]) -> None:
    schema: dict[str, Any] = {
        "sequence_id": pl.String,
        "dataset": pl.String,
        "task": pl.String,
        "token_ids": pl.List(pl.Int32),
        "num_prompt_tokens": pl.Int32,
    }
    pl.DataFrame(rows, schema=schema).write_parquet(path)


def test_rows_are_cut_where_the_prompt_ends(tmp_path: Path) -> None:
    path = tmp_path / "eval.parquet"
    write_table(
        path,
        [
            {"sequence_id": "b:1", "dataset": "b", "task": None, "token_ids": [7, 8], "num_prompt_tokens": 1},
            {
                "sequence_id": "a:1",
                "dataset": "a",
                "task": "t",
                "token_ids": [1, 2, 3],
                "num_prompt_tokens": 2,
            },
        ],
    )
    first, second = read_questions(path)
    assert (first.sequence_id, first.prompt_ids, first.answer_ids, first.task) == ("a:1", [1, 2], [3], "t")
    assert (second.sequence_id, second.prompt_ids, second.answer_ids) == ("b:1", [7], [8])


def test_no_table_and_an_empty_one_say_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="dvc repro reassemble"):
        read_questions(tmp_path / "eval.parquet")
    write_table(tmp_path / "eval.parquet", [])
    with pytest.raises(ArtifactError, match="no held-out sequence"):
        read_questions(tmp_path / "eval.parquet")


def test_longest_answers_are_asked_first() -> None:
    groups = by_dataset(QUESTIONS)
    assert {name: [each.sequence_id for each in group] for name, group in groups.items()} == {
        "a": ["a:1", "a:0"],
        "b": ["b:1", "b:0"],
    }


def test_a_subset_takes_datasets_and_tasks_in_turn() -> None:
    many = [question("a", n, [1], task=f"t{n // 3}") for n in range(9)] + [
        question("b", n, [1]) for n in range(2)
    ]
    assert [each.sequence_id for each in spread(many, 6)] == ["a:0", "b:0", "a:3", "b:1", "a:6", "a:1"]
    assert len(spread(many, 100)) == 11


def test_only_concurrency_1_asks_a_subset_and_comes_last() -> None:
    asked = levels(QUESTIONS, [1, 8, 4], prompts_at_1=2)
    assert [level.concurrency for level in asked] == [8, 4, 1]
    assert [sum(map(len, level.datasets.values())) for level in asked] == [4, 4, 2]
    (alone,) = levels(QUESTIONS, [1], prompts_at_1=2)
    assert sum(map(len, alone.datasets.values())) == 4


def test_rounds_deal_out_every_question_once() -> None:
    asked = levels([*QUESTIONS, question("b", 2, [1, 2])], [1, 8], prompts_at_1=1)
    first, second = dealt(asked, 2)
    assert [
        {name: [each.sequence_id for each in group] for name, group in level.datasets.items()}
        for level in first
    ] == [{"a": ["a:1"], "b": ["b:1", "b:0"]}, {"a": ["a:0"]}]
    assert [
        {name: [each.sequence_id for each in group] for name, group in level.datasets.items()}
        for level in second
    ] == [{"a": ["a:0"], "b": ["b:2"]}]
    assert [level.concurrency for level in second] == [8]  # nobody is left for concurrency 1


def test_there_are_no_empty_rounds() -> None:
    rounds = dealt(levels(QUESTIONS, [8], 1), 5)
    assert len(rounds) == 2
    assert sum(len(group) for (level,) in rounds for group in level.datasets.values()) == 4


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("concurrency", []),
        ("concurrency", [0, 8]),
        ("concurrency", [8, 8]),
        ("prompts_at_concurrency_1", 0),
        ("rounds", 0),
        ("sweep", []),
        ("sweep", [0, 3]),
        ("max_disagreement", 0.0),
        ("max_disagreement", 3),
        ("max_sampled_disagreement", 1.0),
    ],
)
def test_params_are_checked(key: str, value: Any) -> None:
    good = {
        "concurrency": [1, 8],
        "prompts_at_concurrency_1": 8,
        "rounds": 2,
        "sweep": None,
        "max_disagreement": 0.03,
        "max_sampled_disagreement": 0.04,
    }
    assert build("engine", EngineParams, good).sweep is None
    with pytest.raises(ConfigError, match=key):
        build("engine", EngineParams, good | {key: value})
