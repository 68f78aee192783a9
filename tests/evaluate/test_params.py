from __future__ import annotations

from typing import Any

import pytest

from eyas.config import build, load_section
from eyas.errors import ConfigError
from eyas.evaluate.params import EvaluateParams
from eyas.speedup import RoundCost

from .examples import PARAMS


@pytest.mark.parametrize("key", ["position_bins", "context_bins"])
@pytest.mark.parametrize("bins", [[], [1, 2], [0, 4, 4], [0, 8, 4]])
def test_bins_must_ascend_from_zero(key: str, bins: list[Any]) -> None:
    with pytest.raises(ConfigError, match=f"evaluate.{key}"):
        build("evaluate", EvaluateParams, {**PARAMS, key: bins})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("max_draft_tokens", 0),
        ("bootstrap_resamples", 99),
        ("cost_per_draft_token", -0.1),
        ("cost_per_round", -0.1),
    ],
)
def test_impossible_numbers_are_refused(key: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"evaluate.{key}"):
        build("evaluate", EvaluateParams, {**PARAMS, key: value})


def test_without_a_cost_nothing_is_predicted() -> None:
    assert EvaluateParams(**PARAMS).cost is None
    assert EvaluateParams(**{**PARAMS, "cost_per_draft_token": 0.2}).cost == RoundCost(0.2, 0.0)


def test_the_default_run_has_the_section() -> None:
    assert load_section("evaluate", EvaluateParams).max_draft_tokens >= 5
