from __future__ import annotations

from typing import Any

import pytest

from eyas.drafter.objective import Objective


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"loss": "mse"}, "loss: 'mse'"),
        ({"normaliser": "batch"}, "normaliser: 'batch'"),
        ({"mixture_weight": 1.5}, "mixture_weight: 1.5"),
        ({"lk_eta": -1.0}, "lk_eta: -1.0"),
        ({"step_decay": 0.0}, "step_decay: 0.0"),
        ({"step_weights": [1.0, -1.0]}, "step_weights: -1.0"),
        ({"step_weights": [0.0, 0.0]}, "step_weights: all are 0"),
        ({"kind_weights": {"prompt": 1.0}}, "kind_weights: 'prompt'"),
        ({"kind_weights": {"answer": float("nan")}}, "kind_weights: nan"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_a_wrong_value_is_named(values: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Objective(**values)


def test_step_weights_replace_the_decay() -> None:
    assert [Objective(step_decay=0.5).step_weight(step) for step in range(3)] == [1.0, 0.5, 0.25]
    listed = Objective(step_decay=0.5, step_weights=[1.0, 2.0])
    assert [listed.step_weight(step) for step in range(2)] == [1.0, 2.0]
    with pytest.raises(ValueError, match="no weight for draft step 2"):
        listed.step_weight(2)


def test_weights_by_kind_leave_prompts_out() -> None:
    assert Objective(kind_weights={"reasoning": 0.5}).weights_by_kind() == [0.0, 1.0, 0.5, 1.0, 1.0, 1.0]
