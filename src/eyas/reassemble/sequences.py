"""From validated responses to token sequences: prompt ids, then generated ids, exactly as the server sent them.

A finished turn is never rendered through the chat template: templates drop thinking, add blocks and newlines.
Everything here is lazy, so that a table of any size passes through in pieces. `candidates` makes a sequence of every
row and says which must not be used; `index` holds what is small of them, one row each, and decides and counts.
"""

from __future__ import annotations

import polars as pl

from eyas.answers import MISFILED_REASONING
from eyas.errors import ArtifactError, GateError
from eyas.reassemble.kinds import with_kinds
from eyas.reassemble.params import ReassembleParams
from eyas.schema import Sequences, columns_of
from eyas.target.spec import TargetProfile

HASH_DIGITS = 12
"""Hex digits of prompt_hash that decide the split."""
BY_POLICY = ("truncated", "too_long")
"""Reasons for which params drop good sequences."""
NO_IDS = "no_ids"
THINKING_LOST = "thinking_lost"
"""The server separated thinking from the answer, but the ids hold none."""


def candidates(
    rows: pl.LazyFrame, profile: TargetProfile, params: ReassembleParams, weight: float = 1.0
) -> pl.LazyFrame:
    """One sequence per row, in the same order: the columns of schema.Sequences, and those of `index`.

    `rows` has schema Validated and, where ids were made of text, `origin` and `refused` (why not). `reason` says why a
    sequence must not be used; null if it is good.
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
        prompt_print=prompt.hash(),
        generated_print=generated.hash(),
    )
    return made.with_columns(
        reason=_reason(params, thinks=profile.think is not None), token_ids=prompt.list.concat(generated)
    )


def index(sequences: pl.LazyFrame) -> pl.DataFrame:
    """What is small of `candidates`, one row each: who it is, lengths, fingerprints of its ids, `reason`."""
    columns = (
        "sequence_id",
        "dataset",
        "sample_id",
        "turn",
        "prompt_hash",
        "origin",
        "truncated",
        "num_prompt_tokens",
        "num_generated_tokens",
        "prompt_print",
        "generated_print",
        "reason",
    )
    return sequences.select(columns).collect(engine="streaming")


def chosen(sequences: pl.LazyFrame, held_out: pl.Expr | None = None) -> pl.LazyFrame:
    """The good ones, of one side of the split if given: schema Sequences, in the same order."""
    good = sequences.filter(pl.col("reason").is_null())
    if held_out is not None:
        good = good.filter(held_out)
    return good.select(columns_of(Sequences).names())


def smallest_bucket(train: pl.DataFrame) -> int:
    """The bucket of the prompt that is always held out; `train` is the index of the training rows."""
    smallest = train.filter(pl.col("reason").is_null()).select(_bucket().min()).item()
    return 0 if smallest is None else int(smallest)


def in_val(val_share: float, smallest: int) -> pl.Expr:
    """Boolean: the training prompt belongs to `val`.

    Decided by its own hash, so that a conversation, its turns and all its duplicates are on one side and stay there when
    other prompts come or go. One exception: the prompt with the smallest hash is always in, so that `val` is never
    empty.
    """
    return (_bucket() < int(val_share * 16**HASH_DIGITS)) | (_bucket() == smallest)


def check_split(index: pl.DataFrame) -> None:
    """`index` with the column `split`: train, val or eval, null where the sequence is not used.

    Raises:
        ArtifactError: a training prompt is also an evaluation prompt.
        GateError: nothing is left to train on.
    """
    evaluation, training = (
        index.filter(pl.col("split").is_in(splits)) for splits in (["eval"], ["train", "val"])
    )
    overlap = training.join(evaluation.select("prompt_hash"), on="prompt_hash", how="semi")
    if len(overlap):
        raise ArtifactError(
            f"{overlap['prompt_hash'].n_unique()} training prompts are also evaluation prompts, "
            f"for example {overlap['sample_id'][0]}",
            hint="the prompt tables are not of one run: dvc repro prompts",
        )
    if "train" not in training["split"]:
        raise GateError(
            f"no training sequence is left of {training.height}",
            hint="raise `reassemble.max_length`, lower `reassemble.val_share`, or add prompts",
        )


def _bucket() -> pl.Expr:
    return pl.col("prompt_hash").str.head(HASH_DIGITS).str.to_integer(base=16, dtype=pl.Int64)


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
