"""The saved state of a training run: one safetensors file with its record as JSON in the header. Nothing is unpickled.

Weights, optimiser state and averages are tensors. Learning rates and batches are functions of the step, and no step draws
random numbers, so there is nothing else to keep.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.optim import Optimizer

from eyas.drafter.model import Drafter
from eyas.errors import ArtifactError
from eyas.files import atomic_file
from eyas.hashing import canonical_json
from eyas.train.optim import WeightAverage
from eyas.train.record import Record

FORMAT_VERSION = 1
METADATA_KEY = "eyas"
WEIGHTS, AVERAGE, OPTIMIZER = "drafter.", "average.", "optimizer."


@dataclass(frozen=True)
class Trained:
    """What changes while training."""

    drafter: Drafter
    optimizers: Sequence[Optimizer]
    average: WeightAverage | None


@dataclass(frozen=True)
class SavedState:
    """A state file, read."""

    record: Record
    tensors: dict[str, Tensor]


def write_state(path: Path, trained: Trained, record: Record) -> None:
    """Write the state after the record's step; the old file stays until the new one is whole and synced."""
    tensors = _named(WEIGHTS, trained.drafter.state_dict())
    if trained.average is not None:
        tensors |= _named(AVERAGE, trained.average.tensors)
    for number, optimizer in enumerate(trained.optimizers):
        for index, values in optimizer.state_dict()["state"].items():
            tensors |= _named(f"{OPTIMIZER}{number}.{index}.", values)
    header = {"format_version": FORMAT_VERSION, "record": record.to_json()}
    write_tensors(path, tensors, {METADATA_KEY: canonical_json(header).decode()})


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file whole or not at all, on the disk when this returns."""
    plain = {name: tensor.detach().to("cpu", copy=False).contiguous() for name, tensor in tensors.items()}
    with atomic_file(path) as temporary:
        save_file(plain, temporary, metadata=metadata)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def read_state(path: Path) -> SavedState | None:
    """The saved state, in CPU memory; None if there is none.

    Raises:
        ArtifactError: the file is damaged or of another version.
    """
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="pt") as file:
            header = json.loads((file.metadata() or {})[METADATA_KEY])
            if header["format_version"] != FORMAT_VERSION:
                raise _damaged(path, f"has format version {header['format_version']}")
            tensors = {name: file.get_tensor(name).clone() for name in file.keys()}  # noqa: SIM118 - no mapping
            return SavedState(Record.from_json(header["record"]), tensors)
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise _damaged(path, f"can't be read: {error}") from error


def load_state(trained: Trained, saved: SavedState) -> None:
    """Put a saved state into a new run's drafter, optimisers and averages."""
    trained.drafter.load_state_dict(_below(WEIGHTS, saved.tensors))
    if trained.average is not None:
        trained.average.load(_below(AVERAGE, saved.tensors))
    for number, optimizer in enumerate(trained.optimizers):
        state: dict[int, dict[str, Tensor]] = {}
        for name, tensor in _below(f"{OPTIMIZER}{number}.", saved.tensors).items():
            index, _, key = name.partition(".")
            state.setdefault(int(index), {})[key] = tensor
        optimizer.load_state_dict({**optimizer.state_dict(), "state": state})


def published_weights(saved: SavedState) -> dict[str, Tensor]:
    """The drafter's weights, averaged where there is an average."""
    return {**_below(WEIGHTS, saved.tensors), **_below(AVERAGE, saved.tensors)}


def _named(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {prefix + name: torch.as_tensor(tensor) for name, tensor in tensors.items()}


def _below(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _damaged(path: Path, why: str) -> ArtifactError:
    return ArtifactError(
        f"the saved state of training {why}",
        where=str(path),
        hint=f"remove {path.parent} to train from the start",
    )
