"""Judging responses row by row: valid, or in quarantine under the rules that they break."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import polars as pl

from eyas.schema import RULES, Validated, columns_of
from eyas.target.spec import TargetProfile
from eyas.tokenkinds import FRONT
from eyas.validate.flags import calls_tools, is_blank, with_flags
from eyas.validate.responses import LINE_SCHEMA
from eyas.validate.rule import Rule
from eyas.validate.rules import ends_its_turn
from eyas.validate.shape import with_shape
from eyas.validate.turns import KEY

LEDGER_SCHEMA = pl.Schema(
    {
        "sample_id": pl.String(),
        "turn": pl.Int32(),
        "rule": pl.String(),
        "value": pl.String(),
        "rules": pl.List(pl.String()),
        "flags": pl.List(pl.String()),
        "finish_reason": pl.String(),
        "truncated": pl.Boolean(),
        "has_ids": pl.Boolean(),
        "has_usage": pl.Boolean(),
        "has_reasoning": pl.Boolean(),
        "prompt_tokens": pl.Int64(),
        "generated_tokens": pl.Int64(),
        "reasoning_tokens": pl.Int64(),
        "offset": pl.Int64(),
        "size": pl.Int64(),
    }
)
"""One row per response, in the order of the file: what the set rule, the gates and the report need.

`rule` is the first broken rule and `value` what was seen, both null on valid rows; `rules` are all broken rules.
Counts are of the ids where there are any, else of usage; null if neither says.
"""


@dataclass(frozen=True)
class Judged:
    """A batch of responses after judgement."""

    validated: pl.DataFrame
    """The columns of schema.Validated: the rows that break no rule."""
    ledger: pl.DataFrame
    """LEDGER_SCHEMA, all rows."""
    sample: pl.DataFrame
    """Valid rows whose texts can be compared with their ids; columns of SAMPLE."""


SAMPLE = [
    *KEY,
    "prompt_hash",
    "token_ids",
    "reasoning",
    "content",
    "thinking_from",
    "thinking_to",
    "answer_from",
]
"""What comparing texts with ids needs of a row."""

_PLACE = "place"
_BROKEN_SCHEMA = pl.Schema({_PLACE: pl.UInt32(), "rule": pl.String(), "rules": RULES, "value": pl.String()})


def judge(
    responses: pl.DataFrame,
    asked: pl.DataFrame,
    rules: Sequence[Rule],
    profile: TargetProfile,
    *,
    sample: int = 0,
) -> Judged:
    """Apply the rules to a batch of responses.

    `responses` has the columns of schema.Responses and responses.LINE_SCHEMA, `asked` is made by turns.asked_of.
    `sample`: so many rows to compare, those of the smallest prompt hashes.
    """
    rows = responses.join(asked, on="sample_id", how="left", maintain_order="left")
    rows = with_flags(with_shape(rows, profile), profile.think)
    rows = rows.with_columns(truncated=~ends_its_turn(profile).fill_null(value=False)).with_row_index(_PLACE)
    broken = _broken(rows, rules)
    valid = rows if broken.is_empty() else rows.join(broken, on=_PLACE, how="anti", maintain_order="left")
    validated = valid.select(columns_of(Validated).names())
    return Judged(validated, _ledger(rows, broken), _comparable(valid, sample))


def _broken(rows: pl.DataFrame, rules: Sequence[Rule]) -> pl.DataFrame:
    """The rows that break a rule, _BROKEN_SCHEMA."""
    fails = rows.select(rule.fails.fill_null(value=False).alias(rule.name) for rule in rules)
    places = fails.select(pl.any_horizontal(pl.all())).to_series().arg_true()
    if places.is_empty():
        return pl.DataFrame(schema=_BROKEN_SCHEMA)
    names = pl.concat_list(pl.when(pl.col(rule.name)).then(pl.lit(rule.name)) for rule in rules)
    found = fails[places].select(rules=names.list.drop_nulls())
    # values are made for these rows only: most cost a text for each row
    details = rows[places].hstack(found).with_columns(rule=pl.col("rules").list.first())
    value = pl.coalesce(
        pl.when(pl.col("rule") == rule.name).then(rule.value.fill_null("null")) for rule in rules
    )
    return details.select(_PLACE, "rule", "rules", value=value)


def _ledger(rows: pl.DataFrame, broken: pl.DataFrame) -> pl.DataFrame:
    ids, prompt = pl.col("token_ids"), pl.col("prompt_token_ids")
    ledger = rows.select(
        _PLACE,
        *KEY,
        "flags",
        "finish_reason",
        "truncated",
        *LINE_SCHEMA,
        has_ids=ids.is_not_null() & prompt.is_not_null(),
        has_usage=pl.col("usage_completion_tokens").is_not_null(),
        has_reasoning=~is_blank("reasoning") | (pl.col("thinking_tokens") > FRONT).fill_null(value=False),
        prompt_tokens=pl.coalesce(prompt.list.len(), "usage_prompt_tokens"),
        generated_tokens=pl.coalesce(ids.list.len(), "usage_completion_tokens"),
        reasoning_tokens=pl.coalesce("thinking_tokens", "usage_reasoning_tokens"),
    )
    return ledger.join(broken, on=_PLACE, how="left", maintain_order="left").select(
        pl.col(name).cast(dtype) for name, dtype in LEDGER_SCHEMA.items()
    )


def _comparable(valid: pl.DataFrame, sample: int) -> pl.DataFrame:
    """The first rows by prompt hash whose texts hold all that the ids say; a tool call is in neither text."""
    comparable = pl.col("token_ids").is_not_null() & ~calls_tools()
    order = valid.select(comparable.alias("comparable"), "prompt_hash", *KEY).with_row_index(_PLACE)
    first = (
        order.filter("comparable").sort("prompt_hash", *KEY).head(sample)
    )  # keys are sorted, not whole rows
    return valid.select(SAMPLE)[first[_PLACE]]
