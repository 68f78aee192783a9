"""The tables of the plots, in long form: one series by dataset, and one over all of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import polars as pl

from eyas.evaluate.report import Simulation, by_kind
from eyas.evaluate.tally import binned, count, count_by

OVERALL = "all"
"""Name of the series over all datasets."""


def plot_tables(simulation: Simulation) -> dict[str, pl.DataFrame]:
    """By file name without ending."""
    return {
        "by_dataset": by_dataset(simulation),
        "by_position": by_bin(simulation, "position", simulation.position_bins),
        "by_context": by_bin(simulation, "context", simulation.context_bins),
        "by_kind": by_token_kind(simulation),
        "by_draft_tokens": by_draft_tokens(simulation),
    }


def by_dataset(simulation: Simulation) -> pl.DataFrame:
    """Columns dataset, draft_position (1..k), acceptance (share of drafts accepted up to there) with the interval low to
    high, conditional.
    """
    rows = []
    for name, part in _series(simulation):
        counts = count(part.rounds(part.draft_tokens), part.draft_tokens)
        intervals = part.intervals(part.draft_tokens)
        pairs = zip(counts.rates, counts.conditional_rates, strict=True)
        for position, (rate, conditional) in enumerate(pairs, start=1):
            rows.append(
                {
                    "dataset": name,
                    "draft_position": position,
                    "acceptance": rate,
                    **_interval(intervals[f"at_{position}"]),
                    "conditional": conditional,
                }
            )
    return _rounded(rows, ("acceptance", "low", "high", "conditional"))


def by_bin(simulation: Simulation, column: str, bins: list[int]) -> pl.DataFrame:
    """Columns dataset, <column> (first value of the bin), acceptance_length, drafts; no row without drafts."""
    rows = []
    for name, part in _series(simulation):
        rounds = binned(part.rounds(part.draft_tokens), column, bins)
        for first, counts in count_by(rounds, "bin", part.draft_tokens).items():
            rows.append(
                {
                    "dataset": name,
                    column: first,
                    "acceptance_length": counts.length,
                    "drafts": float(counts.drafts),
                }
            )
    return _rounded(rows, ("acceptance_length", "drafts"))


def by_token_kind(simulation: Simulation) -> pl.DataFrame:
    """Columns dataset, kind, acceptance_length and drafts of the rounds behind it, rate (share accepted of the drafted
    tokens that were judged by one of this kind) and judged.
    """
    rows = [
        {
            "dataset": name,
            "kind": kind,
            "acceptance_length": entry["length"],
            "drafts": float(entry["drafts"]),
            "rate": entry["rate"],
            "judged": float(entry["judged"]),
        }
        for name, part in _series(simulation)
        for kind, entry in by_kind(part).items()
    ]
    return _rounded(rows, ("acceptance_length", "drafts", "rate", "judged"))


def by_draft_tokens(simulation: Simulation) -> pl.DataFrame:
    """Columns dataset, draft_tokens, acceptance_length with the interval low to high, speedup (null without costs)."""
    rows = []
    for name, part in _series(simulation):
        for tokens, speedup in part.speedups().items():
            rows.append(
                {
                    "dataset": name,
                    "draft_tokens": tokens,
                    "acceptance_length": count(part.rounds(tokens), tokens).length,
                    **_interval(part.intervals(tokens)["length"]),
                    "speedup": speedup,
                }
            )
    return _rounded(rows, ("acceptance_length", "low", "high", "speedup"))


def _series(simulation: Simulation) -> Iterator[tuple[str, Simulation]]:
    yield OVERALL, simulation
    for name in simulation.datasets:
        yield name, simulation.of_dataset(name)


def _interval(found: list[float] | None) -> dict[str, float | None]:
    low, high = found or (None, None)
    return {"low": low, "high": high}


def _rounded(rows: list[dict[str, Any]], numbers: tuple[str, ...]) -> pl.DataFrame:
    """Six significant digits, so that last-bit noise makes no diff."""
    table = pl.DataFrame(rows, schema_overrides=dict.fromkeys(numbers, pl.Float64))
    return table.with_columns(pl.selectors.float().round_sig_figs(6))
