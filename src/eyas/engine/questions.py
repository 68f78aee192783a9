"""What the engine is asked: held-out prompts as token ids, with the answers that are already known."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path

import polars as pl

from eyas.errors import ArtifactError

COLUMNS = ["sequence_id", "dataset", "task", "token_ids", "num_prompt_tokens"]


@dataclass(frozen=True)
class Question:
    """One held-out sequence, cut into prompt and answer."""

    sequence_id: str
    dataset: str
    task: str | None
    prompt_ids: list[int]
    answer_ids: list[int]
    """The stored generated tokens. As many are asked for, so that a greedy answer can be compared id by id."""


@dataclass(frozen=True)
class Level:
    """Questions asked with so many requests in flight, one dataset after another."""

    concurrency: int
    datasets: Mapping[str, Sequence[Question]]


def read_questions(path: Path) -> list[Question]:
    """All rows of a sequence table in the order of sequence_id.

    Raises:
        ArtifactError: no such table, or an empty one.
    """
    try:
        table = pl.read_parquet(path, columns=COLUMNS).sort("sequence_id")
    except (FileNotFoundError, pl.exceptions.PolarsError) as error:
        raise ArtifactError(
            f"can't read the sequences: {error}", where=str(path), hint="run `dvc repro reassemble`"
        ) from error
    if table.is_empty():
        raise ArtifactError(
            "no held-out sequence to ask the engine", where=str(path), hint="add an eval dataset"
        )
    return [
        Question(
            sequence_id=row["sequence_id"],
            dataset=row["dataset"],
            task=row["task"],
            prompt_ids=row["token_ids"][: row["num_prompt_tokens"]],
            answer_ids=row["token_ids"][row["num_prompt_tokens"] :],
        )
        for row in table.iter_rows(named=True)
    ]


def levels(questions: Sequence[Question], concurrency: Sequence[int], prompts_at_1: int) -> list[Level]:
    """Highest concurrency first; concurrency 1 asks a subset unless it is the only level."""
    return [
        Level(
            number,
            by_dataset(
                spread(questions, prompts_at_1) if number == 1 and len(concurrency) > 1 else questions
            ),
        )
        for number in sorted(concurrency, reverse=True)
    ]


def dealt(asked: Sequence[Level], rounds: int) -> list[list[Level]]:
    """The questions of every level dealt out to so many rounds, long and short answers alike; none of them is empty."""
    rounds = min(rounds, max(len(group) for group in asked[0].datasets.values()))
    dealt_out = []
    for number in range(rounds):
        levels_of_round = []
        for level in asked:
            datasets = {name: group[number::rounds] for name, group in level.datasets.items()}
            if datasets := {name: group for name, group in datasets.items() if group}:
                levels_of_round.append(Level(level.concurrency, datasets))
        dealt_out.append(levels_of_round)
    return dealt_out


def by_dataset(questions: Sequence[Question]) -> dict[str, list[Question]]:
    """Questions by dataset, longest answer first, so that few requests are left alone in flight at the end."""
    groups: dict[str, list[Question]] = {}
    for question in sorted(
        questions, key=lambda each: (each.dataset, -len(each.answer_ids), each.sequence_id)
    ):
        groups.setdefault(question.dataset, []).append(question)
    return groups


def spread(questions: Sequence[Question], count: int) -> list[Question]:
    """At most `count` questions, taken in turn from every dataset, and within it from every task."""
    tasks: dict[str, dict[str, list[Question]]] = {}
    for question in questions:
        tasks.setdefault(question.dataset, {}).setdefault(question.task or "", []).append(question)
    return _in_turn([_in_turn(list(groups.values())) for groups in tasks.values()])[:count]


def _in_turn(groups: Sequence[Sequence[Question]]) -> list[Question]:
    """The first of every group, then the second of every group, and so on."""
    return [question for turn in zip_longest(*groups) for question in turn if question is not None]
