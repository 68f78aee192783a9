"""The draft vocabulary: the most frequent supervised tokens, and the maps d2t and t2d between the vocabularies.

Vd draft vocab, V target vocab. Layout of EAGLE-3 checkpoints (SafeAILab/EAGLE, as vLLM and SGLang load them):
target id = draft id + d2t[draft id], draft ids in the order of target ids.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import polars as pl
from numpy.typing import NDArray

from eyas.errors import ArtifactError, ConfigError
from eyas.metrics import share
from eyas.target.spec import TargetProfile
from eyas.tokenkinds import PROMPT

COUNTS = pl.Schema({"dataset": pl.String, "token": pl.Int32, "count": pl.Int64})
"""Columns of token counts."""


@dataclass(frozen=True)
class DraftVocab:
    """Which target tokens are kept."""

    draft_ids: NDArray[np.int64]
    """[Vd] target ids, ascending."""
    target_vocab_size: int
    """V."""

    @property
    def d2t(self) -> NDArray[np.int64]:
        """[Vd] offsets: target id minus draft id."""
        return self.draft_ids - np.arange(len(self.draft_ids), dtype=np.int64)

    @property
    def t2d(self) -> NDArray[np.bool_]:
        """[V] True for kept target ids."""
        kept = np.zeros(self.target_vocab_size, dtype=np.bool_)
        kept[self.draft_ids] = True
        return kept

    def coverage(self, counts: pl.DataFrame) -> float | None:
        """Share of counted tokens (columns token, count) that are kept; None if none were counted."""
        kept = counts.filter(pl.col("token").is_in(self.draft_ids.tolist()))
        return share(int(kept["count"].sum()), int(counts["count"].sum()))


def supervised_counts(sequences: pl.DataFrame) -> pl.DataFrame:
    """How often each token is supervised, by dataset: columns dataset, token, count, in a fixed order.

    `sequences` needs the columns dataset, token_ids and kinds of schema.Sequences.
    """
    tables = [pl.DataFrame(schema=COUNTS)]
    for (dataset,), part in sequences.partition_by("dataset", as_dict=True).items():
        supervised = part["token_ids"].explode().filter(part["kinds"].explode() != PROMPT)
        counted = supervised.alias("token").value_counts(name="count")
        tables.append(
            counted.select(pl.lit(dataset).alias("dataset"), "token", pl.col("count").cast(pl.Int64))
        )
    return pl.concat(tables).sort("dataset", "token")


def total_counts(counts: pl.DataFrame) -> pl.DataFrame:
    """Counts over all datasets: columns token, count, the most frequent first, equal ones by id."""
    return counts.group_by("token").agg(pl.col("count").sum()).sort(-pl.col("count"), "token")


def required_ids(profile: TargetProfile, counts: pl.DataFrame) -> set[int]:
    """Ids that must be kept however rare: end of turn, think markers, and special ids that were generated.

    Without its end of turn a drafter could never propose to stop.
    """
    think = profile.think.marker_ids if profile.think else set()
    generated = set(profile.special_ids) & set(counts["token"].to_list())
    return {*profile.end_of_turn_ids, *think, *generated}


def build_draft_vocab(
    counts: pl.DataFrame, required: Iterable[int], size: int, target_vocab_size: int
) -> DraftVocab:
    """Keep the required ids, then the most frequent tokens of `counts` (see total_counts), then the lowest ids.

    Raises:
        ConfigError: `size` is above the target's vocabulary or below the number of required ids.
    """
    kept = dict.fromkeys(sorted(required))
    if not len(kept) <= size <= target_vocab_size:
        raise ConfigError(
            f"`vocab.draft_vocab_size`: {size} is not between {len(kept)} (ids that must be kept) and {target_vocab_size} "
            "(the target's vocabulary)",
            where="params.yaml",
        )
    for token in counts["token"]:
        if len(kept) == size:
            break
        kept.setdefault(token)
    for token in range(target_vocab_size):
        if len(kept) == size:
            break
        kept.setdefault(token)
    return DraftVocab(np.array(sorted(kept), dtype=np.int64), target_vocab_size)


def check_maps(d2t: NDArray[np.int64], t2d: NDArray[np.bool_], required: Iterable[int] = ()) -> None:
    """Refuse maps that engines would read as other tokens than were meant.

    Raises:
        ArtifactError: naming every broken invariant.
    """
    size, target_size = len(d2t), len(t2d)
    draft_ids = d2t + np.arange(size)
    kept = np.flatnonzero(t2d)
    broken = {
        f"t2d keeps {len(kept)} ids, d2t has {size}": len(kept) != size,
        "d2t[i] + i is not the ascending list of the ids that t2d keeps": not np.array_equal(draft_ids, kept),
        "d2t is not non-decreasing from 0": size > 0 and (d2t[0] < 0 or bool(np.any(np.diff(d2t) < 0))),
        f"an id is outside the target's vocabulary of {target_size}": (
            size > 0 and int(draft_ids[-1]) >= target_size
        ),
        "an id that must be kept is not": not set(required) <= set(draft_ids.tolist()),
    }
    problems = [problem for problem, is_broken in broken.items() if is_broken]
    if problems:
        raise ArtifactError(
            f"the draft vocabulary is inconsistent: {'; '.join(problems)}",
            hint="d2t must hold offsets, not target ids; rebuild it with `dvc repro vocab`",
        )
