"""The prompt table of a dataset: normalised, each prompt once, nothing of the evaluation sets in training."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import polars as pl

from eyas.datasets import DatasetParams
from eyas.errors import InputError
from eyas.prompts.identity import prompt_hash
from eyas.prompts.normalise import Message, normalise
from eyas.prompts.params import PromptsParams
from eyas.prompts.rows import Problem, SourceRows
from eyas.prompts.sources import read_source
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


def build_prompts(
    name: str,
    datasets: Mapping[str, DatasetParams],
    params: PromptsParams,
    reader: Reader = read_source,
) -> PromptTables:
    """Read, normalise and deduplicate a dataset.

    Within a dataset the first row of the source keeps a prompt; among training datasets the first of
    params.yaml; an evaluation dataset keeps all of its own, and no training dataset may hold one of them.

    Raises:
        InputError: the source can't be read, or no prompt is left.
    """
    read, rejected = _normalised(name, datasets[name], params, reader)
    prompts, repeated = _first_of_each(read)
    rejected = pl.concat([rejected, repeated])
    taken = _taken(name, datasets, params, reader)
    if taken is not None:
        overlap = prompts.join(taken, on="prompt_hash", how="inner")
        prompts = prompts.join(taken, on="prompt_hash", how="anti")
        rejected = pl.concat([rejected, overlap.select(REJECTED_PROMPTS_SCHEMA.names())])
    _refuse_empty(name, prompts, rejected)
    return PromptTables(prompts.sort("sample_id"), rejected.sort("sample_id", "reason"), _unusual(prompts))


def _normalised(
    name: str, dataset: DatasetParams, params: PromptsParams, reader: Reader
) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Prompts in the order of the source, and rejected rows."""
    source = reader(name, dataset)
    prompts: list[tuple[str, str, list[Message], str, str | None]] = []
    rejected = [
        (f"{name}:{row.orig_id}", row.problem.reason, f"{row.where}: {row.problem.detail}")
        for row in source.rejected
    ]
    for row in source.rows:
        sample_id = f"{name}:{row.orig_id}"
        messages = normalise(row.value, params)
        if isinstance(messages, Problem):
            rejected.append((sample_id, messages.reason, f"{row.where}: {messages.detail}"))
        else:
            prompts.append((sample_id, name, messages, prompt_hash(messages), row.task))
    return (
        pl.DataFrame(prompts, schema=PROMPTS_SCHEMA, orient="row"),
        pl.DataFrame(rejected, schema=REJECTED_PROMPTS_SCHEMA, orient="row"),
    )


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
) -> pl.DataFrame | None:
    """Prompts that a training dataset must not hold: one row per prompt_hash with reason and detail."""
    if datasets[name].role == "eval":
        return None
    evaluation = [other for other, dataset in datasets.items() if dataset.role == "eval"]
    names = list(datasets)
    earlier = [other for other in names[: names.index(name)] if datasets[other].role == "train"]
    tables = [
        _normalised(other, datasets[other], params, reader)[0].select(
            "prompt_hash",
            reason=pl.lit(reason),
            detail=pl.format("the same prompt as {}", "sample_id"),
        )
        for reason, others in (("overlaps_evaluation", evaluation), ("duplicate_across_datasets", earlier))
        for other in others
    ]
    if not tables:
        return None
    return pl.concat(tables).unique("prompt_hash", keep="first", maintain_order=True)


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
