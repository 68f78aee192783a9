"""Judging the responses of one dataset: the set rule, then row by row, then the shares."""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from eyas.errors import GateError
from eyas.metrics import share
from eyas.schema import Quarantined, Validated, columns_of
from eyas.target.spec import TargetProfile
from eyas.validate.params import ValidateParams
from eyas.validate.rules import Rule, ends_its_turn

EXAMPLES = 3
"""Sample ids shown for each problem."""


@dataclass(frozen=True)
class Judgement:
    """Every response is in exactly one of the two tables."""

    validated: pl.DataFrame
    """Schema Validated, sorted by sample_id."""
    quarantined: pl.DataFrame
    """Schema Quarantined, sorted by sample_id."""


def check_set(prompts: pl.Series, answered: pl.Series, failed: pl.Series) -> None:
    """Inputs = answers + failures, each sample_id once: nothing is lost and nothing is there twice.

    Raises:
        GateError: naming what is missing, foreign or repeated, with examples.
    """
    outcomes = pl.concat([answered, failed])
    problems = {
        "have neither an answer nor an error": prompts.filter(~prompts.is_in(outcomes.implode())),
        "are not in the prompt table": outcomes.filter(~outcomes.is_in(prompts.implode())),
        "have more than one outcome": outcomes.filter(outcomes.is_duplicated()).unique(),
    }
    found = [f"{len(ids)} samples {what} ({_examples(ids)})" for what, ids in problems.items() if len(ids)]
    if found:
        raise GateError(
            f"prompts and responses do not match: {'; '.join(found)}",
            hint="`dvc repro generate` asks what is missing; answers that exist are not asked again",
        )


def judge(
    responses: pl.DataFrame, prompts: pl.DataFrame, rules: list[Rule], profile: TargetProfile
) -> Judgement:
    """Apply the rules to every response; the first broken rule sends the whole row to quarantine.

    `responses` has the columns of schema.Responses and `row`; `prompts` those of schema.Prompts.
    """
    asked = prompts.select("sample_id", "task", asked_hash="prompt_hash", asked="messages")
    judged = responses.join(asked, on="sample_id", how="left", maintain_order="left").with_columns(
        broken=_first_broken([_prompt_changed(), *rules]), truncated=~ends_its_turn(profile)
    )
    validated = judged.filter(pl.col("broken").is_null())
    quarantined = judged.filter(pl.col("broken").is_not_null()).unnest("broken")
    return Judgement(
        validated.select(columns_of(Validated).names()).sort("sample_id"),
        quarantined.select(columns_of(Quarantined).names()).sort("sample_id"),
    )


def check_shares(judgement: Judgement, params: ValidateParams, quarantine: str) -> None:
    """The gates: shares of quarantined and of cut responses.

    `quarantine` is where the quarantined rows are, for the message.

    Raises:
        GateError: a share is above its limit, or nothing is left; shows the rules with counts and examples.
    """
    validated, quarantined = judgement.validated, judgement.quarantined
    quarantined_share = share(quarantined.height, quarantined.height + validated.height)
    truncated_share = share(int(validated["truncated"].sum()), validated.height)
    problems = [
        f"{value:.1%} of the responses are {what}, `validate.{key}` is {limit:.1%}"
        for what, key, value, limit in (
            ("quarantined", "max_quarantined_share", quarantined_share, params.max_quarantined_share),
            ("cut", "max_truncated_share", truncated_share, params.max_truncated_share),
        )
        if value is not None and value > limit
    ]
    if validated.is_empty():
        problems.append("no response is left")
    if problems:
        raise GateError(
            "; ".join(problems) + table_of_rules(quarantined),
            where=quarantine,
            hint=_hint(quarantine, cut=(truncated_share or 0) > params.max_truncated_share),
        )


def _hint(quarantine: str, *, cut: bool) -> str:
    if cut:
        return "raise generate.max_tokens, or allow more cut answers with validate.max_truncated_share"
    return f"look at the rows: python -c \"import polars; print(*polars.read_parquet('{quarantine}').rows(), sep='\\n')\""


def table_of_rules(quarantined: pl.DataFrame) -> str:
    """Broken rules with counts, and sample ids as examples; one line each."""
    counts = quarantined.group_by("rule").agg(pl.len().alias("count"), pl.col("sample_id").sort())
    return "".join(
        f"\n  {rule:32} {count:6}  {_examples(ids)}"
        for rule, count, ids in counts.sort("count", "rule").rows()[::-1]
    )


def _first_broken(rules: list[Rule]) -> pl.Expr:
    return pl.coalesce(
        pl.when(rule.fails).then(pl.struct(rule=pl.lit(rule.name), value=rule.value.fill_null("null")))
        for rule in rules
    )


def _prompt_changed() -> Rule:
    """The answer belongs to other messages than the prompt table has under this sample_id."""
    same = (pl.col("prompt_hash") == pl.col("asked_hash")) & (pl.col("messages") == pl.col("asked"))
    return Rule("prompt_changed", ~same, pl.format("prompt hash {}", "prompt_hash"))


def _examples(ids: pl.Series | list[str]) -> str:
    names = [str(name) for name in ids]
    return ", ".join(names[:EXAMPLES]) + (", ..." if len(names) > EXAMPLES else "")
