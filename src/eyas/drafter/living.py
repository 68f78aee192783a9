"""Draft steps of all anchors for inference: a chain whose step can't have been accepted is not drafted any further.

The steps are those of eyas.drafter.unroll, which computes all of them since it trains them. Here most chains end after one
or two, so eight steps cost little more than three.

Shapes: N slots, P anchors, R chains that live, K kv heads, D head size, W width of the projections.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor
from torch.nn import functional

from eyas.drafter.attention import Prefix, attend
from eyas.drafter.batch import DraftBatch
from eyas.drafter.flex import visible_blocks
from eyas.drafter.model import Drafter, Projections
from eyas.drafter.norm import unit_rms
from eyas.drafter.plan import plan_chunks
from eyas.drafter.rules import Judge, Judged
from eyas.gemm import FastLinear, linear


@dataclass(frozen=True)
class LivingStep:
    """A step of the chains that lived up to it."""

    rows: Tensor
    """int64 [R]: anchors, ascending."""
    judged: Judged
    """Of these, [R] each."""


@torch.no_grad()
def living_steps(
    drafter: Drafter, batch: DraftBatch, embedding: Tensor, steps: int, judge: Judge
) -> list[LivingStep]:
    """Draft and judge steps 0, 1, ... up to `steps`, or to the last one that a chain reaches.

    A chain lives on where the judged step follows the stored token with any probability, and its next step is valid.
    `embedding` is the target's, [V, H].
    """
    with FastLinear():
        return _living_steps(drafter, batch, _Start.of(drafter, batch, embedding), steps, judge)


def _living_steps(
    drafter: Drafter, batch: DraftBatch, start: _Start, steps: int, judge: Judge
) -> list[LivingStep]:
    chains = _Chains(torch.arange(len(batch.anchors), device=batch.anchors.device), start.feature, (), ())
    found = []
    for step in range(steps):
        chains = _drafted(drafter, batch, start, chains, step)
        normed = drafter.norm(chains.feature)
        judged = judge(step, chains.rows, normed, drafter.lm_head.weight)
        found.append(LivingStep(chains.rows, judged))
        if step + 1 == steps:
            break
        alive = (judged.follow > 0) & batch.step_valid[chains.rows, step + 1]
        if not bool(alive.any()):
            break
        chains = chains.kept(alive, normed if drafter.config.norm_output else chains.feature)
    return found


@dataclass(frozen=True)
class _Start:
    """What all steps read."""

    projections: Projections
    by_token: Tensor  # [P, W]: the embedding's half of the projections, of anchors
    feature: Tensor  # [P, H]: of step 0
    keys: Tensor  # [K, N, D], rotated
    values: Tensor  # [K, N, D]

    @classmethod
    def of(cls, drafter: Drafter, batch: DraftBatch, embedding: Tensor) -> _Start:
        projections, size = drafter.midlayer.projections(), drafter.config.head_dim
        query_width, kv_width, _ = projections.widths
        feature = drafter.fuse(batch.slot_aux)  # [N, H]
        embedded = unit_rms(functional.embedding(batch.slot_tokens, embedding), drafter.config.rms_norm_eps)
        pairs = linear(embedded, projections.token[query_width:])  # [N, 2 K D]
        query = linear(embedded[batch.anchors], projections.token[:query_width])  # [P, Q D]
        both = pairs + linear(drafter.midlayer.hidden_norm(feature), projections.feature[query_width:])
        keys, values = (each.unflatten(-1, (-1, size)) for each in both.split(kv_width, dim=-1))
        return cls(
            projections=projections,
            by_token=torch.cat((query, pairs[batch.anchors]), dim=-1),
            feature=feature[batch.anchors],
            keys=drafter.rotation(batch.slot_positions)(keys).transpose(0, 1).contiguous(),
            values=values.transpose(0, 1).contiguous(),
        )


@dataclass(frozen=True)
class _Chains:
    """Chains that live, and what their next step reads."""

    rows: Tensor  # int64 [R]
    feature: Tensor  # [R, H]; behind a step, its output
    own_keys: Sequence[Tensor]  # [R, K, D] of each step behind the first
    own_values: Sequence[Tensor]

    def kept(self, alive: Tensor, feature: Tensor) -> _Chains:
        """Those of bool [R], with the feature [R, H] of the next step."""
        return _Chains(
            rows=self.rows[alive],
            feature=feature[alive],
            own_keys=[each[alive] for each in self.own_keys],
            own_values=[each[alive] for each in self.own_values],
        )


def _drafted(drafter: Drafter, batch: DraftBatch, start: _Start, chains: _Chains, step: int) -> _Chains:
    """One step: the chains with their outputs as features."""
    layer, rows, size = drafter.midlayer, chains.rows, drafter.config.head_dim
    normed = layer.hidden_norm(chains.feature)
    projected = (
        start.projections.of_feature(normed) + start.by_token[batch.step_anchors[rows, step]]
    )  # [R, W]
    queries, keys, values = (
        each.unflatten(-1, (-1, size)) for each in projected.split(start.projections.widths, dim=-1)
    )
    rotation = drafter.rotation(batch.slot_positions[batch.anchors[rows]] + step)
    own_keys, own_values = [*chains.own_keys], [*chains.own_values]
    if step > 0:  # step 0 is among the slots
        own_keys, own_values = [*own_keys, rotation(keys)], [*own_values, values]
    attended = attend(rotation(queries), _prefix(batch, start, rows), own_keys, own_values)
    return _Chains(rows, layer.output(chains.feature, normed, attended), own_keys, own_values)


def _prefix(batch: DraftBatch, start: _Start, rows: Tensor) -> Prefix:
    """The slots, as these anchors see them: each its sequence's up to its own."""
    anchors = batch.anchors[rows]
    first = anchors - batch.slot_positions[anchors]  # a sequence's first slot stands at position 0
    if anchors.is_cuda:
        blocks = visible_blocks(first, anchors, len(batch.slot_tokens))
        return Prefix(start.keys, start.values, anchors, (), blocks)
    pairs = zip(first.tolist(), anchors.tolist(), strict=True)
    by_sequence = {
        slot: [anchor - slot for _, anchor in own] for slot, own in groupby(pairs, lambda pair: pair[0])
    }
    return Prefix(start.keys, start.values, anchors, plan_chunks([*by_sequence.values()], [*by_sequence]))
