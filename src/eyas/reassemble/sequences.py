"""From validated responses to token sequences: prompt ids, then generated ids, exactly as the server sent them.

A finished turn is never rendered through the chat template: templates drop thinking, add blocks and newlines.
Everything here is lazy, so that a table of any size passes through in pieces. `candidates` makes a sequence of every
row and says which must not be used; the index holds what is small of them, one row each, and decides and counts.
"""

from __future__ import annotations

import polars as pl

from eyas.answers import MISFILED_REASONING
from eyas.reassemble.kinds import with_kinds
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.split import DUPLICATE, opening
from eyas.schema import Sequences, columns_of
from eyas.target.spec import TargetProfile

BY_POLICY = ("truncated", "too_long", DUPLICATE)
"""Reasons for which good sequences are dropped."""
NO_IDS = "no_ids"
THINKING_LOST = "thinking_lost"
"""The server separated thinking from the answer, but the ids hold none."""
INDEX = pl.Schema(
    {
        "sequence_id": pl.String(),
        "dataset": pl.String(),
        "sample_id": pl.String(),
        "turn": pl.Int32(),
        "prompt_hash": pl.String(),
        "origin": pl.String(),
        "truncated": pl.Boolean(),
        "num_prompt_tokens": pl.Int32(),
        "num_generated_tokens": pl.Int32(),
        "prompt_print": pl.UInt64(),
        "generated_print": pl.UInt64(),
        "reason": pl.String(),
    }
)
"""What is kept of every answer: who it is, lengths, fingerprints of its ids, and why it makes no sequence."""


def candidates(
    rows: pl.LazyFrame, profile: TargetProfile, params: ReassembleParams, weight: float = 1.0
) -> pl.LazyFrame:
    """One sequence per row, in the same order: the columns of schema.Sequences, those of INDEX, and `opening`.

    `rows` has schema Validated and, where ids were made of text, `origin` and `refused` (why not). `reason` says why a
    sequence must not be used; null if it is good. `opening`: the conversation's first question.
    """
    rows = _cut(rows, params)
    prompt, generated = pl.col("prompt_token_ids"), pl.col("token_ids")
    sequence_id = (
        pl.when(pl.col("turn") == 0).then("sample_id").otherwise(pl.format("{}#{}", "sample_id", "turn"))
    )
    made = with_kinds(rows, profile).with_columns(
        sequence_id=sequence_id,
        num_prompt_tokens=prompt.list.len().cast(pl.Int32),
        num_generated_tokens=generated.list.len().cast(pl.Int32),
        weight=pl.lit(weight, dtype=pl.Float32),
        opening=opening(),
        prompt_print=prompt.hash(),
        generated_print=generated.hash(),
    )
    return made.with_columns(
        reason=_reason(params, thinks=profile.think is not None), token_ids=prompt.list.concat(generated)
    )


def index(sequences: pl.LazyFrame) -> pl.DataFrame:
    """What is small of `candidates`, one row each: INDEX."""
    return sequences.select(INDEX.names()).collect(engine="streaming")


def chosen(sequences: pl.LazyFrame) -> pl.LazyFrame:
    """The good ones: schema Sequences, in the same order."""
    return sequences.filter(pl.col("reason").is_null()).select(columns_of(Sequences).names())


def _cut(rows: pl.LazyFrame, params: ReassembleParams) -> pl.LazyFrame:
    """Fill in what rows of the ids path lack; with `too_long: cut`, shorten answers to what fits behind the prompt."""
    names = rows.collect_schema().names()
    if "origin" not in names:
        rows = rows.with_columns(origin=pl.lit("ids"), refused=pl.lit(None, dtype=pl.String))
    if params.too_long == "drop":
        return rows
    prompt = pl.col("prompt_token_ids").list.len().cast(pl.Int64)
    room = params.max_length - prompt
    long = (room > 0) & (pl.col("token_ids").list.len() > room)
    return rows.with_columns(
        token_ids=pl.when(long).then(pl.col("token_ids").list.head(room.clip(0))).otherwise("token_ids"),
        truncated=pl.col("truncated") | long.fill_null(value=False),
    )


def _reason(params: ReassembleParams, *, thinks: bool) -> pl.Expr:
    """Why a sequence must not be used: what is wrong with it first, then what params drop."""
    none = pl.lit(None, dtype=pl.String)
    has_ids = (pl.col("num_prompt_tokens") > 0) & (pl.col("num_generated_tokens") > 0)
    reasoned = pl.col("reasoning").fill_null("").str.strip_chars() != ""
    lost = reasoned & ~pl.col("thinks") & ~pl.col("flags").list.contains(MISFILED_REASONING)
    length = pl.col("num_prompt_tokens") + pl.col("num_generated_tokens")
    return pl.coalesce(
        "refused",
        pl.when(~has_ids.fill_null(value=False)).then(pl.lit(NO_IDS)),
        "broken",
        pl.when(lost).then(pl.lit(THINKING_LOST)) if thinks else none,
        none if params.keep_truncated else pl.when("truncated").then(pl.lit("truncated")),
        pl.when(length > params.max_length).then(pl.lit("too_long")),
    )
