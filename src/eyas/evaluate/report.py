"""The simulated acceptance by dataset and by position in the answer: the report and the tables of its plots."""

from __future__ import annotations

from typing import Any

import polars as pl

from eyas.acceptance import FORMULA, AcceptanceCounts
from eyas.evaluate.replay import Replay
from eyas.metrics import share

OVERALL = "all"
"""Name of the series over all datasets in the plot tables."""


def with_datasets(replay: Replay, table: pl.DataFrame) -> Replay:
    """The replay with the columns dataset and num_generated_tokens of the sequence table, by sequence_id."""
    columns = table.select("sequence_id", "dataset", "num_generated_tokens")
    return Replay(
        rounds=replay.rounds.join(columns.drop("num_generated_tokens"), on="sequence_id", how="left"),
        sequences=replay.sequences.join(columns, on="sequence_id", how="left"),
    )


def acceptance_report(replay: Replay, draft_tokens: int) -> dict[str, Any]:
    """The contents of reports/acceptance.json. `replay` has datasets."""
    names = replay.sequences["dataset"].unique().sort().to_list()
    return {
        "draft_tokens": draft_tokens,
        "formula": FORMULA,
        "datasets": {name: _entry(_of_dataset(replay, name), draft_tokens) for name in names},
        "overall": _entry(replay, draft_tokens),
    }


def by_dataset(replay: Replay, draft_tokens: int) -> pl.DataFrame:
    """Long form: dataset, draft_position (1..K), acceptance (share of drafts accepted up to there), conditional."""
    rows = []
    for name, part in _series(replay):
        counts = count(part.rounds.filter(pl.col("draft_tokens") == draft_tokens), draft_tokens)
        pairs = zip(counts.rates, counts.conditional_rates, strict=True)
        for position, (rate, conditional) in enumerate(pairs, start=1):
            rows.append(
                {"dataset": name, "draft_position": position, "acceptance": rate, "conditional": conditional}
            )
    return _rounded(pl.DataFrame(rows))


def by_position(replay: Replay, draft_tokens: int, bins: list[int]) -> pl.DataFrame:
    """Long form: dataset, position (first token of the bin), acceptance_length, drafts; no row without drafts."""
    rows = []
    for name, part in _series(replay):
        rounds = part.rounds.filter(pl.col("draft_tokens") == draft_tokens)
        for low, high in zip(bins, [*bins[1:], None], strict=True):
            inside = pl.col("position") >= low
            counts = count(
                rounds.filter(inside if high is None else inside & (pl.col("position") < high)), draft_tokens
            )
            if counts.drafts:
                rows.append(
                    {
                        "dataset": name,
                        "position": low,
                        "acceptance_length": counts.length,
                        "drafts": counts.drafts,
                    }
                )
    return _rounded(pl.DataFrame(rows))


def count(rounds: pl.DataFrame, draft_tokens: int) -> AcceptanceCounts:
    """Counts of rounds, as an engine's counters would show them."""
    accepted = rounds["accepted"]
    return AcceptanceCounts(
        drafts=rounds.height,
        accepted_at=[int((accepted >= position).sum()) for position in range(1, draft_tokens + 1)],
    )


def _entry(part: Replay, draft_tokens: int) -> dict[str, Any]:
    rounds = part.rounds.filter(pl.col("draft_tokens") == draft_tokens)
    labels = int(part.sequences["labels"].sum())
    missed = rounds["missed_in_vocab"].drop_nulls()
    return {
        "sequences": part.sequences.height,
        "generated_tokens": int(part.sequences["num_generated_tokens"].sum()),
        **count(rounds, draft_tokens).report(),
        "past_end": int(rounds["past_end"].sum()),
        "misses": {"in_vocab": int(missed.sum()), "out_of_vocab": int((~missed).sum())},
        "greedy_share": share(int(part.sequences["labels_greedy"].sum()), labels),
        "in_vocab_share": share(int(part.sequences["labels_in_vocab"].sum()), labels),
        "length_by_draft_tokens": {
            str(tokens): count(part.rounds.filter(pl.col("draft_tokens") == tokens), tokens).length
            for tokens in range(1, draft_tokens + 1)
        },
    }


def _of_dataset(replay: Replay, name: str) -> Replay:
    chosen = pl.col("dataset") == name
    return Replay(rounds=replay.rounds.filter(chosen), sequences=replay.sequences.filter(chosen))


def _series(replay: Replay) -> list[tuple[str, Replay]]:
    names = replay.sequences["dataset"].unique().sort().to_list()
    return [(OVERALL, replay), *((name, _of_dataset(replay, name)) for name in names)]


def _rounded(table: pl.DataFrame) -> pl.DataFrame:
    """Six significant digits, so that last-bit noise makes no diff."""
    return table.with_columns(pl.selectors.float().round_sig_figs(6))
