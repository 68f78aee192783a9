"""What sampled tokens say about the states: their surprise against the distribution that they were drawn from.

A token x drawn from p has E[-log p(x)] = H(p) and Var[-log p(x)] = the varentropy of p. So over the tokens of a
dataset

    z = sum(-log p(x) - H(p)) / sqrt(sum(varentropy(p)))

is about standard normal if the states are right, and far from it if they are another layer's, another sequence's or
another model's, or if the answers were sampled otherwise than `generate.*` says. Each token is drawn given the tokens
before it, so the summands form a martingale difference sequence: it matters neither how an answer ended (end-of-turn
token, max_tokens) nor that its length depends on its tokens.

For a single sequence, where sums are far from normal, there is the evidence

    sum(-log p(x) / 2 - log sum_v sqrt(p(v)))

whose exponential is a product of factors with expectation 1, so that by Markov's inequality P(evidence >= t) <= exp(-t)
for any length. It uses the distribution before top_k and top_p. That only lowers its expectation: a cut keeps a larger
share of p than of sqrt(p).

Letters in shape comments: R rows, V target vocab, K candidates, G generated tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from eyas.sampling import Sampling

CANDIDATES = 64
"""So many of the most probable tokens are looked at first; rows whose top_p needs more are looked at again."""
BLOCK = 32
DEEPEST = -1e4
"""Stands for a logit of -inf, as some targets give tokens that don't exist: 0 * -inf is no number."""
TIES = 16
"""So many more than top_k are looked at: vLLM keeps all tokens whose logit equals that of the last one."""


COLUMNS = ("excess", "varentropy", "evidence", "outside")


@dataclass(frozen=True)
class SampledScores:
    """Of each generated token."""

    excess: Tensor
    """float32 [G]: -log p(x) - H(p), nats; 0 where `outside`."""
    varentropy: Tensor
    """float32 [G]: variance of -log p, nats squared; 0 where `outside`."""
    evidence: Tensor
    """float32 [G]: see the module; nats."""
    outside: Tensor
    """bool [G]: the token is not among those that top_k and top_p keep."""

    @classmethod
    def cat(cls, parts: Sequence[SampledScores]) -> SampledScores:
        """One after another."""
        return cls(*(torch.cat([getattr(part, name) for part in parts]) for name in COLUMNS))

    def cpu(self) -> SampledScores:
        """The same in main memory."""
        return SampledScores(*(getattr(self, name).cpu() for name in COLUMNS))

    def split(self, counts: Sequence[int]) -> list[SampledScores]:
        """Cut into runs of these lengths."""
        columns = (getattr(self, name).split(list(counts)) for name in COLUMNS)
        return [SampledScores(*part) for part in zip(*columns, strict=True)]


def score(logits: Tensor, tokens: Tensor, sampling: Sampling) -> SampledScores:
    """Compare sampled tokens with the distributions that they were drawn from.

    Args:
        logits: float32 [R, V] of the target; overwritten.
        tokens: int64 [R].
        sampling: not greedy.
    """
    logits.div_(sampling.divisor)
    depths = logits.sub_(logits.amax(dim=-1, keepdim=True)).clamp_min_(DEEPEST)  # [R, V], 0 at the argmax
    chosen = depths.gather(1, tokens[:, None]).squeeze(1)  # [R]
    weights = (depths * 0.5).exp_()  # [R, V], their square roots first: one exp gives both sums
    root_sum = weights.sum(dim=-1)
    weights.square_()
    weight_sum = weights.sum(dim=-1)
    # with -log p(x) = log(weight_sum) - chosen
    evidence = weight_sum.log() - chosen / 2 - root_sum.log()
    if sampling.top_k == 0 and sampling.top_p == 1:
        kept, lowest = depths, chosen
    else:
        kept = _kept(depths, weight_sum, sampling)  # [R, K]
        lowest = kept.masked_fill(kept.isneginf(), 0.0).amin(dim=-1)
        weights = kept.exp()
        weight_sum = weights.sum(dim=-1)
        kept = kept.masked_fill(kept.isneginf(), 0.0)  # their weight is 0
    weights.mul_(kept)
    mean = weights.sum(dim=-1) / weight_sum  # H = log(weight_sum) - mean
    square = weights.mul_(kept).sum(dim=-1) / weight_sum
    outside = chosen < lowest
    return SampledScores(
        excess=(mean - chosen).masked_fill(outside, 0.0),
        varentropy=(square - mean.square()).clamp_min(0.0).masked_fill(outside, 0.0),
        evidence=evidence,
        outside=outside,
    )


def _kept(depths: Tensor, weight_sum: Tensor, sampling: Sampling) -> Tensor:
    """[R, K] depths of the tokens that are kept, descending, -inf behind them.

    The order is vLLM's: temperature, then top_k, then top_p among what is left; a token is kept by top_p if the tokens
    above it hold less than top_p. SGLang lets top_p count what top_k cuts off.
    """
    vocab_size = depths.shape[1]
    if not 0 < sampling.top_k < vocab_size:
        return _nucleus(depths, weight_sum, sampling.top_p, CANDIDATES)
    top = _largest(depths, min(sampling.top_k + TIES, vocab_size))
    top = top.masked_fill(top < top[:, sampling.top_k - 1, None], -torch.inf)
    if sampling.top_p == 1:
        return top
    mass = weight_sum if sampling.joint else top.exp().sum(dim=-1)
    return _nucleus(top, mass, sampling.top_p, top.shape[1])


def _nucleus(depths: Tensor, mass: Tensor, top_p: float, count: int) -> Tensor:
    """The largest values of each row that hold top_p of its mass: [R, V] -> [R, K]. No whole vocabulary is sorted."""
    count = min(count, depths.shape[1])
    top = _largest(depths, count)
    held = top.exp().cumsum(dim=-1)
    wanted = top_p * mass
    above = functional.pad(held[:, :-1], (1, 0))  # held by the tokens above each
    kept = top.masked_fill(above >= wanted[:, None], -torch.inf)
    short = held[:, -1] < wanted
    if count == depths.shape[1] or not bool(short.any()):
        return kept
    deeper = _nucleus(depths[short], mass[short], top_p, 8 * count)
    kept = functional.pad(kept, (0, deeper.shape[1] - count), value=-torch.inf)
    kept[short] = deeper
    return kept


def _largest(values: Tensor, count: int) -> Tensor:
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
