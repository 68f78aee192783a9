"""The prompt table of a dataset: normalised, each prompt once, nothing of the evaluation sets in training."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import polars as pl

from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.identity import prompt_hash
from eyas.prompts.normalise import normalise
from eyas.prompts.overlap import Taken, keys, overlap, turn_hashes
from eyas.prompts.params import PromptsParams
from eyas.prompts.rows import Problem, SourceRow, SourceRows
from eyas.prompts.sources import read_source
from eyas.prompts.tools import tools_text
from eyas.schema import PROMPTS_SCHEMA, REJECTED_PROMPTS_SCHEMA

Reader = Callable[[str, DatasetParams], SourceRows]

UNUSUAL_CHARACTERS = {
    "byte order mark": "\ufeff",
    "zero-width space": "\u200b",
    "replacement character U+FFFD": "\ufffd",
}
"""Counted, never removed: a cleaner would change what is trained on."""


@dataclass(frozen=True)
class PromptTables:
    """The prompts of a dataset, and the rows that are none."""

    prompts: pl.DataFrame
    """Schema Prompts, sorted by sample_id."""
    rejected: pl.DataFrame
    """Schema RejectedPrompts, sorted by sample_id."""
    unusual: dict[str, int]
    """Prompts that hold a character of UNUSUAL_CHARACTERS; those with none are absent."""
    unused: dict[str, int]
    """Keys of the source's rows that nothing reads, with how many rows have them."""


def build_prompts(
    name: str,
    datasets: Mapping[str, DatasetParams],
    params: PromptsParams,
    reader: Reader = read_source,
) -> PromptTables:
    """Read, normalise and deduplicate a dataset.

    Within a dataset the first row of the source keeps a prompt; among training datasets the first of
    params.yaml; an evaluation dataset keeps all of its own, and no training dataset may ask one of their turns.

    Raises:
        InputError: the source can't be read, or no prompt is left.
    """
    read = _read(name, datasets[name], params, reader)
    prompts, repeated = _first_of_each(read.prompts)
    rejected = [read.rejected, repeated]
    if datasets[name].role == "train":
        for taken in _taken(name, datasets, params, reader):
            taken_here = overlap(prompts, taken)
            prompts = prompts.join(taken_here, on="sample_id", how="anti")
            rejected.append(taken_here)
    every_rejected = pl.concat(rejected).sort("sample_id", "reason")
    _refuse_empty(name, prompts, every_rejected)
    table = prompts.select(PROMPTS_SCHEMA.names()).sort("sample_id")
    return PromptTables(table, every_rejected, _unusual(table), read.unused)


@dataclass(frozen=True)
class _Read:
    """A dataset as its source holds it."""

    prompts: pl.DataFrame
    """Schema Prompts, and `asked`: the prompt hash of every turn that is generated. In the order of the source."""
    rejected: pl.DataFrame
    """Schema RejectedPrompts."""
    unused: dict[str, int]


def _read(name: str, dataset: DatasetParams, params: PromptsParams, reader: Reader) -> _Read:
    source = reader(name, dataset)
    prompts: list[dict[str, Any]] = []
    rejected = [
        (f"{name}:{row.orig_id}", row.problem.reason, f"{row.where}: {row.problem.detail}")
        for row in source.rejected
    ]
    for row in source.rows:
        sample_id = f"{name}:{row.orig_id}"
        prompt = _prompt(row, dataset, params)
        if isinstance(prompt, Problem):
            rejected.append((sample_id, prompt.reason, f"{row.where}: {prompt.detail}"))
        else:
            prompts.append({"sample_id": sample_id, "dataset": name, **prompt})
    return _Read(
        pl.DataFrame(prompts, schema={**PROMPTS_SCHEMA, "asked": pl.List(pl.String)}),
        pl.DataFrame(rejected, schema=REJECTED_PROMPTS_SCHEMA, orient="row"),
        source.unused,
    )


def _prompt(row: SourceRow, dataset: DatasetParams, params: PromptsParams) -> dict[str, Any] | Problem:
    tools = tools_text(row.tools)
    if isinstance(tools, Problem):
        return tools
    messages = normalise(row.value, params, dataset.history, has_tools=tools is not None)
    if isinstance(messages, Problem):
        return messages
    return {
        "messages": messages,
        "tools": tools,
        "prompt_hash": prompt_hash(messages),
        "task": row.task,
        "asked": turn_hashes(messages),
    }


def _first_of_each(prompts: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    first = pl.col("sample_id").first().over("prompt_hash")
    repeated = prompts.filter(pl.col("sample_id") != first)
    kept = prompts.filter(pl.col("sample_id") == first)
    owners = kept.select("prompt_hash", owner="sample_id")
    return kept, repeated.join(owners, on="prompt_hash").select(
        "sample_id",
        reason=pl.lit("duplicate"),
        detail=pl.format("the same prompt as {}", "owner"),
    )


def _taken(
    name: str, datasets: Mapping[str, DatasetParams], params: PromptsParams, reader: Reader
) -> Iterator[Taken]:
    """What a training dataset must not hold: no turn of an evaluation set, no conversation of an earlier dataset."""
    names = list(datasets)
    evaluation = [other for other in names if datasets[other].role == "eval"]
    earlier = [other for other in names[: names.index(name)] if datasets[other].role == "train"]
    for others, column, reason in (
        (evaluation, "asked", "overlaps_evaluation"),
        (earlier, "prompt_hash", "duplicate_across_datasets"),
    ):
        for other in others:
            read = _read(other, datasets[other], params, reader).prompts
            yield Taken(column, keys(read, column).rename({"sample_id": "owner"}), reason)


def _refuse_empty(name: str, prompts: pl.DataFrame, rejected: pl.DataFrame) -> None:
    if prompts.is_empty():
        counts = rejected["reason"].value_counts(sort=True).rows()
        raise InputError(
            "no prompt is left",
            where=f"datasets.{name}",
            hint="rejected: " + ", ".join(f"{count} {reason}" for reason, count in counts),
        )


def _unusual(prompts: pl.DataFrame) -> dict[str, int]:
    content = pl.element().struct.field("content")
    counts = prompts.select(
        pl.col("messages")
        .list.eval(content.str.contains(character, literal=True))
        .list.any()
        .sum()
        .alias(label)
        for label, character in UNUSUAL_CHARACTERS.items()
    ).row(0, named=True)
    return {label: count for label, count in counts.items() if count}
