"""The head's predictions at the positions before generated tokens.

Letters in shape comments: H hidden size, V target vocab, G generated tokens, R rows at a time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.extract.sampled import SampledScores, score
from eyas.gemm import linear
from eyas.sampling import GREEDY, Sampling
from eyas.target.model import TargetHead

ROWS = 512
"""Positions at a time."""
CPU_BLOCK_BYTES = 4 << 20
"""Float32 logits held at a time: as many as stay in the cache until they are read."""
GPU_BLOCK_BYTES = 256 << 20
"""The same on a GPU."""
ROW_BYTES = 64 << 20
"""The same where whole rows of logits are needed."""


@dataclass(frozen=True)
class Predictions:
    """What the head says at some positions, computed in float32."""

    argmax: Tensor
    """int64 [G]"""
    logsumexp: Tensor
    """float32 [G]"""
    margin: Tensor
    """float32 [G]: how far the logit of the token that really follows lies below the largest; 0 where it is that."""
    sampled: SampledScores | None = None
    """Of that token; None where sampling is greedy."""

    def cpu(self) -> Predictions:
        """The same in main memory."""
        sampled = None if self.sampled is None else self.sampled.cpu()
        return Predictions(self.argmax.cpu(), self.logsumexp.cpu(), self.margin.cpu(), sampled)

    def split(self, counts: Sequence[int]) -> list[Predictions]:
        """Cut into runs of these lengths."""
        parts = (values.split(list(counts)) for values in (self.argmax, self.logsumexp, self.margin))
        sampled = [None] * len(counts) if self.sampled is None else self.sampled.split(counts)
        return [Predictions(*part) for part in zip(*parts, sampled, strict=True)]


@torch.inference_mode()
def predict(head: TargetHead, last: Tensor, following: Tensor, sampling: Sampling = GREEDY) -> Predictions:
    """Apply the head to last states [G, H] in pieces, so that G x V logits are never held.

    Args:
        head: the target's.
        last: before the final norm.
        following: int64 [G], the tokens that really follow.
        sampling: how these were chosen.
    """
    rows = ROWS if sampling.greedy else max(1, ROW_BYTES // (4 * head.lm_head.shape[0]))
    parts = [
        _greedy(head, part, tokens) if sampling.greedy else _sampled(head, part, tokens, sampling)
        for part, tokens in zip(last.split(rows), following.split(rows), strict=True)
    ]
    sampled = [part.sampled for part in parts if part.sampled is not None]
    return Predictions(
        argmax=torch.cat([part.argmax for part in parts]),
        logsumexp=torch.cat([part.logsumexp for part in parts]),
        margin=torch.cat([part.margin for part in parts]),
        sampled=SampledScores.cat(sampled) if sampled else None,
    )


def _greedy(head: TargetHead, last: Tensor, following: Tensor) -> Predictions:
    """All that is needed of R rows, a block of the vocabulary at a time.

    So the head's matrix is read once for many rows, and the sum of the softmax is carried along with the largest
    logit up to then (online softmax, arXiv:1805.02867).
    """
    normed = head.normed(last)  # [R, H]
    best = torch.full_like(following, -torch.inf, dtype=torch.float32)  # [R]
    total, chosen, argmax = torch.zeros_like(best), torch.zeros_like(best), torch.zeros_like(following)
    bytes_held = CPU_BLOCK_BYTES if last.device.type == "cpu" else GPU_BLOCK_BYTES
    size = max(1, bytes_held // (4 * max(1, len(last))))
    for start in range(0, len(head.lm_head), size):
        block = head.lm_head[start : start + size]  # [size, H]
        logits = linear(normed, block).float()  # [R, size]
        own = (following - start).clamp(0, len(block) - 1)
        inside = (following >= start) & (following < start + len(block))
        chosen = torch.where(inside, logits.gather(1, own[:, None]).squeeze(1), chosen)
        top, index = logits.max(dim=-1)
        argmax = torch.where(top > best, index + start, argmax)
        larger = torch.maximum(best, top)
        total = total * (best - larger).exp() + logits.sub_(larger[:, None]).exp_().sum(dim=-1)
        best = larger
    return Predictions(argmax, best + total.log(), best - chosen)


def _sampled(head: TargetHead, last: Tensor, following: Tensor, sampling: Sampling) -> Predictions:
    """The same from whole rows, which the distribution that was sampled from needs."""
    logits = head.logits(last).float()  # [R, V]
    top, index = logits.max(dim=-1)
    logsumexp = logits.logsumexp(dim=-1)
    margin = top - logits.gather(1, following[:, None]).squeeze(1)
    return Predictions(index, logsumexp, margin, score(logits, following, sampling))  # overwrites the logits
