"""What is counted while states are computed: per shard, kept beside it, and merged over all shards at the end.

Letter in shape comments: A aux layers; the last state is the column behind them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.extract.agreement import Agreement
from eyas.fidelity import StorageError, relative_errors
from eyas.states import SequenceStates, StoredStates, from_stored


@dataclass
class Facts:
    """Gate counts, largest values and storage errors of some sequences' states."""

    agreement: Agreement
    largest: list[float]
    """[A + 1] largest absolute value."""
    vectors: list[int]
    """[A + 1] vectors whose storage error was measured: those of one sequence of each batch."""
    errors: list[float]
    """[A + 1] sum of their storage errors, |stored - computed| / |computed|."""
    worst: list[float]
    """[A + 1] largest of these."""

    @classmethod
    def none(cls, agreement: Agreement, layers: int) -> Facts:
        """Nothing counted yet, for A = `layers` aux layers."""
        columns = layers + 1
        return cls(agreement, [0.0] * columns, [0] * columns, [0.0] * columns, [0.0] * columns)

    def add_largest(self, values: Tensor) -> None:
        """Look for the largest values among those of a sequence, [A + 1]."""
        self.largest = [max(pair) for pair in zip(self.largest, values.tolist(), strict=True)]

    def add_rounding(self, computed: SequenceStates, stored: StoredStates) -> None:
        """Compare what a storage type keeps with what was computed."""
        if stored.tensors["aux"].dtype in (
            computed.aux.dtype,
            torch.float32,
        ):  # as exact as the target's dtype
            errors = [torch.zeros(len(computed.aux))] * computed.aux.shape[1] + [
                torch.zeros(len(computed.last))
            ]
        else:
            errors = relative_errors(computed, from_stored(stored))
        for column, each in enumerate(errors):
            self.vectors[column] += len(each)
            self.errors[column] += each.sum().item()
            self.worst[column] = max(self.worst[column], each.max().item() if len(each) else 0.0)

    def merge(self, other: Facts) -> None:
        """Count what another one counted."""
        self.agreement.merge(other.agreement)
        self.largest = [max(pair) for pair in zip(self.largest, other.largest, strict=True)]
        self.vectors = [a + b for a, b in zip(self.vectors, other.vectors, strict=True)]
        self.errors = [a + b for a, b in zip(self.errors, other.errors, strict=True)]
        self.worst = [max(pair) for pair in zip(self.worst, other.worst, strict=True)]

    @property
    def storage_errors(self) -> list[StorageError]:
        """[A + 1] errors by column."""
        return [
            StorageError(count, total / count if count else None, worst if count else None)
            for count, total, worst in zip(self.vectors, self.errors, self.worst, strict=True)
        ]

    def to_json(self) -> dict[str, Any]:
        """Everything, as a JSON value."""
        return {
            "agreement": self.agreement.to_json(),
            "largest": self.largest,
            "vectors": self.vectors,
            "errors": self.errors,
            "worst": self.worst,
        }

    @classmethod
    def from_json(cls, values: dict[str, Any], agreement: Agreement) -> Facts:
        """The inverse of `to_json`; `agreement` is an empty one.

        Raises:
            KeyError, TypeError: the value is no such object.
        """
        agreement.load(values["agreement"])
        return cls(agreement, *(values[name] for name in ("largest", "vectors", "errors", "worst")))
