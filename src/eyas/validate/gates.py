"""The gates of the stage: shares of bad rows that stop it, and the table that shows what is wrong."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

import polars as pl

from eyas.errors import GateError
from eyas.metrics import share
from eyas.validate.comparison import Comparison
from eyas.validate.params import ValidateParams
from eyas.validate.turns import examples


@dataclass(frozen=True)
class Shares:
    """Shares that gates and report look at, from 0 to 1; None where nothing was counted."""

    quarantined: float | None
    """Of the responses."""
    truncated: float | None
    """Of the valid responses."""
    unreasoned: float | None
    """Responses without reasoning, of all responses."""
    short: float | None
    """Responses that break `too_short`, of all responses."""
    text_different: float | None
    """Of the sampled answers: their texts say something else than their tokens."""


def shares_of(ledger: pl.DataFrame, comparison: Comparison | None) -> Shares:
    """`ledger` has judgement.LEDGER_SCHEMA."""
    valid = ledger.filter(pl.col("rule").is_null())
    short = ledger["rules"].list.contains("too_short")
    return Shares(
        quarantined=share(ledger.height - valid.height, ledger.height),
        truncated=share(int(valid["truncated"].sum()), valid.height),
        unreasoned=share(int((~ledger["has_reasoning"]).sum()), ledger.height),
        short=share(int(short.sum()), ledger.height),
        text_different=None if comparison is None else share(comparison.different, comparison.rows),
    )


def check_shares(
    dataset: str,
    ledger: pl.DataFrame,
    comparison: Comparison | None,
    params: ValidateParams,
) -> None:
    """Stop where too many responses are bad, or none is left.

    Raises:
        GateError: naming each share above its limit; shows the broken rules with counts and examples.
    """
    problems = _problems(shares_of(ledger, comparison), params)
    if ledger["rule"].null_count() == 0:
        problems.append("no response is left")
    if not problems:
        return
    raise GateError(
        "; ".join(problems) + table_of_rules(ledger), where=dataset, hint=_hint(dataset, ledger, comparison)
    )


def table_of_rules(ledger: pl.DataFrame) -> str:
    """Broken rules with counts, and rows as examples; one line each. A row counts under its first broken rule."""
    counts = ledger.drop_nulls("rule").group_by("rule").agg(pl.len().alias("count")).sort("count", "rule")
    lines = [
        f"\n  {rule:32} {count:6}  {examples(ledger.filter(pl.col('rule') == rule))}"
        for rule, count in counts.rows()[::-1]
    ]
    return "".join(lines)


def _problems(shares: Shares, params: ValidateParams) -> list[str]:
    limits = [
        ("responses are quarantined", "max_quarantined_share", shares.quarantined),
        ("valid responses are cut", "max_truncated_share", shares.truncated),
        ("responses are too short", "max_short_share", shares.short),
        ("sampled texts differ from their tokens", "max_text_difference_share", shares.text_different),
    ]
    if params.expect_reasoning:
        limits.append(("responses have no reasoning", "max_unreasoned_share", shares.unreasoned))
    return [
        f"{value:.1%} of the {what}, `validate.{key}` is {getattr(params, key):.1%}"
        for what, key, value in limits
        if value is not None and value > getattr(params, key)
    ]


def _hint(dataset: str, ledger: pl.DataFrame, comparison: Comparison | None) -> str:
    """How to look at one row: of the most frequent rule, else one whose text differs, else a cut one."""
    rules = ledger["rule"].drop_nulls().mode().sort()
    if len(rules):
        names = ledger.filter(pl.col("rule") == rules[0])["sample_id"].sort().to_list()
    elif comparison is not None and comparison.examples:
        names = comparison.examples
    else:
        names = ledger.filter("truncated")["sample_id"].sort().to_list()
    if not names:
        return "the limits are in params.yaml, section validate"
    return (
        f"look at a row: eyas peek {dataset} --sample {shlex.quote(names[0])}; "
        "the limits are in params.yaml, section validate"
    )
