"""When an engine accepts a drafted token: the rule that turns the drafter's logits into probabilities of acceptance.

Rejection sampling (arXiv:2211.17192) accepts a token drafted from q with min(1, p / q), p being what the target samples
from, and otherwise samples from what p has more than q; so the output is distributed as p whatever is drafted, and stored
answers are such outputs. Two numbers follow for each draft step that all earlier steps have led to:

* given the stored token x, the step was accepted with min(1, q(x) / p(x)): `follow`;
* before x is known, with sum over v of min(p(v), q(v)): `expected`, its mean over x.

vLLM drafts its most likely token by default (`draft_sample_method` greedy): q is one-hot at d, so `follow` is x == d and
`expected` is p(d). With probabilistic drafting q is the drafter's softmax at the temperature, without top_k and top_p;
p has all three. A greedy target is p one-hot at its argmax.

Shapes: P anchors, R chains that are judged, L labelled positions, H hidden size, V target vocab, Vd draft vocab.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from eyas import nucleus
from eyas.drafter.batch import DraftBatch
from eyas.drafter.vocab import VocabMap
from eyas.gemm import linear
from eyas.sampling import Sampling
from eyas.target.model import TargetHead

DRAFTINGS = ("greedy", "probabilistic")
"""How the drafter chooses its tokens; vLLM's `draft_sample_method`."""
ROWS = 1024
"""Rows of draft logits that are held at a time."""
ROW_BYTES = 64 << 20
"""Float32 rows of target logits that are held at a time."""
ROUNDING = 1e-3
"""A kept token's logit may come out so much lower when it is computed alone."""
SMALLEST = 1e-30


@dataclass(frozen=True)
class Judged:
    """One draft step of some chains."""

    proposals: Tensor
    """int64 [R]: the drafter's most likely token, as target id."""
    follow: Tensor
    """float32 [R]: probability that the drafted token was accepted, given the stored token."""
    expected: Tensor
    """float32 [R]: the same before the stored token is known."""


class Judge(Protocol):
    """A rule, prepared for one batch."""

    def __call__(self, step: int, rows: Tensor, hidden: Tensor, lm_head: Tensor) -> Judged:
        """Judge a draft step of some chains.

        Args:
            step: from 0.
            rows: int64 [R], their anchors.
            hidden: [R, H], what the drafter's lm_head reads.
            lm_head: [Vd, H], the drafter's.
        """
        ...


class Rule(Protocol):
    """How drafted tokens are judged."""

    def judge(self, batch: DraftBatch, vocab: VocabMap) -> Judge:
        """Prepare for a batch."""
        ...


class GreedyRule:
    """The target's argmax, or a rejection. Where the stored token is another one, every draft ends: greedy decoding
    would have gone another way than the stored states.
    """

    def judge(self, batch: DraftBatch, vocab: VocabMap) -> Judge:
        """See Rule."""

        def judge(step: int, rows: Tensor, hidden: Tensor, lm_head: Tensor) -> Judged:
            proposals = _proposals(hidden, lm_head, vocab)
            following = batch.step_next[rows, step]
            greedy = batch.argmax[batch.step_labels[rows, step]] == following
            hits = (greedy & (proposals == following)).float()
            return Judged(proposals, hits, hits)

        return judge


@dataclass(frozen=True)
class SampledRule:
    """The target samples; `drafting` says how the drafter chooses.

    Raises:
        ValueError: the target is greedy after all, or the drafting is unknown.
    """

    head: TargetHead
    """The target's, in float32."""
    sampling: Sampling
    drafting: str = "greedy"

    def __post_init__(self) -> None:
        if self.sampling.greedy or self.drafting not in DRAFTINGS:
            raise ValueError(f"sampling {self.sampling}, drafting {self.drafting}")

    def judge(self, batch: DraftBatch, vocab: VocabMap) -> Judge:
        """See Rule."""
        target = TargetProbabilities.of(self.head, self.sampling, batch)
        kind = _ProbabilisticJudge if self.drafting == "probabilistic" else _ArgmaxJudge
        return kind(target, batch, vocab)


@dataclass(frozen=True)
class TargetProbabilities:
    """What the target samples from where step 0 of each anchor is judged."""

    head: TargetHead
    divisor: float
    normed: Tensor
    """[P, H], behind the final norm."""
    logsumexp: Tensor
    """float32 [P]: of the logits / temperature that are kept."""
    floor: Tensor
    """float32 [P]: the smallest of these; -inf where nothing is cut."""

    @classmethod
    def of(cls, head: TargetHead, sampling: Sampling, batch: DraftBatch) -> TargetProbabilities:
        """For the anchors of a batch, from its last hidden states."""
        normed = head.normed(batch.last[batch.step_labels[:, 0]].to(head.lm_head.dtype))  # [P, H]
        rows = max(1, ROW_BYTES // (4 * len(head.lm_head)))
        parts = [_kept_sum(head, sampling, part) for part in normed.split(rows)]
        logsumexp, floor = torch.cat(parts).unbind(dim=1)
        return cls(head, sampling.divisor, normed, logsumexp, floor)

    def at(self, anchors: Tensor, tokens: Tensor) -> Tensor:
        """Probability of one token each: anchors int64 [R], target ids int64 [R] -> float32 [R]."""
        logits = (self.normed[anchors] * self.head.lm_head[tokens]).sum(dim=-1) / self.divisor
        return self._probabilities(logits.unsqueeze(1), anchors).squeeze(1)

    def over(self, anchors: Tensor, table: Tensor) -> Tensor:
        """Probabilities of some tokens: anchors int64 [R], their rows of the head [C, H] -> float32 [R, C]."""
        logits = linear(self.normed[anchors], table) / self.divisor
        return self._probabilities(logits, anchors)

    def _probabilities(self, logits: Tensor, anchors: Tensor) -> Tensor:
        """From logits / temperature [R, C]."""
        floor, logsumexp = self.floor[anchors, None], self.logsumexp[anchors, None]
        return torch.where(logits >= floor - ROUNDING, (logits - logsumexp).exp().clamp(max=1.0), 0.0)


@dataclass(frozen=True)
class _ArgmaxJudge:
    target: TargetProbabilities
    batch: DraftBatch
    vocab: VocabMap

    def __call__(self, step: int, rows: Tensor, hidden: Tensor, lm_head: Tensor) -> Judged:
        proposals = _proposals(hidden, lm_head, self.vocab)
        follow = (proposals == self.batch.step_next[rows, step]).float()
        parts = zip(
            self.batch.step_anchors[rows, step].split(ROWS), proposals.split(ROWS), strict=True
        )  # where step 0 of anchor p+k is judged, step k of anchor p is too
        expected = torch.cat([self.target.at(anchors, tokens) for anchors, tokens in parts])
        return Judged(proposals, follow, expected)


@dataclass(frozen=True)
class _ProbabilisticJudge:
    target: TargetProbabilities
    batch: DraftBatch
    vocab: VocabMap

    def __call__(self, step: int, rows: Tensor, hidden: Tensor, lm_head: Tensor) -> Judged:
        table = self.target.head.lm_head[self.vocab.draft_ids]  # [Vd, H]
        parts = [
            self._part(linear(part, lm_head), table, anchors, following)
            for part, anchors, following in zip(
                hidden.split(ROWS),
                self.batch.step_anchors[rows, step].split(ROWS),
                self.batch.step_next[rows, step].split(ROWS),
                strict=True,
            )
        ]
        return Judged(
            proposals=torch.cat([part.proposals for part in parts]),
            follow=torch.cat([part.follow for part in parts]),
            expected=torch.cat([part.expected for part in parts]),
        )

    def _part(self, logits: Tensor, table: Tensor, anchors: Tensor, following: Tensor) -> Judged:
        """From draft logits [R, Vd] and the target's head for the draft vocabulary [Vd, H]."""
        drafted = torch.softmax(logits / self.target.divisor, dim=-1)  # q
        own = self.vocab.to_draft(following)  # [R], -1 where q is 0
        at_own = drafted.gather(1, own.clamp(min=0).unsqueeze(1)).squeeze(1)
        chance = self.target.at(anchors, following).clamp(min=SMALLEST)  # p of the stored token
        return Judged(
            proposals=self.vocab.to_target(logits.argmax(dim=-1)),
            follow=torch.where(own >= 0, (at_own / chance).clamp(max=1.0), 0.0),
            expected=torch.minimum(self.target.over(anchors, table), drafted).sum(dim=-1).clamp(max=1.0),
        )


def _proposals(hidden: Tensor, lm_head: Tensor, vocab: VocabMap) -> Tensor:
    """Most likely tokens as target ids, int64 [P], from [P, H]."""
    draft_ids = [linear(part, lm_head).argmax(dim=-1) for part in hidden.split(ROWS)]
    return vocab.to_target(torch.cat(draft_ids))


def _kept_sum(head: TargetHead, sampling: Sampling, normed: Tensor) -> Tensor:
    """float32 [R, 2]: log-sum-exp and floor of the logits / temperature that are kept, from [R, H]."""
    logits = linear(normed, head.lm_head).float().div_(sampling.divisor)
    logsumexp = logits.logsumexp(dim=-1)
    if sampling.top_k == 0 and sampling.top_p == 1:
        return torch.stack((logsumexp, torch.full_like(logsumexp, -torch.inf)), dim=1)
    top = logits.amax(dim=-1)
    depths = nucleus.kept(logits.sub_(top.unsqueeze(1)), (logsumexp - top).exp(), sampling)  # [R, K]
    lowest = depths.masked_fill(depths.isneginf(), 0.0).amin(dim=-1)
    return torch.stack((depths.logsumexp(dim=-1) + top, lowest + top), dim=1)
