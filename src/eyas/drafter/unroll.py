"""Training-time test (TTT): the draft steps of all anchors at once, as the engine would take them one by one.

At step k the query of anchor p stands for position p+k. It sees the keys and values of slots 0..p of step 0,
and those of its own slot at steps 1..k; other anchors' later steps belong to other drafts. So prompt slots need
keys and values of step 0 only, and queries, output projection and MLP run on anchors alone.

Equations: EAGLE-3 (arXiv:2503.01840), as vLLM's llama_eagle3.py and SGLang's llama_eagle3.py apply them.
Shapes: N slots, P anchors, B sequences, G query heads per kv head, K kv heads, D head size, J = steps so far - 1.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from eyas.drafter.batch import DraftBatch, SlotGrid
from eyas.drafter.model import Drafter


def unroll(drafter: Drafter, batch: DraftBatch, embedding: Tensor, steps: int) -> Iterator[Tensor]:
    """Yield the layer output g [P, H] of draft steps 0..steps-1 for all anchors.

    Tokens fed are the ones that the target generated (teacher forcing). For a greedy target this is exactly what
    an engine computes up to the first rejection. `embedding` is the target's, [V, H].
    """
    layer = drafter.midlayer
    positions = batch.slot_positions
    rotation = drafter.rotation(positions)
    feature = drafter.fuse(batch.slot_aux)  # [N, H]
    inputs = layer.attention_input(embedding[batch.slot_tokens], feature)  # [N, 2H]
    prefix_keys = layer.keys(inputs, rotation)[batch.grid.slots]  # [B, slots, K, D]
    prefix_values = layer.values(inputs)[batch.grid.slots]

    feature, inputs = feature[batch.anchors], inputs[batch.anchors]  # [P, H], [P, 2H]
    rotation = rotation[batch.anchors]
    own_keys: list[Tensor] = []
    own_values: list[Tensor] = []
    for step in range(steps):
        if step > 0:
            rotation = drafter.rotation(positions[batch.anchors] + step)
            inputs = layer.attention_input(embedding[batch.step_tokens[:, step]], feature)
            own_keys.append(layer.keys(inputs, rotation))  # [P, K, D]
            own_values.append(layer.values(inputs))
        queries = layer.queries(inputs, rotation)  # [P, G * K, D]
        attended = attend(queries, prefix_keys, prefix_values, own_keys, own_values, batch.grid)
        output = layer.output(feature, attended)
        yield output
        feature = drafter.next_feature(output)


def attend(
    queries: Tensor,
    prefix_keys: Tensor,
    prefix_values: Tensor,
    own_keys: list[Tensor],
    own_values: list[Tensor],
    grid: SlotGrid,
) -> Tensor:
    """One softmax over the visible prefix slots and the anchor's own earlier steps; returns [P, heads * D].

    queries [P, heads, D]; prefix keys and values [B, slots, K, D]; own keys and values J x [P, K, D].
    """
    kv_heads = prefix_keys.shape[2]
    grouped = queries.unflatten(1, (kv_heads, -1)) * queries.shape[-1] ** -0.5  # [P, K, G, D]
    prefix_scores = torch.einsum("bpkgd,bskd->bkgps", grouped[grid.anchors], prefix_keys)
    prefix_scores = prefix_scores.masked_fill(~grid.visible[:, None, None], -torch.inf)
    own_scores = [torch.einsum("pkgd,pkd->pkg", grouped, keys) for keys in own_keys]
    if own_scores:
        own = torch.stack(own_scores, dim=-1)[grid.anchors].permute(0, 2, 3, 1, 4)  # [B, K, G, anchors, J]
        weights = torch.softmax(torch.cat((prefix_scores, own), dim=-1), dim=-1)
    else:
        weights = torch.softmax(prefix_scores, dim=-1)
    slots = prefix_keys.shape[1]
    result = torch.einsum("bkgps,bskd->bpkgd", weights[..., :slots], prefix_values)
    result = result.flatten(0, 1)[grid.anchor_cells]  # [P, K, G, D]
    own_weights = weights[..., slots:].permute(0, 3, 1, 2, 4).flatten(0, 1)[grid.anchor_cells]  # [P, K, G, J]
    for place, values in enumerate(own_values):
        result = result + own_weights[..., place].unsqueeze(-1) * values.unsqueeze(2)
    return result.flatten(1)
