"""The numbers of reports/reassembly.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import polars as pl

from eyas import paths
from eyas.metrics import share

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}


def reassembly_report(
    splits: Mapping[str, pl.DataFrame], dropped: pl.DataFrame, checked: int
) -> dict[str, Any]:
    """Rows, tokens and lengths by split; null where a split is empty.

    `checked`: prompts whose local rendering was compared with the server's ids and equal.
    """
    rows = sum(table.height for table in splits.values())
    reasons = dict(dropped["reason"].value_counts().rows())
    return {
        "rows": rows,
        "exact_by_server_ids": rows,
        "prompts_rendered_equal": checked,
        "dropped": {reason: reasons.get(reason, 0) for reason in ("truncated", "too_long")},
        "splits": {name: _split(splits[name]) for name in paths.SPLITS},
    }


def _split(table: pl.DataFrame) -> dict[str, Any]:
    prompt = int(table["num_prompt_tokens"].sum())
    generated = int(table["num_generated_tokens"].sum())
    lengths = table["token_ids"].list.len()
    return {
        "rows": table.height,
        "by_dataset": dict(table["dataset"].value_counts().sort("dataset").rows()),
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "supervised_share": share(generated, prompt + generated),
        "truncated_share": share(int(table["truncated"].sum()), table.height),
        "length": {
            name: lengths.quantile(quantile, interpolation="nearest") for name, quantile in QUANTILES.items()
        },
    }
