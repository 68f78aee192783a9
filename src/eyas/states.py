"""The hidden states of one sequence, as computed and as a store keeps them.

Letters in shape comments: T tokens of a sequence, A aux layers, H hidden size, B blocks of a vector, L labelled positions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from eyas.manifest import StoreMeta
from eyas.storage import STORAGE_TYPES, Encoded, decode, encode

if TYPE_CHECKING:  # whoever reads a manifest alone does without torch
    import torch
    from torch import Tensor

TENSORS = ("token_ids", "kinds", "aux", "label_positions", "last", "argmax", "logsumexp")
"""Tensors of SequenceStates, and of a shard of any storage type."""
PER_LABEL = ("label_positions", "last", "last_scales", "argmax", "logsumexp")
"""Tensors with a row for each labelled position; the others have one for each token."""
ENCODED = ("aux", "last")
"""Tensors in the storage type; `<name>_scales` beside them for a type with blocks."""


@dataclass(frozen=True)
class SequenceStates:
    """The states of one sequence. Labelled positions q are those with loss_mask[q] and loss_mask[q+1]."""

    sequence_id: str
    token_ids: Tensor
    """int32 [T]"""
    kinds: Tensor
    """uint8 [T], see eyas.tokenkinds."""
    weight: float
    """How much the sequence counts in training."""
    aux: Tensor
    """[T, A, H]"""
    label_positions: Tensor
    """int32 [L], ascending."""
    last: Tensor
    """[L, H] before the final norm, at the labelled positions."""
    argmax: Tensor
    """int32 [L], of the target's logits over the full vocabulary."""
    logsumexp: Tensor
    """float32 [L], of the same logits."""

    @property
    def loss_mask(self) -> Tensor:
        """bool [T], true on generated tokens."""
        return self.kinds != 0


@dataclass(frozen=True)
class StoredStates:
    """The states of one sequence in a storage type: what a shard keeps, on the CPU."""

    sequence_id: str
    weight: float
    tensors: dict[str, Tensor]
    """TENSORS, and `aux_scales` [T, A, B] and `last_scales` [L, B] for a type with blocks."""

    @property
    def tokens(self) -> int:
        return len(self.tensors["token_ids"])

    @property
    def labels(self) -> int:
        return len(self.tensors["label_positions"])


def label_positions(loss_mask: Tensor) -> Tensor:
    """int32 [L]: positions whose distribution is a label, from a bool [T] loss mask.

    The distribution at q predicts token q+1; it is needed where both are generated.
    """
    import torch

    return torch.nonzero(loss_mask[:-1] & loss_mask[1:]).flatten().to(torch.int32)


def sequence_bytes(tokens: int, labels: int, aux_layers: int, hidden_size: int, dtype: str) -> int:
    """Bytes that a sequence takes in the store."""
    vector = STORAGE_TYPES[dtype].vector_bytes(hidden_size)
    return tokens * (aux_layers * vector + 4 + 1) + labels * (vector + 3 * 4)


def tensor_dtypes(dtype: str) -> dict[str, torch.dtype]:
    """Names and torch dtypes of a shard's tensors, for a storage type."""
    import torch

    kind = STORAGE_TYPES[dtype]
    whole = {
        "token_ids": torch.int32,
        "kinds": torch.uint8,
        "label_positions": torch.int32,
        "argmax": torch.int32,
    }
    scales = {f"{name}_scales": torch.bfloat16 for name in ENCODED if kind.in_blocks}
    return {**whole, "logsumexp": torch.float32, **dict.fromkeys(ENCODED, kind.torch_dtype), **scales}


def to_stored(states: SequenceStates, meta: StoreMeta) -> StoredStates:
    """Cast to the storage type of a store, on the CPU. Aux and last are copies: they keep no batch in memory.

    Raises:
        ValueError: shapes do not fit each other; a weight or, in a type with blocks, a state is not finite.
    """
    _check(states, len(meta.aux_layer_ids))
    dtypes = tensor_dtypes(meta.dtype)
    tensors = {name: getattr(states, name).to("cpu", dtypes[name]) for name in TENSORS if name not in ENCODED}
    for name in ENCODED:
        try:
            values = getattr(states, name)
            encoded = encode(values, meta.dtype)
        except ValueError as error:
            raise ValueError(f"{states.sequence_id}: {name}: {error}") from error
        copied = encoded.codes.data_ptr() != values.data_ptr()
        tensors[name] = encoded.codes.to("cpu", copy=not copied)
        if encoded.scales is not None:
            tensors[f"{name}_scales"] = encoded.scales.cpu()
    return StoredStates(states.sequence_id, states.weight, tensors)


def from_stored(stored: StoredStates) -> SequenceStates:
    """Decode; tensors that are stored as they are stay views."""
    tensors = stored.tensors
    decoded = {
        name: decode(Encoded(tensors[name], tensors.get(f"{name}_scales")))
        if name in ENCODED
        else tensors[name]
        for name in TENSORS
    }
    return SequenceStates(sequence_id=stored.sequence_id, weight=stored.weight, **decoded)


def _check(states: SequenceStates, aux_layers: int) -> None:
    tokens, labels = len(states.token_ids), len(states.label_positions)
    wrong = [
        name for name in TENSORS if len(getattr(states, name)) != (labels if name in PER_LABEL else tokens)
    ]
    if wrong or states.aux.dim() != 3 or states.aux.shape[1] != aux_layers:
        raise ValueError(
            f"{states.sequence_id}: {wrong or 'aux'} does not fit {tokens} tokens, {labels} labels, "
            f"{aux_layers} aux layers"
        )
    if not 0 <= states.weight < float("inf"):
        raise ValueError(f"{states.sequence_id}: weight {states.weight} is not a number from 0 on")
