from __future__ import annotations

from typing import Any

import numpy as np
import polars as pl
import pytest
from numpy.typing import NDArray

from eyas.evaluate import bootstrap
from eyas.evaluate.bootstrap import Bootstrap, resample


def rounds_of(counts: NDArray[Any], dataset: str) -> pl.DataFrame:
    """One row per sequence that stands for all its rounds: drafts, at_1."""
    return pl.DataFrame(
        {
            "sequence_id": [f"{dataset}:{place:04}" for place in range(len(counts))],
            "draft_tokens": [1] * len(counts),
            "weight": counts[:, 0].astype(float),
            "at_1": counts[:, 1] / counts[:, 0],
        }
    )


def drawn(counts: dict[str, NDArray[Any]], resamples: int = 1000) -> Bootstrap:
    rounds = pl.concat([rounds_of(table, name) for name, table in counts.items()])
    sequences = rounds.select("sequence_id", dataset=pl.col("sequence_id").str.split(":").list.first())
    return Bootstrap.of(rounds, sequences, 1, resamples)


def test_resampled_sums_are_those_of_drawn_sequences(monkeypatch: pytest.MonkeyPatch) -> None:
    sums = np.array([[1.0, 100.0], [2.0, 200.0], [4.0, 400.0]])
    found = resample(sums, 500)
    assert found.shape == (500, 2)
    assert (found[:, 1] == 100 * found[:, 0]).all()  # columns are drawn together
    possible = {a + b + c for a in (1, 2, 4) for b in (1, 2, 4) for c in (1, 2, 4)}
    assert set(found[:, 0]) == possible
    assert found[:, 0].mean() == pytest.approx(7, rel=0.03)
    monkeypatch.setattr(bootstrap, "DRAWS_AT_A_TIME", 3)
    assert np.array_equal(resample(sums, 500), found)  # however many are held at a time


def test_intervals_cover_the_truth_as_often_as_they_say() -> None:
    """Sequences of unequal length and easiness; the truth is the ratio of expectations."""
    random = np.random.default_rng(0)
    covered = 0
    for _ in range(120):
        drafts = random.integers(5, 60, size=40)
        ease = np.clip(0.5 + 0.2 * random.standard_normal(40), 0, 1)
        found = drawn({"d": np.column_stack((drafts, random.binomial(drafts, ease)))}, 400)
        low, high = found.intervals(["d"], 1)["length"] or (0.0, 0.0)
        covered += low <= 1.5 <= high
    assert 0.88 <= covered / 120 <= 0.99


def test_several_datasets_are_drawn_from_one_by_one() -> None:
    """No interval may hold what comes of another mix of datasets: all sequences of each are alike here."""
    counts = {"a": np.tile([10, 9], (5, 1)), "b": np.tile([10, 1], (5, 1))}
    found = drawn(counts)
    assert found.intervals(["a"], 1) == {"length": [1.9, 1.9], "at_1": [0.9, 0.9]}
    assert found.intervals(["a", "b"], 1)["at_1"] == pytest.approx([0.5, 0.5])


def test_too_few_sequences_say_nothing() -> None:
    found = drawn({"a": np.array([[10, 9]]), "b": np.array([[10, 1], [8, 2]])})
    assert found.intervals(["a"], 1) == {"length": None, "at_1": None}
    assert found.intervals(["a", "b"], 1)["length"] is None
    assert found.intervals(["b"], 1)["length"] is not None


def test_the_same_data_give_the_same_intervals() -> None:
    random = np.random.default_rng(1)
    counts = {"a": np.column_stack((np.full(30, 20), random.integers(0, 20, 30)))}
    assert drawn(counts).intervals(["a"], 1) == drawn(counts).intervals(["a"], 1)
