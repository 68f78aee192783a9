"""The numbers of reports/validation/X.json."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import polars as pl

from eyas.answers import FINISH_REASONS, FLAGS
from eyas.metrics import share
from eyas.validate.comparison import Comparison
from eyas.validate.gates import shares_of
from eyas.validate.rule import Rule


def validation_report(
    ledger: pl.DataFrame,
    rules: Sequence[Rule],
    failed: pl.DataFrame,
    comparison: Comparison | None,
    unknown: list[str],
) -> dict[str, Any]:
    """Counts, shares and token statistics of one dataset; null where there was nothing to count.

    `ledger` has judgement.LEDGER_SCHEMA; `failed` has sample_id and turn. Token statistics, finish reasons, turns and
    flags are of the valid responses. A turn is one generated answer.
    """
    valid = ledger.filter(pl.col("rule").is_null())
    turns = ledger.height + failed.height
    return {
        "conversations": pl.concat([ledger["sample_id"], failed["sample_id"]]).n_unique(),
        "turns": turns,
        "failed": failed.height,
        "quarantined": ledger.height - valid.height,
        "validated": valid.height,
        "shares": {"failed": share(failed.height, turns), **asdict(shares_of(ledger, comparison))},
        "finish_reasons": _counts(valid["finish_reason"], FINISH_REASONS),
        "rules": _counts(ledger["rule"], [rule.name for rule in rules]),
        "rules_broken": _counts(ledger["rules"].explode(), [rule.name for rule in rules]),
        "flags": _counts(valid["flags"].explode(), FLAGS),
        "by_turn": dict(valid.group_by("turn").len().sort("turn").rows()),
        "tokens": {
            name: _statistics(valid[f"{name}_tokens"]) for name in ("prompt", "generated", "reasoning")
        },
        "with_token_ids": int(valid["has_ids"].sum()),
        "without_usage": int((~valid["has_usage"]).sum()),
        "text_against_ids": comparison and {k: v for k, v in asdict(comparison).items() if k != "examples"},
        "unknown_keys": unknown,
    }


def _counts(values: pl.Series, names: Sequence[str]) -> dict[str, int]:
    """How often each name stands in the values; other values that do are added."""
    found = dict(values.drop_nulls().value_counts().sort(values.name).rows())
    return {name: found.get(name, 0) for name in [*names, *(name for name in found if name not in names)]}


def _statistics(counts: pl.Series) -> dict[str, Any]:
    """Of the rows where the number is known."""
    known = counts.drop_nulls()
    if known.is_empty():
        return dict.fromkeys(("total", "mean", "median", "p95", "max"))
    return {
        "total": int(known.sum()),
        "mean": known.mean(),
        "median": known.median(),
        "p95": known.quantile(0.95, interpolation="linear"),
        "max": known.max(),
    }
