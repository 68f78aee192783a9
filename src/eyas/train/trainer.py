"""The Lightning trainer of a run: devices, processes, precision. Lightning starts the processes, or torchrun has."""

from __future__ import annotations

import os
import warnings
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningDataModule, LightningModule, Trainer
from lightning.pytorch.strategies import DDPStrategy

from eyas.compute import ComputeParams
from eyas.errors import ConfigError

RENDEZVOUS = timedelta(hours=2)
"""Processes wait for each other so long: one may still read and check the stores."""


@dataclass(frozen=True)
class Processes:
    """How many work together."""

    on_node: int
    nodes: int

    @classmethod
    def of(cls, compute: ComputeParams) -> Processes:
        """Those that torchrun has started, else those that params ask for."""
        if "LOCAL_WORLD_SIZE" in os.environ and "WORLD_SIZE" in os.environ:
            on_node = int(os.environ["LOCAL_WORLD_SIZE"])
            return cls(on_node, int(os.environ["WORLD_SIZE"]) // on_node)
        on_node = _gpus(compute.accelerator) if compute.devices == "auto" else int(compute.devices)
        return cls(on_node, compute.num_nodes)

    @property
    def count(self) -> int:
        return self.on_node * self.nodes


def make_trainer(compute: ComputeParams, precision: str, epochs: int, callback: Callback) -> Trainer:
    """A trainer that leaves to eyas.train what it would do its own way: checkpoints, logs, progress, samplers.

    Raises:
        ConfigError: the devices are not there.
    """
    processes = Processes.of(compute)
    _set_threads(compute, processes)
    several = processes.count > 1 or compute.strategy == "ddp"
    # buffers hold the target's embedding and head, the same everywhere: they are never sent
    strategy: Any = DDPStrategy(broadcast_buffers=False, timeout=RENDEZVOUS) if several else "auto"
    try:
        return Trainer(
            accelerator=compute.accelerator,
            devices=processes.on_node,
            num_nodes=processes.nodes,
            strategy=strategy,
            precision=precision,  # type: ignore[arg-type]
            max_epochs=epochs,
            callbacks=[callback],
            logger=False,
            enable_checkpointing=False,
            enable_model_summary=False,
            enable_progress_bar=False,
            num_sanity_val_steps=-1,
            reload_dataloaders_every_n_epochs=1,
            use_distributed_sampler=False,
            deterministic="warn",
        )
    except (MisconfigurationException, ValueError) as error:
        raise ConfigError(
            f"{processes.on_node} processes can't get a device each: {error}",
            where="compute.accelerator, compute.devices",
            hint="as many processes as GPUs, or compute.accelerator: cpu",
        ) from error


def run(trainer: Trainer, module: LightningModule, data: LightningDataModule) -> None:
    """Fit, without the advice that Lightning gives about things that are meant as they are."""
    # deterministic mode fills new memory, for kernels that read what nobody wrote: 5 % of a step's time for nothing here
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's use of torch
        warnings.filterwarnings("ignore", message=".*smaller than the logging interval.*")
        trainer.fit(module, datamodule=data)


def validate(trainer: Trainer, module: LightningModule, data: LightningDataModule) -> None:
    """Validate alone: a drafter that is not trained."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*LeafSpec.*")  # Lightning's use of torch
        trainer.validate(module, datamodule=data, verbose=False)


def _gpus(accelerator: str) -> int:
    return max(1, torch.cuda.device_count()) if accelerator in ("auto", "gpu", "cuda") else 1


def _set_threads(compute: ComputeParams, processes: Processes) -> None:
    if compute.threads is not None:
        torch.set_num_threads(compute.threads)
    elif "OMP_NUM_THREADS" not in os.environ and processes.on_node > 1:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // processes.on_node))
