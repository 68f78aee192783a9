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

from eyas import nucleus
from eyas.sampling import Sampling

DEEPEST = -1e4
"""Stands for a logit of -inf, as some targets give tokens that don't exist: 0 * -inf is no number."""

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
        kept = nucleus.kept(depths, weight_sum, sampling)  # [R, K]
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
