from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from eyas.config import build
from eyas.errors import ConfigError
from eyas.evaluate.params import EvaluateParams
from eyas.evaluate.replay import ROUND_SCHEMA, Replay
from eyas.evaluate.report import acceptance_report, by_dataset, by_position, with_datasets

ROUNDS = [
    # sequence, K, position, accepted, past_end, missed_in_vocab
    ("a:1", 2, 0, 2, 0, None),
    ("a:1", 2, 3, 0, 0, False),
    ("a:1", 2, 4, 1, 0, True),
    ("b:1", 2, 0, 0, 0, True),
    ("b:1", 2, 1, 1, 1, None),
    ("a:1", 1, 0, 1, 0, None),
    ("a:1", 1, 2, 1, 0, None),
    ("b:1", 1, 0, 0, 0, True),
]


@pytest.fixture
def replayed() -> Replay:
    rounds = pl.DataFrame(ROUNDS, schema=ROUND_SCHEMA, orient="row")
    sequences = pl.DataFrame(
        {"sequence_id": ["a:1", "b:1"], "labels": [6, 4], "labels_in_vocab": [3, 4], "labels_greedy": [6, 3]}
    )
    table = pl.DataFrame(
        {"sequence_id": ["b:1", "a:1", "c:1"], "dataset": ["b", "a", "c"], "num_generated_tokens": [5, 7, 9]}
    )
    return with_datasets(Replay(rounds, sequences), table)


def test_report_of_hand_made_rounds(replayed: Replay) -> None:
    report = acceptance_report(replayed, 2)
    assert report["datasets"]["a"] == {
        "sequences": 1,
        "generated_tokens": 7,
        "drafts": 3,
        "accepted": 3,
        "acceptance": {"length": 2.0, "at_1": pytest.approx(2 / 3), "at_2": pytest.approx(1 / 3)},
        "conditional": {"at_1": pytest.approx(2 / 3), "at_2": 0.5},
        "past_end": 0,
        "misses": {"in_vocab": 1, "out_of_vocab": 1},
        "greedy_share": 1.0,
        "in_vocab_share": 0.5,
        "length_by_draft_tokens": {"1": 2.0, "2": 2.0},
    }
    assert list(report["datasets"]) == ["a", "b"]
    overall = report["overall"]
    assert (overall["drafts"], overall["accepted"], overall["acceptance"]["length"]) == (
        5,
        4,
        pytest.approx(1.8),
    )
    assert (overall["past_end"], overall["in_vocab_share"], overall["greedy_share"]) == (1, 0.7, 0.9)
    assert "1 + accepted / drafts" in report["formula"]


def test_plot_tables_are_in_long_form(replayed: Replay) -> None:
    assert by_dataset(replayed, 2).rows() == [
        ("all", 1, 0.6, 0.6),
        ("all", 2, 0.2, 0.333333),
        ("a", 1, 0.666667, 0.666667),
        ("a", 2, 0.333333, 0.5),
        ("b", 1, 0.5, 0.5),
        ("b", 2, 0.0, 0.0),
    ]
    assert by_position(replayed, 2, [0, 2, 8]).rows() == [
        ("all", 0, 2.0, 3),
        ("all", 2, 1.5, 2),
        ("a", 0, 3.0, 1),
        ("a", 2, 1.5, 2),
        ("b", 0, 1.5, 2),
    ]


@pytest.mark.parametrize("bins", [[], [1, 2], [0, 4, 4], [0, 8, 4]])
def test_bins_must_ascend_from_zero(bins: list[Any]) -> None:
    with pytest.raises(ConfigError, match="position_bins"):
        build("evaluate", EvaluateParams, {"position_bins": bins})
