"""A backend with a planted fault."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from eyas.extract.backend import Backend, TransformersBackend
from eyas.target.model import TargetStates, load_target
from tests.tiny_target import profile_of

Fault = Callable[[list[TargetStates]], list[TargetStates]]


@dataclass(frozen=True)
class Spoiled:
    """Gives the states of another backend after `fault` has changed them; may say that they are of other layers."""

    inner: Backend
    fault: Fault
    aux_layer_ids: Sequence[int]
    name: str = "spoiled"

    @property
    def versions(self) -> dict[str, str]:
        return self.inner.versions

    def states(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        return self.fault(self.inner.states(sequences))

    def close(self) -> None:
        self.inner.close()


def good_backend(folder: Path) -> TransformersBackend:
    return TransformersBackend(load_target(folder, "float32"), profile_of(folder).aux_layer_ids)


def spoiled(backend: Backend, fault: Fault) -> Spoiled:
    return Spoiled(backend, fault, backend.aux_layer_ids)


def each(change: Callable[[TargetStates], TargetStates]) -> Fault:
    """A fault of every sequence."""
    return lambda batch: [change(states) for states in batch]


def with_aux(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    return each(lambda states: replace(states, aux=change(states.aux.clone())))


def with_last(change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    return each(lambda states: replace(states, last=change(states.last.clone())))


def with_column(column: int, change: Callable[[torch.Tensor], torch.Tensor]) -> Fault:
    """A fault of one aux layer."""

    def spoil(aux: torch.Tensor) -> torch.Tensor:
        aux[:, column] = change(aux[:, column].clone())
        return aux

    return with_aux(spoil)


def swapped(batch: list[TargetStates]) -> list[TargetStates]:
    """The first two sequences of a batch get each other's states, cut or filled up to the right number of rows."""
    if len(batch) == 1:
        return batch
    first, second = batch[:2]
    return [_of_length(second, len(first.last)), _of_length(first, len(second.last)), *batch[2:]]


def _of_length(states: TargetStates, rows: int) -> TargetStates:
    at = torch.arange(rows).clamp_max(len(states.last) - 1)
    return TargetStates(aux=states.aux[at], last=states.last[at])
