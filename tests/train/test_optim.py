from __future__ import annotations

import dataclasses

import pytest

from eyas.train.optim import build_optimizers, lr_factor
from eyas.train.params import DrafterFlags, TrainParams
from tests.drafter.conftest import make_drafter

PARAMS = TrainParams(
    ttt_steps=2,
    epochs=2,
    batch_tokens=64,
    optimizer="adamw",
    lr=1e-3,
    schedule="cosine",
    warmup_share=0.1,
    weight_decay=0.0,
    betas=[0.9, 0.95],
    clip_norm=0.5,
    step_decay=0.8,
    mask_out_of_vocab=True,
    freeze_lm_head=False,
    seed=0,
)


@pytest.mark.parametrize(("schedule", "middle"), [("cosine", 0.5), ("linear", 0.5), ("constant", 1.0)])
def test_schedules(schedule: str, middle: float) -> None:
    factor = lr_factor(dataclasses.replace(PARAMS, schedule=schedule), 100)
    assert [round(factor(step), 6) for step in (0, 4, 9)] == [0.1, 0.5, 1.0]
    assert factor(10) == 1.0
    assert factor(55) == pytest.approx(middle)
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


def test_a_frozen_head_is_not_optimised() -> None:
    drafter = make_drafter()
    drafter.lm_head.weight.requires_grad_(False)
    (adamw,) = build_optimizers(drafter, PARAMS)
    assert all(
        weight is not drafter.lm_head.weight for group in adamw.param_groups for weight in group["params"]
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"optimizer": "sgd"}, "optimizer"),
        ({"lr": 0.0}, "lr"),
        ({"epochs": 0}, "epochs"),
        ({"betas": [0.9]}, "betas"),
        ({"warmup_share": 1.0}, "warmup_share"),
        ({"drafter": DrafterFlags(norm_before_fc=True, fc_norm=True)}, "excludes"),
    ],
)
def test_impossible_values_are_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(PARAMS, **change)  # type: ignore[arg-type]
