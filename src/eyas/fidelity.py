"""How far stored states are from the computed ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyas.states import SequenceStates

if TYPE_CHECKING:
    from torch import Tensor

LAST = "last"
"""Name of the last state beside the aux layer ids."""


@dataclass(frozen=True)
class StorageError:
    """Relative errors |stored - computed| / |computed| of the vectors of a layer; null where there is no vector."""

    vectors: int
    mean: float | None
    worst: float | None


def storage_error(
    computed: Iterable[SequenceStates], stored: Iterable[SequenceStates], aux_layer_ids: Sequence[int]
) -> dict[str, StorageError]:
    """Errors of some sequences by layer: aux layer ids as text, and `last`.

    Args:
        computed: states as the backend gave them.
        stored: the same sequences, decoded from what a store keeps.
        aux_layer_ids: names of the layers.

    Raises:
        ValueError: the sequences are not the same.
    """
    names = [*map(str, aux_layer_ids), LAST]
    vectors, totals, worst = dict.fromkeys(names, 0), dict.fromkeys(names, 0.0), dict.fromkeys(names, 0.0)
    for exact, kept in zip(computed, stored, strict=True):
        for name, errors in zip(names, relative_errors(exact, kept), strict=True):
            if len(errors):
                vectors[name] += len(errors)
                totals[name] += errors.sum().item()
                worst[name] = max(worst[name], errors.max().item())
    return {
        name: StorageError(count, totals[name] / count if count else None, worst[name] if count else None)
        for name, count in vectors.items()
    }


def relative_errors(computed: SequenceStates, stored: SequenceStates) -> list[Tensor]:
    """float64 [T] for each aux layer, then [L] for the last state.

    Raises:
        ValueError: the sequences are not the same.
    """
    if computed.sequence_id != stored.sequence_id:
        raise ValueError(f"{computed.sequence_id} is compared with {stored.sequence_id}")
    layers = zip(computed.aux.unbind(1), stored.aux.unbind(1), strict=True)
    return [_relative(exact, kept) for exact, kept in (*layers, (computed.last, stored.last))]


def _relative(exact: Tensor, kept: Tensor) -> Tensor:
    """[N, H] twice -> float64 [N]; 0 where both are zero."""
    import torch

    wide = exact.to("cpu", torch.float32)
    error = torch.linalg.vector_norm(kept.cpu().float() - wide, dim=-1, dtype=torch.float64)
    length = torch.linalg.vector_norm(wide, dim=-1, dtype=torch.float64)
    return torch.where(error > 0, error / length, 0.0)
