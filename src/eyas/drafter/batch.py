"""Sequences packed into one training or replay batch, one after another without padding.

Slots, anchors and labels are those of eyas.drafter.chainrows. Slots after a sequence's last anchor are left out.

Shapes: B sequences, N packed slots, P packed anchors, L packed labelled positions, S draft steps, A aux layers,
H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor

from eyas.drafter.chainrows import ChainRows
from eyas.drafter.plan import Chunk, plan_chunks
from eyas.shards import SequenceStates


@dataclass(frozen=True)
class DraftBatch:
    """Everything that `unroll` and the loss read."""

    slot_tokens: Tensor
    """int64 [N]: x[p+1]."""
    slot_aux: Tensor
    """[N, A * H], as stored."""
    slot_positions: Tensor
    """int64 [N]: p."""
    anchors: Tensor
    """int64 [P]: packed slot of each anchor."""
    step_anchors: Tensor
    """int64 [P, S]: the anchor at slot p+k, which reads at its step 0 the token that this one reads at step k; 0 where
    not valid."""
    step_next: Tensor
    """int64 [P, S]: x[p+2+k], the token that was generated where step k predicts one; 0 where not valid."""
    step_valid: Tensor
    """bool [P, S]: the engine can reach step k from this anchor, and its label was generated."""
    step_labels: Tensor
    """int64 [P, S]: packed labelled position p+1+k; 0 where not valid."""
    label_anchors: Tensor
    """int64 [L, S]: the other way round, the anchor whose step k is judged at this labelled position; -1 if none."""
    label_sequence: Tensor
    """int64 [L]: which sequence it is of."""
    label_kinds: Tensor
    """uint8 [L]: kind (eyas.tokenkinds) of the token that is predicted there."""
    last: Tensor
    """[L, H]: the target's last hidden state, before its final norm."""
    argmax: Tensor
    """int64 [L]: the target's most likely next token."""
    logsumexp: Tensor
    """float32 [L]: of the target's logits over the full vocabulary."""
    sequence_weights: Tensor
    """float32 [B]."""
    sequence_ids: tuple[str, ...]
    """[B]"""
    chunks: tuple[Chunk, ...]
    """How attention goes through the anchors."""

    @property
    def steps(self) -> int:
        return self.step_valid.shape[1]

    def to(self, device: torch.device, *, non_blocking: bool = False) -> DraftBatch:
        """The same batch there."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        moved: dict[str, Any] = {
            name: value.to(device, non_blocking=non_blocking)
            for name, value in values.items()
            if isinstance(value, Tensor)
        }
        return replace(self, **moved)


def pack(sequences: Sequence[SequenceStates], steps: int) -> DraftBatch:
    """Pack sequences for `steps` draft steps; one without an anchor (a reply of one token) adds nothing.

    Raises:
        ValueError: no sequence has an anchor.
    """
    parts = [part for states in sequences if (part := _part(states, steps)) is not None]
    if not parts:
        raise ValueError("no sequence of this batch has two generated tokens in a row")
    slots, labels = _starts([part.slots for part in parts]), _starts([part.labels for part in parts])
    valid = torch.cat([part.rows.valid for part in parts])
    step_labels = torch.cat([part.rows.labels + start for part, start in zip(parts, labels, strict=True)])
    step_labels = torch.where(valid, step_labels, 0)
    label_anchors = _label_anchors(valid, step_labels, sum(part.labels for part in parts))
    first_anchors = label_anchors[:, 0][step_labels]  # [P, S]: that of slot p+k starts where step k is judged
    counts = torch.tensor([part.labels for part in parts])
    return DraftBatch(
        slot_tokens=torch.cat([part.tokens[1 : part.slots + 1] for part in parts]),
        slot_aux=torch.cat([part.states.aux[: part.slots].flatten(1) for part in parts]),
        slot_positions=torch.cat([torch.arange(part.slots) for part in parts]),
        anchors=torch.cat([part.rows.anchors + start for part, start in zip(parts, slots, strict=True)]),
        step_anchors=torch.where(valid, first_anchors, 0),
        step_next=torch.where(valid, torch.cat([part.tokens[part.rows.inputs + 1] for part in parts]), 0),
        step_valid=valid,
        step_labels=step_labels,
        label_anchors=label_anchors,
        label_sequence=torch.repeat_interleave(torch.arange(len(parts)), counts),
        label_kinds=torch.cat([part.label_kinds for part in parts]),
        last=torch.cat([part.states.last for part in parts]),
        argmax=torch.cat([part.states.argmax.long() for part in parts]),
        logsumexp=torch.cat([part.states.logsumexp for part in parts]),
        sequence_weights=torch.tensor([part.states.weight for part in parts], dtype=torch.float32),
        sequence_ids=tuple(part.states.sequence_id for part in parts),
        chunks=plan_chunks([part.rows.anchors.tolist() for part in parts], slots),
    )


@dataclass(frozen=True)
class _Part:
    """One sequence's share of a batch."""

    states: SequenceStates
    rows: ChainRows
    tokens: Tensor  # int64 [T]

    @property
    def slots(self) -> int:
        return int(self.rows.anchors[-1]) + 1

    @property
    def labels(self) -> int:
        return len(self.states.label_positions)

    @property
    def label_kinds(self) -> Tensor:
        return self.states.kinds[self.states.label_positions.long() + 1]  # [L]


def _part(states: SequenceStates, steps: int) -> _Part | None:
    rows = ChainRows.of(states.loss_mask, states.label_positions, steps)
    return _Part(states, rows, states.token_ids.long()) if len(rows.anchors) else None


def _starts(lengths: list[int]) -> list[int]:
    return [0, *accumulate(lengths)][:-1]


def _label_anchors(valid: Tensor, step_labels: Tensor, labels: int) -> Tensor:
    """int64 [L, S] from step_valid and step_labels [P, S]: at most one anchor reaches a label with its step k."""
    anchors, steps = torch.nonzero(valid, as_tuple=True)
    table = torch.full((labels, valid.shape[1]), -1)
    table[step_labels[anchors, steps], steps] = anchors
    return table
