"""Training-time test (TTT): the draft steps of all anchors at once, as the engine would take them one by one.

At step k the query of anchor p stands for position p+k. It sees the keys and values of slots 0..p of step 0,
and those of its own slot at steps 1..k; other anchors' later steps belong to other drafts. So prompt slots need
keys and values of step 0 only, and queries, output projection and MLP run on anchors alone.

The projections of queries, keys and values read [embedding ; feature]. Step k of anchor p reads the token that the
anchor at slot p+k reads at its step 0, so the embedding's half of the product is made once and looked up afterwards.

Equations: EAGLE-3 (arXiv:2503.01840), as vLLM's llama_eagle3.py and SGLang's llama_eagle3.py apply them.
Shapes: N slots, P anchors, Q query heads, K kv heads, D head size, W = (Q + 2 K) D.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional
from torch.nn.attention.flex_attention import BlockMask

from eyas.drafter.attention import Prefix, attend
from eyas.drafter.batch import DraftBatch
from eyas.drafter.flex import visible_blocks
from eyas.drafter.model import Drafter, Projections
from eyas.drafter.norm import unit_rms
from eyas.gemm import linear


@dataclass(frozen=True)
class DraftStep:
    """One draft step of all anchors."""

    output: Tensor
    """[P, H]: the layer's output g."""
    normed: Tensor
    """[P, H]: what lm_head reads."""


def unroll(drafter: Drafter, batch: DraftBatch, embedding: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield the layer output g [P, H] of draft steps 0..steps-1 for all anchors; see `draft_steps`."""
    for step in draft_steps(drafter, batch, embedding, steps):
        yield step.output


def draft_steps(drafter: Drafter, batch: DraftBatch, embedding: Tensor, steps: int) -> Iterator[DraftStep]:
    """Yield draft steps 0..steps-1 of all anchors; what is not valid is computed too, and means nothing.

    Tokens fed are the ones that the target generated (teacher forcing). For a greedy target this is exactly what
    an engine computes up to the first rejection. `embedding` is the target's, [V, H].
    """
    layer = drafter.midlayer
    size = drafter.config.head_dim
    projections = layer.projections()
    feature = drafter.fuse(batch.slot_aux)  # [N, H]
    embedded = unit_rms(functional.embedding(batch.slot_tokens, embedding), drafter.config.rms_norm_eps)
    start = _start(projections, embedded, layer.hidden_norm(feature), batch.anchors)
    positions = batch.slot_positions
    prefix = Prefix(
        keys=drafter.rotation(positions)(_heads(start.keys, size)).transpose(0, 1).contiguous(),
        values=_heads(start.values, size).transpose(0, 1).contiguous(),
        anchors=batch.anchors,
        chunks=batch.chunks,
        blocks=_blocks(batch) if positions.is_cuda else None,
    )
    feature = feature[batch.anchors]  # [P, H]
    normed = layer.hidden_norm(feature)
    queries = start.queries
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    for step in range(steps):
        rotation = drafter.rotation(positions[batch.anchors] + step)
        if step > 0:
            by_token = _Shifted.apply(start.by_token, batch, step)  # type: ignore[no-untyped-call]  # [P, W]
            projected = projections.of_feature(normed) + by_token
            queries, keys, values = projected.split(projections.widths, dim=-1)
            own_keys.append(rotation(_heads(keys, size)))  # [P, K, D]
            own_values.append(_heads(values, size))
        attended = attend(rotation(_heads(queries, size)), prefix, own_keys, own_values)
        output = layer.output(feature, normed, attended)
        result = DraftStep(output, drafter.norm(output))
        yield result
        feature = result.normed if drafter.config.norm_output else output
        normed = layer.hidden_norm(feature)


def _blocks(batch: DraftBatch) -> BlockMask:
    """Each anchor sees its sequence's slots up to its own; a sequence's first slot stands at position 0."""
    return visible_blocks(
        batch.anchors - batch.slot_positions[batch.anchors], batch.anchors, len(batch.slot_tokens)
    )


@dataclass(frozen=True)
class _Start:
    """Projections of step 0."""

    queries: Tensor  # [P, Q * D]
    keys: Tensor  # [N, K * D]
    values: Tensor  # [N, K * D]
    by_token: Tensor  # [P, W]: the embedding's half, of anchors


def _start(projections: Projections, embedded: Tensor, normed: Tensor, anchors: Tensor) -> _Start:
    """From embeddings at unit rms and normed features, [N, H] each: queries of anchors, keys and values of all slots."""
    query_width, kv_width, _ = projections.widths
    pairs = linear(embedded, projections.token[query_width:])  # [N, 2 K D]
    query = linear(embedded[anchors], projections.token[:query_width])  # [P, Q D]
    both = pairs + linear(normed, projections.feature[query_width:])
    keys, values = both.split(kv_width, dim=-1)
    return _Start(
        queries=query + linear(normed[anchors], projections.feature[:query_width]),
        keys=keys,
        values=values,
        by_token=torch.cat((query, pairs[anchors]), dim=-1),
    )


def _heads(projected: Tensor, size: int) -> Tensor:
    """Split [N, heads * D] -> [N, heads, D]."""
    return projected.view(len(projected), -1, size)


class _Shifted(torch.autograd.Function):
    """Rows of the anchors whose step-0 token is read at a later step, [P, W]; both ways it is a lookup."""

    @staticmethod
    def forward(ctx: Any, by_token: Tensor, batch: DraftBatch, step: int) -> Tensor:
        ctx.batch, ctx.step = batch, step
        return by_token[batch.step_anchors[:, step]]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        readers = ctx.batch.label_anchors[ctx.batch.step_labels[:, 0], ctx.step]  # [P]
        found = upstream[readers.clamp(min=0)]
        return found.masked_fill_((readers < 0).unsqueeze(1), 0), None, None
