"""Where each sequence goes: train, val or eval, and which are there already.

A conversation's first question decides its side, so that conversations that begin alike, whose first turns are the same
sequence, are on one side with all their turns.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import polars as pl

from eyas.errors import ArtifactError, GateError

HASH_DIGITS = 12
"""Hex digits of a hash that decide the split."""
DUPLICATE = "duplicate"
"""The same tokens are in training already, or the prompt is one of evaluation."""

_Good = pl.col("reason").is_null()
_PROMPT = ("prompt_print", "num_prompt_tokens")
_TOKENS = (*_PROMPT, "generated_print", "num_generated_tokens")


def opening() -> pl.Expr:
    """String: the first question of a conversation, from `messages`; a system message may stand before it."""
    first, second = (pl.col("messages").list.get(place, null_on_oob=True) for place in (0, 1))
    asks = first.struct.field("role") == "user"
    return pl.when(asks).then(first.struct.field("content")).otherwise(second.struct.field("content"))


@dataclass
class Splitter:
    """Says where sequences go, piece by piece: evaluation first, then training in the order in which it counts."""

    val_share: float
    question_hash: Callable[[str], str]
    """Of a conversation's first question, the prompt hash of a conversation that asks nothing else."""
    smallest: int | None = None
    """The bucket that is held out in any case; None as long as it is not known."""
    _evaluation: set[tuple[int, ...]] = field(default_factory=set, repr=False)
    _training: set[tuple[int, ...]] = field(default_factory=set, repr=False)

    def assign(self, index: pl.DataFrame, role: str) -> pl.DataFrame:
        """The index with `role`, `split_hash`, and `split`, null where a sequence is not used.

        `index` has the columns sequences.INDEX and `opening`. Duplicates get their `reason`.
        """
        questions = [None if text is None else self.question_hash(text) for text in index["opening"]]
        hashes = pl.Series("split_hash", questions, dtype=pl.String)
        index = (
            index.drop("opening")
            .with_columns(hashes, pl.lit(role).alias("role"))
            .with_columns(pl.coalesce("split_hash", "prompt_hash"))
        )
        if role == "eval":
            self._evaluation.update(index.filter(_Good).select(_PROMPT).rows())
            return index.with_columns(split=pl.when(_Good).then(pl.lit("eval")))
        index = self._without_duplicates(index)
        side = pl.when(in_val(self.val_share, self.smallest)).then(pl.lit("val")).otherwise(pl.lit("train"))
        return index.with_columns(split=pl.when(_Good).then(side))

    def _without_duplicates(self, index: pl.DataFrame) -> pl.DataFrame:
        """Training sequences that are there already, refused: of equal ones the first stays."""
        again = []
        for reason, *tokens in index.select("reason", *_TOKENS).iter_rows():
            key = tuple(tokens)
            known = key in self._training or key[: len(_PROMPT)] in self._evaluation
            again.append(reason is None and known)
            if reason is None:
                self._training.add(key)
        refused = pl.when(pl.Series(again, dtype=pl.Boolean)).then(pl.lit(DUPLICATE)).otherwise("reason")
        return index.with_columns(reason=refused)


def smallest_bucket(train: pl.DataFrame) -> int:
    """The bucket that is always held out; `train` is the index of the training rows."""
    smallest = train.filter(_Good).select(_bucket().min()).item()
    return 0 if smallest is None else int(smallest)


def in_val(val_share: float, smallest: int | None) -> pl.Expr:
    """Boolean: the training sequence belongs to `val`.

    Decided by the hash of its conversation's first question alone, so that it stays there when others come or go. One
    exception: the smallest hash is always in, so that `val` is never empty. Where any hash is below the share, it is too.
    """
    below = _bucket() < int(val_share * 16**HASH_DIGITS)
    return below if smallest is None else below | (_bucket() == smallest)


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
    return pl.col("split_hash").str.head(HASH_DIGITS).str.to_integer(base=16, dtype=pl.Int64)
