"""What a rule is."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl


@dataclass(frozen=True)
class Rule:
    """One rule of validation."""

    name: str
    """Stable; counted in the report."""
    fails: pl.Expr
    """Boolean: the row breaks the rule. Null: nothing to judge."""
    value: pl.Expr
    """String: what was seen."""


def shown(column: str) -> pl.Expr:
    """A text as a message shows it."""
    return pl.col(column).fill_null("null")
