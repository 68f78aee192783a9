"""Hand-made rounds of two datasets."""

from __future__ import annotations

from typing import Any

import polars as pl

from eyas.evaluate.params import EvaluateParams
from eyas.evaluate.replay import ROUND_SCHEMA, STEP_SCHEMA, Replay
from eyas.evaluate.report import Simulation, with_datasets
from eyas.sampling import GREEDY, Sampling
from eyas.tokenkinds import ANSWER, REASONING

PARAMS: dict[str, Any] = {
    "max_draft_tokens": 2,
    "position_bins": [0, 2, 8],
    "context_bins": [0, 12],
    "bootstrap_resamples": 200,
    "cost_per_draft_token": None,
    "cost_per_round": 0.0,
}
ROUNDS = [
    # sequence, k, position, context, kind, weight, accepted, past_end, open_end, at_1, at_2
    ("a:1", 2, 0, 11, REASONING, 1.0, 2.0, 0, 0.0, 1.0, 1.0),
    ("a:1", 2, 3, 14, REASONING, 1.0, 0.0, 0, 0.0, 0.0, 0.0),
    ("a:1", 2, 4, 15, ANSWER, 1.0, 1.0, 0, 0.0, 1.0, 0.0),
    ("b:1", 2, 0, 21, ANSWER, 1.0, 0.0, 0, 0.0, 0.0, 0.0),
    ("b:1", 2, 1, 22, ANSWER, 1.0, 1.0, 1, 1.0, 1.0, 0.0),
    ("a:1", 1, 0, 11, REASONING, 1.0, 1.0, 0, 0.0, 1.0, None),
    ("a:1", 1, 2, 13, REASONING, 1.0, 1.0, 0, 0.0, 1.0, None),
    ("b:1", 1, 0, 21, ANSWER, 1.0, 0.0, 0, 0.0, 0.0, None),
]
STEPS = [
    # sequence, k, step, kind, in_vocab, judged, accepted
    ("a:1", 2, 1, REASONING, True, 1.0, 1.0),
    ("a:1", 2, 1, ANSWER, False, 1.0, 0.0),
    ("a:1", 2, 1, ANSWER, True, 1.0, 1.0),
    ("a:1", 2, 2, REASONING, True, 1.0, 1.0),
    ("a:1", 2, 2, ANSWER, True, 1.0, 0.0),
    ("b:1", 2, 1, ANSWER, True, 2.0, 1.0),
]


def make_replay() -> Replay:
    schema = pl.Schema({**ROUND_SCHEMA, "at_1": pl.Float64, "at_2": pl.Float64})
    table = pl.DataFrame(
        {"sequence_id": ["b:1", "a:1", "c:1"], "dataset": ["b", "a", "c"], "num_generated_tokens": [5, 7, 9]}
    )
    sequences = {
        "sequence_id": ["a:1", "b:1"],
        "labels": [6, 4],
        "labels_in_vocab": [3, 4],
        "labels_greedy": [6, 3],
    }
    return with_datasets(
        Replay(
            rounds=pl.DataFrame(ROUNDS, schema=schema, orient="row"),
            steps=pl.DataFrame(STEPS, schema=STEP_SCHEMA, orient="row"),
            sequences=pl.DataFrame(sequences),
        ),
        table,
    )


def make_simulation(sampling: Sampling = GREEDY, drafting: str = "greedy", **params: Any) -> Simulation:
    return Simulation.of(make_replay(), EvaluateParams(**{**PARAMS, **params}), 2, 2, sampling, drafting)
