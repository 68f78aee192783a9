"""Attention of draft queries: the step-0 prefix of their sequence, and their own slot at the steps so far.

The prefix part goes chunk by chunk of queries and is merged exactly with the own part through its log-sum-exp, as
FlashAttention merges blocks (arXiv:2205.14135); the backward pass computes a chunk's scores again from the merged
log-sum-exp. So memory grows with the length, not with its square. On a GPU the prefix part is one fused kernel (flex.py).

Shapes: N slots, P anchors, Q query heads, K kv heads, G = Q / K, D head size, J = draft steps so far - 1; R = rows of a
chunk, its anchors x G; V = slots that it sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.flex_attention import BlockMask

from eyas.drafter.flex import prefix_part
from eyas.drafter.plan import Chunk


@dataclass(frozen=True)
class Prefix:
    """Step-0 keys and values of a batch, and who sees which."""

    keys: Tensor
    """[K, N, D], contiguous."""
    values: Tensor
    """[K, N, D], contiguous."""
    anchors: Tensor
    """int64 [P]: the last slot that each query sees."""
    chunks: tuple[Chunk, ...]
    """How the chunked attention goes through the queries."""
    blocks: BlockMask | None = None
    """The same for the fused kernel, which is taken where this is given."""

    @cached_property
    def hidden(self) -> list[Tensor]:
        """By chunk, bool [anchors, slots from slot_full on]: slots after the anchor's own."""
        return [
            torch.arange(chunk.slot_full, chunk.slot_stop, device=self.anchors.device)
            > self.anchors[chunk.anchor_start : chunk.anchor_stop].unsqueeze(1)
            for chunk in self.chunks
        ]


def attend(
    queries: Tensor, prefix: Prefix, own_keys: Sequence[Tensor], own_values: Sequence[Tensor]
) -> Tensor:
    """One softmax over the visible prefix slots and the query's own earlier steps; [P, Q * D].

    Args:
        queries: [P, Q, D], rotated.
        own_keys, own_values: J tensors [P, K, D] each: those of the query's own slot at steps 1 up to this one.
    """
    queries = queries * queries.shape[-1] ** -0.5
    if prefix.blocks is not None:
        part = prefix_part(queries, prefix.keys, prefix.values, prefix.blocks)
        own = (*own_keys, *own_values)
        spread = part.spread.unflatten(1, (len(prefix.keys), -1))  # [P, K, G]
        return _merge(queries, part.attended, spread, own).attended.flatten(1)
    attended: Tensor = _Attention.apply(  # type: ignore[no-untyped-call]
        queries,
        prefix.keys,
        prefix.values,
        prefix.hidden,
        prefix.chunks,
        *own_keys,
        *own_values,
    )
    return attended.flatten(1)


class _Attention(torch.autograd.Function):
    """(scaled queries [P, Q, D], keys, values [K, N, D], hidden, chunks, own keys, own values) -> [P, Q, D]."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        keys: Tensor,
        values: Tensor,
        hidden: list[Tensor],
        chunks: tuple[Chunk, ...],
        *own: Tensor,
    ) -> Tensor:
        rows = _to_rows(queries, len(keys))
        result = torch.empty_like(rows)
        spread = rows.new_empty(rows.shape[:2], dtype=_wide(rows))
        for chunk, mask in zip(chunks, hidden, strict=True):
            place = _place(chunk, queries, keys)
            weights = _scores(rows[:, place], keys, chunk, mask)
            top = weights.amax(dim=-1, keepdim=True)
            total = weights.sub_(top).exp_().sum(dim=-1, keepdim=True)
            seen = values[:, chunk.slot_start : chunk.slot_stop]
            result[:, place] = torch.bmm(weights.to(seen.dtype), seen) / total.to(seen.dtype)
            spread[:, place] = (total.log_() + top).squeeze(-1)
        attended = _from_rows(result, queries.shape)
        spread = _by_head(spread, queries.shape)  # [P, K, G]
        joint = _merge(queries, attended, spread, own)
        attended, spread = joint.attended, joint.spread
        ctx.chunks, ctx.hidden = chunks, hidden
        ctx.save_for_backward(queries, keys, values, attended, spread, *own)
        return attended

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor | None, ...]:
        queries, keys, values, attended, spread, *own = ctx.saved_tensors
        wide = _wide(queries)
        # sum over the head of upstream x result: what softmax takes off every weight's gradient
        shared = (upstream * attended).sum(dim=-1, dtype=wide).view_as(spread)  # [P, K, G]
        query_gradient = torch.zeros_like(queries)
        own_gradients = _own_backward(queries, upstream, spread, shared, own, query_gradient)
        rows, up = _to_rows(queries, len(keys)), _to_rows(upstream, len(keys))
        spreads, shares = (_spread_rows(part) for part in (spread, shared))  # [K, P * G, 1]
        row_gradient = torch.empty_like(rows)
        key_gradient, value_gradient = torch.zeros_like(keys), torch.zeros_like(values)
        for chunk, mask in zip(ctx.chunks, ctx.hidden, strict=True):
            place, slots = _place(chunk, queries, keys), slice(chunk.slot_start, chunk.slot_stop)
            weights = _scores(rows[:, place], keys, chunk, mask).sub_(spreads[:, place]).exp_()
            narrow = weights.to(keys.dtype)
            value_gradient[:, slots].baddbmm_(narrow.transpose(1, 2), up[:, place])
            scores = torch.bmm(up[:, place], values[:, slots].transpose(1, 2)).to(wide)
            scores = scores.sub_(shares[:, place]).mul_(weights).to(keys.dtype)
            row_gradient[:, place] = torch.bmm(scores, keys[:, slots])
            key_gradient[:, slots].baddbmm_(scores.transpose(1, 2), rows[:, place])
        query_gradient += _from_rows(row_gradient, queries.shape)
        return (query_gradient, key_gradient, value_gradient, None, None, *own_gradients)


def _wide(tensor: Tensor) -> torch.dtype:
    return torch.promote_types(tensor.dtype, torch.float32)


def _to_rows(heads: Tensor, kv_heads: int) -> Tensor:
    """Reorder [P, Q, D] -> [K, P * G, D]."""
    grouped: Tensor = heads.unflatten(1, (kv_heads, -1))
    return grouped.transpose(0, 1).reshape(kv_heads, -1, heads.shape[-1])


def _from_rows(rows: Tensor, shape: torch.Size) -> Tensor:
    """Reorder [K, P * G, D] -> [P, Q, D]."""
    return rows.view(len(rows), shape[0], -1, shape[2]).transpose(0, 1).reshape(shape)


def _by_head(spread: Tensor, shape: torch.Size) -> Tensor:
    """Reorder [K, P * G] -> [P, K, G]."""
    return spread.view(len(spread), shape[0], -1).transpose(0, 1)


def _spread_rows(spread: Tensor) -> Tensor:
    """Reorder [P, K, G] -> [K, P * G, 1]."""
    return spread.transpose(0, 1).reshape(spread.shape[1], -1, 1)


def _place(chunk: Chunk, queries: Tensor, keys: Tensor) -> slice:
    """Rows of a chunk in [K, P * G, D]."""
    group = queries.shape[1] // len(keys)
    return slice(chunk.anchor_start * group, chunk.anchor_stop * group)


def _scores(rows: Tensor, keys: Tensor, chunk: Chunk, hidden: Tensor) -> Tensor:
    """Scores of a chunk, float32 at least, [K, R, V], from its rows [K, R, D]; -inf for slots after the anchor's own."""
    seen = keys[:, chunk.slot_start : chunk.slot_stop]
    scores = torch.bmm(rows, seen.transpose(1, 2)).to(_wide(rows))
    if hidden.numel():
        ragged = scores[..., chunk.slot_full - chunk.slot_start :].unflatten(1, (len(hidden), -1))
        ragged.masked_fill_(hidden.unsqueeze(1), -torch.inf)
    return scores


@dataclass(frozen=True)
class _Joint:
    """Attention over the prefix and the own steps."""

    attended: Tensor  # [P, Q, D]
    spread: Tensor  # [P, K, G]: log-sum-exp of all scores


def _merge(queries: Tensor, attended: Tensor, spread: Tensor, own: Sequence[Tensor]) -> _Joint:
    """Add the own steps to the prefix part; attended [P, Q, D], spread [P, K, G]. Differentiable."""
    count = len(own) // 2
    if count == 0:
        return _Joint(attended, spread)
    grouped = queries.unflatten(1, (spread.shape[1], -1))  # [P, K, G, D]
    scores = [_own_score(grouped, keys) for keys in own[:count]]
    joint = torch.logsumexp(torch.stack((spread, *scores)), dim=0)
    result = attended.reshape(grouped.shape) * torch.exp(spread - joint).unsqueeze(-1).to(attended.dtype)
    for score, values in zip(scores, own[count:], strict=True):
        weight = torch.exp(score - joint).unsqueeze(-1).to(values.dtype)
        result = torch.addcmul(result, weight, values.unsqueeze(2))
    return _Joint(result.view(queries.shape), joint)


def _own_score(grouped: Tensor, keys: Tensor) -> Tensor:
    """Scores of queries [P, K, G, D] with the one key [P, K, D] each; [P, K, G]."""
    return (grouped * keys.unsqueeze(2)).sum(dim=-1, dtype=_wide(grouped))


def _own_backward(
    queries: Tensor,
    upstream: Tensor,
    spread: Tensor,
    shared: Tensor,
    own: Sequence[Tensor],
    query_gradient: Tensor,
) -> list[Tensor]:
    """Gradients of own keys, then of own values; adds to that of the queries, [P, Q, D]."""
    count = len(own) // 2
    grouped, up, total = (
        part.unflatten(1, (spread.shape[1], -1)) for part in (queries, upstream, query_gradient)
    )
    key_gradients, value_gradients = [], []
    for keys, values in zip(own[:count], own[count:], strict=True):
        weight = torch.exp(_own_score(grouped, keys) - spread)  # [P, K, G]
        score = weight * (_own_score(up, values) - shared)
        score, weight = score.unsqueeze(-1).to(keys.dtype), weight.unsqueeze(-1).to(keys.dtype)
        total.addcmul_(score, keys.unsqueeze(2))
        key_gradients.append((score * grouped).sum(dim=2))
        value_gradients.append((weight * up).sum(dim=2))
    return key_gradients + value_gradients
