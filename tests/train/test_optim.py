from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from eyas.drafter.objective import Objective
from eyas.train.optim import WeightAverage, build_optimizers, lr_factor
from eyas.train.params import DrafterFlags
from tests.drafter.conftest import make_drafter

from .example import PARAMS


@pytest.mark.parametrize(
    ("schedule", "middle", "late"),
    [("cosine", 0.5, 0.0245), ("linear", 0.5, 0.1), ("constant", 1.0, 1.0), ("wsd", 1.0, 0.45)],
)
def test_schedules(schedule: str, middle: float, late: float) -> None:
    factor = lr_factor(dataclasses.replace(PARAMS, schedule=schedule, decay_share=0.2), 100)
    assert [round(factor(step), 6) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert factor(10) == 1.0
    assert factor(55) == pytest.approx(middle)
    assert factor(91) == pytest.approx(late, abs=1e-4)
    assert factor(100) == pytest.approx(0.0 if schedule != "constant" else 1.0)


def test_muon_takes_the_matrices_of_the_layer_and_nothing_twice() -> None:
    drafter = make_drafter()
    names = {id(weight): name for name, weight in drafter.named_parameters()}
    muon, adamw = build_optimizers(drafter, dataclasses.replace(PARAMS, optimizer="muon"))
    in_muon, in_adamw = (
        {names[id(weight)] for group in optimizer.param_groups for weight in group["params"]}
        for optimizer in (muon, adamw)
    )
    assert in_muon == {name for name in names.values() if "proj" in name or name == "fc.weight"}
    assert in_muon | in_adamw == set(names.values())
    assert not in_muon & in_adamw


def test_norms_do_not_decay() -> None:
    drafter = make_drafter()
    (adamw,) = build_optimizers(drafter, dataclasses.replace(PARAMS, weight_decay=0.1))
    decays = {id(weight): group["weight_decay"] for group in adamw.param_groups for weight in group["params"]}
    for name, weight in drafter.named_parameters():
        assert decays[id(weight)] == (0.0 if "norm" in name else 0.1), name


def test_a_frozen_head_is_not_optimised() -> None:
    drafter = make_drafter()
    drafter.lm_head.weight.requires_grad_(False)
    (adamw,) = build_optimizers(drafter, PARAMS)
    assert all(
        weight is not drafter.lm_head.weight for group in adamw.param_groups for weight in group["params"]
    )


def test_the_average_follows_the_weights() -> None:
    drafter = make_drafter()
    average = WeightAverage(drafter, 0.5)
    expected = drafter.fc.weight.detach().clone()
    for step in range(12):
        with torch.no_grad():
            drafter.fc.weight += 1
        average.update(drafter, step)
        decay = min(0.5, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * drafter.fc.weight.detach()
    assert torch.allclose(average.tensors["fc.weight"], expected)
    own = drafter.fc.weight.detach().clone()
    with average.applied(drafter):
        assert torch.equal(drafter.fc.weight, average.tensors["fc.weight"])
    assert torch.equal(drafter.fc.weight, own)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer: 'sgd'"),
        ({"schedule": "step"}, "schedule"),
        ({"precision": "16-mixed"}, "precision"),
        ({"publish": "first"}, "publish"),
        ({"lr": 0.0}, "lr: 0.0"),
        ({"epochs": 0}, "epochs: 0 is below 1"),
        ({"bucket_steps": 0}, "bucket_steps"),
        ({"val_every_steps": 0}, "val_every_steps"),
        ({"val_sequences": 0}, "val_sequences"),
        ({"early_stopping": 0}, "early_stopping"),
        ({"seed": -1}, "seed"),
        ({"betas": [0.9]}, "betas"),
        ({"warmup_share": 1.0}, "warmup_share"),
        ({"ema": 1.0}, "ema"),
        ({"schedule": "wsd", "warmup_share": 0.5, "decay_share": 0.6}, "decay_share"),
        ({"ttt_steps": 3, "objective": Objective(step_weights=[1.0, 0.5])}, "objective.step_weights"),
        ({"drafter": DrafterFlags(norm_before_fc=True, fc_norm=True)}, "excludes"),
    ],
)
def test_impossible_values_are_named(change: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PARAMS, **change)
