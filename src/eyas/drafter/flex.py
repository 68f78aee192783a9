"""The prefix part of draft attention by FlexAttention, for GPUs: one fused kernel over the whole packed batch.

Shapes: N slots, P anchors, Q query heads, K kv heads, D head size; blocks of BLOCK queries and BLOCK slots.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import AuxRequest, BlockMask, flex_attention

BLOCK = 128


@dataclass(frozen=True)
class PrefixPart:
    """Attention over the prefix alone."""

    attended: Tensor
    """[P, Q, D]"""
    spread: Tensor
    """float32 at least, [P, Q]: log-sum-exp of the scores."""


def prefix_part(queries: Tensor, keys: Tensor, values: Tensor, blocks: BlockMask) -> PrefixPart:
    """From scaled queries [P, Q, D], keys and values [K, N, D]; differentiable, log-sum-exp included."""
    attended, found = _kernel(queries.device.type)(
        queries.transpose(0, 1).unsqueeze(0),  # [1, Q, P, D]
        keys.unsqueeze(0),
        values.unsqueeze(0),
        block_mask=blocks,
        scale=1.0,
        enable_gqa=True,
        return_aux=AuxRequest(lse=True),
    )
    return PrefixPart(attended.squeeze(0).transpose(0, 1), found.lse.squeeze(0).transpose(0, 1))


def visible_blocks(first: Tensor, anchors: Tensor, slots: int) -> BlockMask:
    """Query i sees slots first[i] to anchors[i], both int64 [P]; sizes stay on the device.

    Only tables of blocks are made, never one of all queries with all slots.
    """
    rows = -(-len(anchors) // BLOCK)

    def by_block(values: Tensor, fill: str) -> Tensor:
        """Smallest or largest of each block of queries, [rows, 1]; the last block is filled with its last query."""
        whole = torch.cat((values, values[-1:].expand(rows * BLOCK - len(values)))).view(rows, BLOCK)
        return getattr(whole, fill)(dim=1, keepdim=True)  # type: ignore[no-any-return]

    starts = torch.arange(0, slots, BLOCK, device=anchors.device)  # [columns]
    stops = starts + BLOCK - 1
    seen = (stops >= by_block(first, "amin")) & (starts <= by_block(anchors, "amax"))
    full = (starts >= by_block(first, "amax")) & (stops <= by_block(anchors, "amin"))
    partial = _listed(seen & ~full)
    whole = _listed(full)

    def visible(batch: Tensor, head: Tensor, query: Tensor, slot: Tensor) -> Tensor:
        return (slot >= first[query]) & (slot <= anchors[query])

    return BlockMask.from_kv_blocks(
        partial.counts,
        partial.columns,
        whole.counts,
        whole.columns,
        BLOCK_SIZE=BLOCK,
        mask_mod=visible,
        seq_lengths=(len(anchors), slots),
    )


@dataclass(frozen=True)
class _Listed:
    """Which columns each row of a table has, as FlexAttention reads it."""

    counts: Tensor  # int32 [1, 1, rows]
    columns: Tensor  # int32 [1, 1, rows, columns], those that count first


def _listed(table: Tensor) -> _Listed:
    columns = torch.argsort(table.int(), dim=1, descending=True, stable=True)
    return _Listed(table.sum(dim=1, dtype=torch.int32)[None, None], columns.int()[None, None])


@cache
def _kernel(device: str) -> Callable[..., Any]:
    """Compiled where there is a fused kernel; elsewhere the plain operations, which tests compare with."""
    kernel: Callable[..., Any] = flex_attention
    if device != "cpu":
        kernel = torch.compile(kernel, dynamic=True)
    return kernel
