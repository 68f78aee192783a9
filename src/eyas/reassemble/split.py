"""Where each sequence goes: train, val or eval, and which are there already.

A conversation's first question decides its side, so that conversations that begin alike, whose first turns are the same
sequence, are on one side with all their turns.
"""

from __future__ import annotations

from collections.abc import Callable

import polars as pl

from eyas.errors import ArtifactError, GateError

HASH_DIGITS = 12
"""Hex digits of a hash that decide the split."""
DUPLICATE = "duplicate"
"""The same tokens are in training already, or the prompt is one of evaluation."""

_Good = pl.col("reason").is_null()
_Train = pl.col("role") == "train"
_PROMPT = ("prompt_print", "num_prompt_tokens")
_TOKENS = (*_PROMPT, "generated_print", "num_generated_tokens")


def opening() -> pl.Expr:
    """String: the first question of a conversation, from `messages`; a system message may stand before it."""
    first, second = (pl.col("messages").list.get(place, null_on_oob=True) for place in (0, 1))
    asks = first.struct.field("role") == "user"
    return pl.when(asks).then(first.struct.field("content")).otherwise(second.struct.field("content"))


def hashed(column: pl.Expr, hash_of: Callable[[str], str]) -> pl.Expr:
    """String: the hash of each text, null where there is none."""

    def hashes(texts: pl.Series) -> pl.Series:
        found = [None if text is None else hash_of(text) for text in texts]
        return pl.Series(texts.name, found, dtype=pl.String)

    return column.map_batches(hashes, return_dtype=pl.String, is_elementwise=True)


def with_split(index: pl.DataFrame, val_share: float) -> pl.DataFrame:
    """The index of all datasets with `split`, null if the sequence is not used; duplicates get their `reason`.

    `index`: sequences.index with `role` of the dataset and `split_hash`, in the order of the files.
    """
    index = _without_duplicates(index)
    held_out = in_val(val_share, smallest_bucket(index.filter(_Train)))
    side = pl.when(pl.col("role") == "eval").then(pl.lit("eval")).when(held_out).then(pl.lit("val"))
    return index.with_columns(split=pl.when(_Good).then(side.otherwise(pl.lit("train"))))


def smallest_bucket(train: pl.DataFrame) -> int:
    """The bucket that is always held out; `train` is the index of the training rows."""
    smallest = train.filter(_Good).select(_bucket().min()).item()
    return 0 if smallest is None else int(smallest)


def in_val(val_share: float, smallest: int) -> pl.Expr:
    """Boolean: the training sequence belongs to `val`.

    Decided by the hash of its conversation's first question alone, so that it stays there when others come or go. One
    exception: the smallest hash is always in, so that `val` is never empty.
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


def _without_duplicates(index: pl.DataFrame) -> pl.DataFrame:
    """Training sequences that are there already, refused: of equal ones the first stays."""
    numbered = index.with_row_index("place")
    training, evaluation = (numbered.filter(_Good, side) for side in (_Train, ~_Train))
    asked = training.join(evaluation.select(_PROMPT), on=_PROMPT, how="semi")
    rest = training.join(asked, on="place", how="anti", maintain_order="left")
    again = rest.filter(~pl.struct(_TOKENS).is_first_distinct())
    places = pl.concat([asked["place"], again["place"]])
    refused = pl.when(pl.col("place").is_in(places.implode())).then(pl.lit(DUPLICATE)).otherwise("reason")
    return numbered.with_columns(reason=refused).drop("place")


def _bucket() -> pl.Expr:
    return pl.col("split_hash").str.head(HASH_DIGITS).str.to_integer(base=16, dtype=pl.Int64)
