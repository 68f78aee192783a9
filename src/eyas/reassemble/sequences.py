"""From validated responses to token sequences: prompt ids, then generated ids, exactly as the server sent them.

A finished turn is never rendered through the chat template and no text is tokenised: templates drop thinking,
add blocks and newlines, and one text has many tokenisations.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from eyas.errors import ArtifactError, GateError
from eyas.reassemble.params import ReassembleParams
from eyas.schema import Sequences, columns_of

HASH_DIGITS = 12
"""Hex digits of prompt_hash that decide the split."""


@dataclass(frozen=True)
class Assembled:
    """Sequences, and what was left out."""

    kept: pl.DataFrame
    """Schema Sequences."""
    dropped: pl.DataFrame
    """sample_id, dataset, reason: `truncated` or `too_long`."""


def assemble(rows: pl.DataFrame, params: ReassembleParams) -> Assembled:
    """Sequences of validated rows (schema Validated): one per response, in the same order.

    Raises:
        GateError: rows without token ids; names them.
    """
    _refuse_without_ids(rows)
    prompt, generated = pl.col("prompt_token_ids"), pl.col("token_ids")
    sequences = rows.select(
        "dataset",
        "sample_id",
        "prompt_hash",
        "truncated",
        "task",
        sequence_id="sample_id",
        token_ids=prompt.list.concat(generated),
        loss_mask=pl.lit(value=False)
        .repeat_by(prompt.list.len())
        .list.concat(pl.lit(value=True).repeat_by(generated.list.len())),
        num_prompt_tokens=prompt.list.len().cast(pl.Int32),
        num_generated_tokens=generated.list.len().cast(pl.Int32),
    ).with_columns(reason=_reason(params))
    return Assembled(
        kept=sequences.filter(pl.col("reason").is_null()).select(columns_of(Sequences).names()),
        dropped=sequences.filter(pl.col("reason").is_not_null()).select("sample_id", "dataset", "reason"),
    )


def in_val(val_share: float) -> pl.Expr:
    """Boolean: the training prompt belongs to `val`.

    Decided by its own hash, so that a prompt and all its duplicates are on one side and stay there when other
    prompts come or go. One exception: the prompt with the smallest hash is always in, so that `val` is never empty.
    """
    bucket = pl.col("prompt_hash").str.head(HASH_DIGITS).str.to_integer(base=16, dtype=pl.Int64)
    return (bucket < int(val_share * 16**HASH_DIGITS)) | (bucket == bucket.min())


def split(train: pl.DataFrame, evaluation: pl.DataFrame, val_share: float) -> dict[str, pl.DataFrame]:
    """The three splits, each sorted by sequence_id.

    Raises:
        ArtifactError: a training prompt is also an evaluation prompt.
        GateError: nothing is left to train on.
    """
    held_out = in_val(val_share)
    splits = {
        "train": train.filter(~held_out).sort("sequence_id"),
        "val": train.filter(held_out).sort("sequence_id"),
        "eval": evaluation.sort("sequence_id"),
    }
    overlap = train.join(evaluation.select("prompt_hash"), on="prompt_hash", how="semi")["sample_id"]
    if len(overlap):
        raise ArtifactError(
            f"{len(overlap)} training prompts are also evaluation prompts, for example {overlap[0]}",
            hint="the prompt tables are not of one run: dvc repro prompts",
        )
    if splits["train"].is_empty():
        raise GateError(
            f"no training sequence is left of {train.height}",
            hint="raise `reassemble.max_length`, lower `reassemble.val_share`, or add prompts",
        )
    return splits


def _reason(params: ReassembleParams) -> pl.Expr:
    length = pl.col("token_ids").list.len()
    too_long = pl.when(length > params.max_length).then(pl.lit("too_long"))
    if params.keep_truncated:
        return too_long
    return pl.when("truncated").then(pl.lit("truncated")).otherwise(too_long)


def _refuse_without_ids(rows: pl.DataFrame) -> None:
    ids = (pl.col("prompt_token_ids").list.len() > 0) & (pl.col("token_ids").list.len() > 0)
    without = rows.filter(~ids.fill_null(value=False))["sample_id"]
    if len(without):
        raise GateError(
            f"{len(without)} responses have no token ids, for example {', '.join(without.head(3))}",
            hint="sequences are only built from the server's own ids: use a server that returns token ids",
        )
