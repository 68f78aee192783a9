"""Which tokens top_k and top_p keep, without sorting a vocabulary.

The order is vLLM's: temperature, then top_k, then top_p among what is left; a token is kept by top_p if the tokens above
it hold less than top_p. SGLang lets top_p count what top_k cuts off.

Letters in shape comments: R rows, V target vocab, K candidates.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from eyas.sampling import Sampling

CANDIDATES = 64
"""So many of the most probable tokens are looked at first; rows whose top_p needs more are looked at again."""
BLOCK = 32
TIES = 16
"""So many more than top_k are looked at: vLLM keeps all tokens whose logit equals that of the last one."""


def kept(depths: Tensor, weight_sum: Tensor, sampling: Sampling) -> Tensor:
    """[R, K] depths of the tokens that are kept, descending, -inf behind them.

    Args:
        depths: [R, V], logits / temperature, less the largest of the row.
        weight_sum: [R], sum of their exponentials.
        sampling: with a top_k or a top_p that cuts.
    """
    vocab_size = depths.shape[1]
    if not 0 < sampling.top_k < vocab_size:
        return nucleus(depths, weight_sum, sampling.top_p, CANDIDATES)
    top = largest(depths, min(sampling.top_k + TIES, vocab_size))
    top = top.masked_fill(top < top[:, sampling.top_k - 1, None], -torch.inf)
    if sampling.top_p == 1:
        return top
    mass = weight_sum if sampling.joint else top.exp().sum(dim=-1)
    return nucleus(top, mass, sampling.top_p, top.shape[1])


def nucleus(depths: Tensor, mass: Tensor, top_p: float, count: int) -> Tensor:
    """The largest values of each row that hold top_p of its mass: [R, V] -> [R, K]. No whole vocabulary is sorted."""
    count = min(count, depths.shape[1])
    top = largest(depths, count)
    held = top.exp().cumsum(dim=-1)
    wanted = top_p * mass
    above = functional.pad(held[:, :-1], (1, 0))  # held by the tokens above each
    kept_ones = top.masked_fill(above >= wanted[:, None], -torch.inf)
    short = held[:, -1] < wanted
    if count == depths.shape[1] or not bool(short.any()):
        return kept_ones
    deeper = nucleus(depths[short], mass[short], top_p, 8 * count)
    kept_ones = functional.pad(kept_ones, (0, deeper.shape[1] - count), value=-torch.inf)
    kept_ones[short] = deeper
    return kept_ones


def largest(values: Tensor, count: int) -> Tensor:
    """[R, V] -> [R, count], descending: topk, but many times faster on wide rows.

    The `count` largest values of a row lie in the `count` blocks with the largest maxima.
    """
    width = values.shape[1]
    whole = width - width % BLOCK
    if width < 4 * BLOCK * count:
        return values.topk(count, dim=-1).values
    blocks = values[:, :whole].unflatten(1, (-1, BLOCK))  # [R, blocks, BLOCK]
    best = blocks.amax(dim=-1).topk(count, dim=-1).indices
    found = blocks.gather(1, best[:, :, None].expand(-1, -1, BLOCK)).flatten(1)
    return torch.cat([found, values[:, whole:]], dim=1).topk(count, dim=-1).values
