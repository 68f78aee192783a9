from __future__ import annotations

import pytest
from lightning.pytorch import Callback
from lightning.pytorch.strategies import DDPStrategy

from eyas.compute import ComputeParams
from eyas.errors import ConfigError
from eyas.train.trainer import Processes, make_trainer


@pytest.mark.parametrize(
    ("environment", "compute", "expected"),
    [
        ({}, ComputeParams(accelerator="cpu"), Processes(1, 1)),
        ({}, ComputeParams(accelerator="cpu", devices=3), Processes(3, 1)),
        ({}, ComputeParams(accelerator="cpu", devices=3, num_nodes=2), Processes(3, 2)),
        (
            {"LOCAL_WORLD_SIZE": "4", "WORLD_SIZE": "8"},
            ComputeParams(accelerator="cpu", devices=1),
            Processes(4, 2),
        ),
    ],
)
def test_torchrun_goes_before_params(
    monkeypatch: pytest.MonkeyPatch,
    environment: dict[str, str],
    compute: ComputeParams,
    expected: Processes,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    assert Processes.of(compute) == expected


def test_the_targets_rows_are_never_sent_between_processes() -> None:
    trainer = make_trainer(ComputeParams(accelerator="cpu", devices=2), "32-true", 1, Callback())
    assert isinstance(trainer.strategy, DDPStrategy)
    assert trainer.strategy._ddp_kwargs == {"broadcast_buffers": False}


def test_devices_that_are_not_there() -> None:
    import torch

    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(ConfigError, match="can't get a device each") as error:
        make_trainer(ComputeParams(accelerator="cuda", devices=2), "32-true", 1, Callback())
    assert "compute.accelerator" in str(error.value.where)
