"""Which prompts of a training dataset are in other datasets too, turn by turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import polars as pl

from eyas.identity import prompt_hash
from eyas.turns import questions


@dataclass(frozen=True)
class Taken:
    """Prompts that a training dataset must not hold."""

    column: str
    """Of both sides: `asked` if no turn may be one of theirs, `prompt_hash` if no conversation may."""
    prompts: pl.DataFrame
    """`key` (prompt hash) and `owner` (sample_id)."""
    reason: str


def turn_hashes(messages: Sequence[Mapping[str, Any]]) -> list[str]:
    """The prompt hash of each turn that is generated, in order; that of the whole conversation is the last.

    Every turn is an answer to the questions up to it, so two conversations that begin alike share prompts.
    """
    asked: list[Mapping[str, Any]] = []
    hashes: list[str] = []
    for question in questions([dict(message) for message in messages]):
        asked += question
        hashes.append(prompt_hash(asked))
    return hashes


def overlap(prompts: pl.DataFrame, taken: Taken) -> pl.DataFrame:
    """The prompts (with `sample_id` and the column of `taken`) that are taken, as rejected rows."""
    owners = taken.prompts.unique("key", keep="first", maintain_order=True)
    found = keys(prompts, taken.column).join(owners, on="key", maintain_order="left")
    return found.unique("sample_id", keep="first", maintain_order=True).select(
        "sample_id", reason=pl.lit(taken.reason), detail=pl.format("the same prompt as {}", "owner")
    )


def keys(prompts: pl.DataFrame, column: str) -> pl.DataFrame:
    """`sample_id` and `key`, one row per prompt hash in the column."""
    found = prompts.select("sample_id", key=column)
    return found.explode("key") if column == "asked" else found
