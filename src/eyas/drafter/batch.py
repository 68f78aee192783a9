"""Sequences packed into one training or replay batch.

A slot p of a sequence holds the aux hidden states of position p and the token x[p+1]. Draft step k of slot p
reads token x[p+1+k] and predicts x[p+2+k]. An anchor is a slot at which the engine can start a draft: x[p+1]
and x[p+2] are both generated. Prompt slots are never anchors: they lend their keys and values only.

Example, T=7, prompt x0..x2, generated x3..x6 (x6 ends the turn):

    slot          0    1    2    3    4
    token        x1   x2   x3   x4   x5
    anchor        -    -    *    *    *
    label, k=0             x4   x5   x6
    label, k=1             x5   x6    -

Shapes: B sequences, T tokens of one sequence, N packed slots, P packed anchors, L packed labelled positions,
S draft steps, A aux layers, H hidden size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from eyas.shards import SequenceStates


@dataclass(frozen=True)
class SlotGrid:
    """Where packed slots and anchors stand in a padded (sequence, place) grid, for attention."""

    slots: Tensor
    """int64 [B, max slots]: packed slot at each place (0 where there is none: masked by `visible`)."""
    anchors: Tensor
    """int64 [B, max anchors]: packed anchor at each place (0 where there is none)."""
    anchor_cells: Tensor
    """int64 [P]: flat place of each packed anchor in the anchors grid."""
    visible: Tensor
    """bool [B, max anchors, max slots]: the slot is not after the anchor's own slot."""


@dataclass(frozen=True)
class DraftBatch:
    """Everything that `unroll` and the loss read, packed without padding."""

    slot_tokens: Tensor
    """int64 [N]: x[p+1]."""
    slot_aux: Tensor
    """[N, A * H]."""
    slot_positions: Tensor
    """int64 [N]: p."""
    anchors: Tensor
    """int64 [P]: packed slot of each anchor."""
    step_tokens: Tensor
    """int64 [P, S]: x[p+1+k], 0 past the end."""
    step_next: Tensor
    """int64 [P, S]: x[p+2+k], the token that was generated where step k predicts one; 0 where not valid."""
    step_valid: Tensor
    """bool [P, S]: the engine can reach step k from this anchor, and its label was generated."""
    step_labels: Tensor
    """int64 [P, S]: packed labelled position p+1+k; 0 where not valid."""
    last: Tensor
    """[L, H]: the target's last hidden state, before its final norm."""
    argmax: Tensor
    """int64 [L]: the target's most likely next token."""
    grid: SlotGrid

    def to(self, device: torch.device) -> DraftBatch:
        moved = {name: value.to(device) for name, value in vars(self).items() if isinstance(value, Tensor)}
        grid = SlotGrid(**{name: value.to(device) for name, value in vars(self.grid).items()})
        return DraftBatch(**moved, grid=grid)


def pack(sequences: Sequence[SequenceStates], steps: int) -> DraftBatch:
    """Pack sequences for `steps` draft steps; one without an anchor (a reply of one token) adds nothing.

    Raises:
        ValueError: no sequence has an anchor.
    """
    parts = [part for states in sequences if (part := _part(states, steps)) is not None]
    if not parts:
        raise ValueError("no sequence of this batch has two generated tokens in a row")
    slot_starts = _starts([len(part.tokens) for part in parts])
    label_starts = _starts([len(part.last) for part in parts])
    valid = torch.cat([part.step_valid for part in parts])
    labels = torch.cat([part.step_labels + start for part, start in zip(parts, label_starts, strict=True)])
    return DraftBatch(
        slot_tokens=torch.cat([part.tokens for part in parts]),
        slot_aux=torch.cat([part.aux for part in parts]),
        slot_positions=torch.cat([torch.arange(len(part.tokens)) for part in parts]),
        anchors=torch.cat([part.anchors + start for part, start in zip(parts, slot_starts, strict=True)]),
        step_tokens=torch.cat([part.step_tokens for part in parts]),
        step_next=torch.cat([part.step_next for part in parts]),
        step_valid=valid,
        step_labels=torch.where(valid, labels, 0),
        last=torch.cat([part.last for part in parts]),
        argmax=torch.cat([part.argmax for part in parts]),
        grid=_grid(parts, slot_starts),
    )


def anchors_of(loss_mask: Tensor) -> Tensor:
    """Slots p at which the engine can start a draft, int64 [P], from a loss mask bool [T]."""
    return torch.nonzero(loss_mask[1:-1] & loss_mask[2:]).flatten()


@dataclass(frozen=True)
class _Part:
    """One sequence's share of a batch, counted from its own zero."""

    tokens: Tensor  # [slots]
    aux: Tensor  # [slots, A * H]
    anchors: Tensor  # [P]
    step_tokens: Tensor  # [P, S]
    step_next: Tensor  # [P, S]
    step_valid: Tensor  # [P, S]
    step_labels: Tensor  # [P, S]
    last: Tensor  # [L, H]
    argmax: Tensor  # [L]


def _part(states: SequenceStates, steps: int) -> _Part | None:
    mask = states.loss_mask
    anchors = anchors_of(mask)
    if len(anchors) == 0:
        return None
    slots = int(anchors[-1]) + 1
    tokens = states.token_ids.long()
    inputs = anchors.unsqueeze(1) + 1 + torch.arange(steps)  # [P, S]: position of x[p+1+k]
    inside = inputs + 1 < len(tokens)
    inputs = inputs.clamp(max=len(tokens) - 2)
    generated = inside & mask[inputs] & mask[inputs + 1]
    valid = torch.cumprod(generated.long(), dim=1).bool()  # a draft can't jump over a position it can't reach
    label_at = torch.zeros(len(tokens), dtype=torch.int64)
    label_at[states.label_positions.long()] = torch.arange(len(states.label_positions))
    return _Part(
        tokens=tokens[1 : slots + 1],
        aux=_widened(states.aux[:slots].flatten(1)),
        anchors=anchors,
        step_tokens=torch.where(valid, tokens[inputs], 0),
        step_next=torch.where(valid, tokens[inputs + 1], 0),
        step_valid=valid,
        step_labels=torch.where(valid, label_at[inputs], 0),
        last=_widened(states.last),
        argmax=states.argmax.long(),
    )


def _widened(hidden: Tensor) -> Tensor:
    """In float32 at least: a store may hold bfloat16."""
    return hidden.to(torch.promote_types(hidden.dtype, torch.float32))


def _starts(lengths: list[int]) -> list[int]:
    starts = [0]
    for length in lengths[:-1]:
        starts.append(starts[-1] + length)
    return starts


def _grid(parts: list[_Part], slot_starts: list[int]) -> SlotGrid:
    anchor_starts = _starts([len(part.anchors) for part in parts])
    slots = pad_sequence(
        [torch.arange(len(part.tokens)) + start for part, start in zip(parts, slot_starts, strict=True)],
        batch_first=True,
    )
    anchors = pad_sequence(
        [torch.arange(len(part.anchors)) + start for part, start in zip(parts, anchor_starts, strict=True)],
        batch_first=True,
    )
    anchor_slots = pad_sequence([part.anchors for part in parts], batch_first=True)  # [B, max anchors]
    width = anchors.shape[1]
    cells = [torch.arange(len(part.anchors)) + row * width for row, part in enumerate(parts)]
    # Places past a sequence's last slot come after each of its anchors, so this also hides padding.
    visible = torch.arange(slots.shape[1]) <= anchor_slots.unsqueeze(-1)
    return SlotGrid(slots=slots, anchors=anchors, anchor_cells=torch.cat(cells), visible=visible)
