"""The simulated acceptance as a report: reports/acceptance.json."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import polars as pl

from eyas.acceptance import FORMULA, AcceptanceCounts, by_draft_position, whole
from eyas.evaluate.bootstrap import LEVEL, Bootstrap
from eyas.evaluate.params import EvaluateParams
from eyas.evaluate.replay import Replay
from eyas.evaluate.tally import binned, count, count_at_most, count_by
from eyas.metrics import share
from eyas.sampling import Sampling
from eyas.speedup import RoundCost, best_draft_tokens, break_even
from eyas.tokenkinds import NAMES

__all__ = ["Simulation", "acceptance_report", "count", "with_datasets"]

MIN_GREEDY_SHARE = 0.9
"""Greedy answers agree with the target's argmax more often than this."""


@dataclass(frozen=True)
class Simulation:
    """A replay and what it was made for."""

    replay: Replay
    """With the columns of `with_datasets`."""
    draft_tokens: int
    """How many the deployment drafts; more and fewer were replayed too."""
    most: int
    """Draft tokens replayed at most."""
    position_bins: list[int]
    context_bins: list[int]
    bootstrap: Bootstrap
    """Of the whole replay."""
    cost: RoundCost | None
    """Of a round; None: no speed-up is predicted."""
    sampling: Sampling
    """How the answers were sampled, and a deployment samples that is simulated."""
    drafting: str
    """How the drafter chooses: greedy or probabilistic."""

    @classmethod
    def of(
        cls,
        replay: Replay,
        params: EvaluateParams,
        draft_tokens: int,
        most: int,
        sampling: Sampling,
        drafting: str,
    ) -> Simulation:
        """From a replay with datasets; other arguments as the fields."""
        return cls(
            replay=replay,
            draft_tokens=draft_tokens,
            most=most,
            position_bins=params.position_bins,
            context_bins=params.context_bins,
            bootstrap=Bootstrap.of(replay.rounds, replay.sequences, most, params.bootstrap_resamples),
            cost=params.cost,
            sampling=sampling,
            drafting=drafting,
        )

    @property
    def datasets(self) -> list[str]:
        """Their names, sorted."""
        names: list[str] = self.replay.sequences["dataset"].unique().sort().to_list()
        return names

    def rounds(self, draft_tokens: int) -> pl.DataFrame:
        """Those with so many draft tokens."""
        return self.replay.rounds.filter(pl.col("draft_tokens") == draft_tokens)

    def of_dataset(self, name: str) -> Simulation:
        """The part of one dataset."""
        return replace(self, replay=self.replay.of(pl.col("dataset") == name))

    def intervals(self, draft_tokens: int) -> dict[str, list[float] | None]:
        """Confidence intervals by name: length, at_1, ..."""
        return self.bootstrap.intervals(self.datasets, draft_tokens)

    def speedups(self) -> dict[int, float | None]:
        """Predicted speed-up by number of draft tokens."""
        return {tokens: self._speedup(tokens) for tokens in range(1, self.most + 1)}

    def _speedup(self, draft_tokens: int) -> float | None:
        length = count(self.rounds(draft_tokens), draft_tokens).length
        return None if length is None or self.cost is None else self.cost.speedup(length, draft_tokens)


def with_datasets(replay: Replay, table: pl.DataFrame) -> Replay:
    """The replay with the columns dataset and num_generated_tokens of the sequence table, by sequence_id."""
    columns = table.select("sequence_id", "dataset", "num_generated_tokens")
    datasets = columns.drop("num_generated_tokens")
    return Replay(
        rounds=replay.rounds.join(datasets, on="sequence_id", how="left"),
        steps=replay.steps.join(datasets, on="sequence_id", how="left"),
        sequences=replay.sequences.join(columns, on="sequence_id", how="left"),
    )


def acceptance_report(simulation: Simulation) -> dict[str, Any]:
    """The contents of reports/acceptance.json."""
    sampling = simulation.sampling
    return {
        "draft_tokens": simulation.draft_tokens,
        "formula": FORMULA,
        "sampling": {
            "temperature": 0.0 if sampling.greedy else sampling.temperature,
            "top_p": 1.0 if sampling.greedy else sampling.top_p,
            "top_k": 0 if sampling.greedy else sampling.top_k,
            "draft": simulation.drafting,
            "estimate": "replay" if sampling.greedy else "expectation",
            "doubt": doubt(simulation),
        },
        "interval_level": LEVEL,
        "datasets": {name: _entry(simulation.of_dataset(name)) for name in simulation.datasets},
        "overall": _entry(simulation),
    }


def doubt(simulation: Simulation) -> str | None:
    """Why the answers do not look as if they were sampled as said; None if they do."""
    labels = int(simulation.replay.sequences["labels"].sum())
    greedy = share(int(simulation.replay.sequences["labels_greedy"].sum()), labels)
    if greedy is None or not simulation.sampling.greedy or greedy >= MIN_GREEDY_SHARE:
        return None
    return (
        f"generate.* says greedy, but only {greedy:.1%} of the generated tokens are the target's most likely ones: every "
        "other one ends a draft here, so the numbers are a lower bound"
    )


def _entry(simulation: Simulation) -> dict[str, Any]:
    replay, tokens = simulation.replay, simulation.draft_tokens
    rounds = simulation.rounds(tokens)
    labels = int(replay.sequences["labels"].sum())
    speedups = simulation.speedups()
    by_draft_tokens = {each: _counted(simulation, each) for each in range(1, simulation.most + 1)}
    return {
        "sequences": replay.sequences.height,
        "generated_tokens": int(replay.sequences["num_generated_tokens"].sum()),
        **_counted(simulation, tokens),
        "past_end": whole(float(rounds.select(pl.col("weight").dot("past_end")).item() or 0)),
        "misses": _misses(simulation),
        "conditional_in_vocab": _in_vocab_rates(simulation),
        "greedy_share": share(int(replay.sequences["labels_greedy"].sum()), labels),
        "in_vocab_share": share(int(replay.sequences["labels_in_vocab"].sum()), labels),
        "length_by_draft_tokens": {
            str(each): entry["acceptance"]["length"] for each, entry in by_draft_tokens.items()
        },
        "by_position": _by_bin(rounds, "position", simulation.position_bins, tokens),
        "by_context": _by_bin(rounds, "context", simulation.context_bins, tokens),
        "by_kind": by_kind(simulation),
        "best_draft_tokens": best_draft_tokens(speedups),
        "by_draft_tokens": {str(each): entry for each, entry in by_draft_tokens.items()},
    }


def _counted(simulation: Simulation, draft_tokens: int) -> dict[str, Any]:
    rounds = simulation.rounds(draft_tokens)
    counts, most = count(rounds, draft_tokens), count_at_most(rounds, draft_tokens)
    length = counts.length
    cost = simulation.cost
    return {
        **counts.report(),
        "at_most": most.acceptance(),
        "length_at_most": most.length,
        "interval": simulation.intervals(draft_tokens),
        "speedup": None if cost is None or length is None else cost.speedup(length, draft_tokens),
        "break_even_cost": None if length is None else break_even(length, draft_tokens),
    }


def _misses(simulation: Simulation) -> dict[str, float]:
    """Drafted tokens that ended their round, by whether the token that came could have been drafted."""
    steps = simulation.replay.steps.filter(pl.col("draft_tokens") == simulation.draft_tokens)
    missed = {
        name: steps.filter(pl.col("in_vocab") == inside)
        .select((pl.col("judged") - pl.col("accepted")).sum())
        .item()
        for name, inside in (("in_vocab", True), ("out_of_vocab", False))
    }
    return {name: whole(float(value)) for name, value in missed.items()}


def _in_vocab_rates(simulation: Simulation) -> dict[str, float | None]:
    """Of the drafted tokens that were judged by one of the draft vocabulary, the share that was accepted, by place."""
    steps = simulation.replay.steps.filter(
        pl.col("draft_tokens") == simulation.draft_tokens, pl.col("in_vocab")
    )
    found = {
        row["step"]: share(row["accepted"], row["judged"])
        for row in steps.group_by("step").agg(pl.col("judged", "accepted").sum()).iter_rows(named=True)
    }
    return by_draft_position([found.get(place) for place in range(1, simulation.draft_tokens + 1)])


def by_kind(simulation: Simulation) -> dict[str, dict[str, Any]]:
    """By token kind: rounds that start behind a token of this kind, and drafted tokens judged by one of it."""
    tokens = simulation.draft_tokens
    behind = count_by(simulation.rounds(tokens), "kind", tokens)
    steps = simulation.replay.steps.filter(pl.col("draft_tokens") == tokens)
    judged = {
        row["kind"]: row
        for row in steps.group_by("kind").agg(pl.col("judged", "accepted").sum()).iter_rows(named=True)
    }
    nothing = {"judged": 0.0, "accepted": 0.0}
    return {
        NAMES[kind]: {
            **_short(behind.get(kind, AcceptanceCounts(0, [0] * tokens))),
            "judged": whole(judged.get(kind, nothing)["judged"]),
            "accepted": whole(judged.get(kind, nothing)["accepted"]),
            "rate": share(judged.get(kind, nothing)["accepted"], judged.get(kind, nothing)["judged"]),
        }
        for kind in sorted({*behind, *judged})
    }


def _by_bin(rounds: pl.DataFrame, column: str, bins: list[int], draft_tokens: int) -> dict[str, Any]:
    """By first value of the bin; bins without drafts are left out."""
    found = count_by(binned(rounds, column, bins), "bin", draft_tokens)
    return {str(first): _short(counts) for first, counts in found.items()}


def _short(counts: AcceptanceCounts) -> dict[str, Any]:
    return {"drafts": whole(counts.drafts), "length": counts.length}
