"""The numbers of reports/reassembly.json and of its plots."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from eyas import paths, tokenkinds
from eyas.errors import GateError
from eyas.files import atomic_file
from eyas.metrics import share
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.sequences import BY_POLICY

QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "max": 1.0}
BINS = 32
"""Bars of the length histogram."""
EXAMPLES = 3
KIND_COUNTS: dict[str, pl.DataType | type[pl.DataType]] = {
    "dataset": pl.String,
    "kind": pl.Enum(tokenkinds.NAMES),
    "tokens": pl.Int64,
}
"""Columns of a table of token counts, one row per dataset and kind, in the order of both."""

_Good = pl.col("reason").is_null()


def reassembly_report(
    index: pl.DataFrame, kinds: pl.DataFrame, checked: int, drift: Mapping[str, Any]
) -> dict[str, Any]:
    """Rows, tokens and lengths; null where there was nothing to count.

    `index`: one row per answer (sequences.index) with `split`, null where the sequence is not used.
    `kinds`: the tokens of the sequences (KIND_COUNTS).
    `checked`: prompts whose local rendering was compared with the server's ids and equal.
    """
    used = index.filter(_Good)
    origins = dict(used["origin"].value_counts().rows())
    reasons = dict(index["reason"].drop_nulls().value_counts().sort("reason").rows())
    tokens = {name: int(kinds.filter(kind=name)["tokens"].sum()) for name in tokenkinds.NAMES}
    return {
        "answers": index.height,
        "rows": used.height,
        "exact_by_server_ids": origins.get("ids", 0),
        "rebuilt_from_text": origins.get("text", 0),
        "exact_share": share(origins.get("ids", 0), used.height),
        "prompts_rendered_equal": checked,
        "refused": {reason: count for reason, count in reasons.items() if reason not in BY_POLICY},
        "dropped": {reason: reasons.get(reason, 0) for reason in BY_POLICY},
        "text_drift": dict(drift),
        "tokens": tokens,
        "supervised_share": share(sum(tokens.values()) - tokens["prompt"], sum(tokens.values())),
        "splits": {name: _split(used.filter(pl.col("split") == name)) for name in paths.SPLITS},
    }


def kind_counts(sequences: pl.DataFrame) -> pl.DataFrame:
    """Tokens of each kind by dataset (KIND_COUNTS) in a table of schema Sequences."""
    counted = [pl.DataFrame(schema=KIND_COUNTS)]
    for (dataset,), part in sequences.partition_by("dataset", as_dict=True).items():
        kinds = part["kinds"].explode().to_numpy()
        counts = [np.count_nonzero(kinds == kind) for kind in range(len(tokenkinds.NAMES))]
        columns = {"dataset": [dataset] * len(counts), "kind": tokenkinds.NAMES, "tokens": counts}
        counted.append(pl.DataFrame(columns, schema=KIND_COUNTS))
    return pl.concat(counted)


def total_counts(counted: Iterable[pl.DataFrame]) -> pl.DataFrame:
    """The sum of several tables of counts (KIND_COUNTS)."""
    both = pl.concat([pl.DataFrame(schema=KIND_COUNTS), *counted])
    return both.group_by("dataset", "kind").agg(pl.col("tokens").sum()).sort("dataset", "kind")


def refuse_many(index: pl.DataFrame, params: ReassembleParams) -> None:
    """The gate on answers that can't become sequences; length and truncation, which params choose, apart.

    Raises:
        GateError: too many are refused; shows the reasons with counts and examples.
    """
    refused = index.filter(~_Good & ~pl.col("reason").is_in(BY_POLICY))
    refused_share = share(refused.height, index.height)
    if refused_share is None or refused_share <= params.max_refused_share:
        return
    raise GateError(
        f"{refused_share:.1%} of the answers can't become sequences, `reassemble.max_refused_share` is "
        f"{params.max_refused_share:.1%}" + reasons_table(refused),
        where=str(refused["sequence_id"][0]),
        hint=_refusal_hint(refused, params),
    )


def reasons_table(refused: pl.DataFrame) -> str:
    """Reasons with counts, and sequence ids as examples; one line each."""
    counts = refused.group_by("reason").agg(
        pl.len().alias("count"), pl.col("sequence_id").sort().head(EXAMPLES)
    )
    return "".join(
        f"\n  {reason:28} {count:7}  {', '.join(ids)}"
        for reason, count, ids in counts.sort("count", "reason", descending=True).rows()
    )


def write_plots(directory: Path, index: pl.DataFrame, kinds: pl.DataFrame) -> None:
    """Small TSV files for `dvc plots`: what became of the answers, tokens by kind, sequence lengths."""
    for name, table in {
        "rows.tsv": outcome_rows(index),
        "kinds.tsv": kind_shares(kinds),
        "lengths.tsv": length_histogram(index),
    }.items():
        with atomic_file(directory / name) as temporary:
            table.write_csv(temporary, separator="\t", float_precision=6)


def outcome_rows(index: pl.DataFrame) -> pl.DataFrame:
    """Columns dataset, outcome, rows: sequences by origin, and reasons why there are none."""
    outcome = pl.coalesce(
        "reason", pl.when(pl.col("origin") == "ids").then(pl.lit("exact_by_ids")), pl.lit("from_text")
    )
    counted = index.group_by("dataset", outcome.alias("outcome")).agg(pl.len().alias("rows"))
    return counted.sort("dataset", "outcome")


def kind_shares(kinds: pl.DataFrame) -> pl.DataFrame:
    """KIND_COUNTS with `share`, of all tokens of the dataset's sequences."""
    return kinds.with_columns(share=pl.col("tokens") / pl.col("tokens").sum().over("dataset"))


def length_histogram(index: pl.DataFrame) -> pl.DataFrame:
    """Columns dataset, length, rows: sequences by length in tokens, in bins that start at `length`."""
    used = index.filter(_Good).with_columns(length=_length())
    longest: int = used.select(pl.col("length").max().fill_null(1)).item()
    width = -(-longest // BINS)
    binned = used.group_by("dataset", length=(pl.col("length") - 1) // width * width + 1)
    counted = binned.agg(pl.len().alias("rows"))
    every = used.select(pl.col("dataset").unique()).join(
        pl.DataFrame(
            {"length": range(1, width * BINS + 1, width)}, schema={"length": counted.schema["length"]}
        ),
        how="cross",
    )
    return every.join(counted, on=["dataset", "length"], how="left").fill_null(0).sort("dataset", "length")


def _split(used: pl.DataFrame) -> dict[str, Any]:
    prompt = int(used["num_prompt_tokens"].sum())
    generated = int(used["num_generated_tokens"].sum())
    lengths = used.select(_length()).to_series()
    return {
        "rows": used.height,
        "by_dataset": dict(used["dataset"].value_counts().sort("dataset").rows()),
        "prompt_tokens": prompt,
        "generated_tokens": generated,
        "supervised_share": share(generated, prompt + generated),
        "truncated_share": share(int(used["truncated"].sum()), used.height),
        "length": {
            name: lengths.quantile(quantile, interpolation="nearest") for name, quantile in QUANTILES.items()
        },
    }


def _length() -> pl.Expr:
    return pl.col("num_prompt_tokens") + pl.col("num_generated_tokens")


def _refusal_hint(refused: pl.DataFrame, params: ReassembleParams) -> str:
    if params.source == "ids" and (refused["reason"] == "no_ids").any():
        return (
            "sequences are only made of the server's own ids: use a server that returns token ids, "
            "or set `reassemble.source: text`"
        )
    row = refused.row(0, named=True)
    look = f"eyas peek {row['dataset']} --sample {row['sample_id']}"
    return f"look at one: {look}; or allow more with reassemble.max_refused_share"
