"""The numbers of reports/validation/X.json."""

from __future__ import annotations

from typing import Any

import polars as pl

from eyas.answers import FINISH_REASONS
from eyas.metrics import share
from eyas.validate.judgement import Judgement
from eyas.validate.rules import Rule


def validation_report(
    judgement: Judgement, rules: list[Rule], failed: int, unknown: list[str]
) -> dict[str, Any]:
    """Counts, shares and token statistics of one dataset; null where there was nothing to count.

    Token statistics and finish reasons are of the valid responses.
    """
    validated, quarantined = judgement.validated, judgement.quarantined
    answered = validated.height + quarantined.height
    broken = dict(quarantined["rule"].value_counts().rows())
    reasons = dict(validated["finish_reason"].value_counts().rows())
    reasoned = validated["reasoning"].fill_null("").str.strip_chars() != ""
    return {
        "prompts": answered + failed,
        "failed": failed,
        "quarantined": quarantined.height,
        "validated": validated.height,
        "shares": {
            "failed": share(failed, answered + failed),
            "quarantined": share(quarantined.height, answered),
            "truncated": share(int(validated["truncated"].sum()), validated.height),
            "reasoning": share(int(reasoned.sum()), validated.height),
        },
        "finish_reasons": {reason: reasons.get(reason, 0) for reason in FINISH_REASONS},
        "rules": {name: broken.get(name, 0) for name in ["prompt_changed", *(rule.name for rule in rules)]},
        "tokens": {
            "prompt": _statistics(validated["prompt_token_ids"].list.len()),
            "generated": _statistics(validated["token_ids"].list.len()),
            "reasoning": _statistics(validated["usage_reasoning_tokens"]),
        },
        "without_usage": int(validated["usage_completion_tokens"].null_count()),
        "unknown_keys": unknown,
    }


def _statistics(counts: pl.Series) -> dict[str, Any]:
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
