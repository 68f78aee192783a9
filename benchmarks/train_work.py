"""Random sequences for benchmarks/train.py, of the default run's sizes.

Letters in shape comments: T tokens of a sequence, H hidden size.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.shards import SequenceStates, label_positions
from eyas.tokenkinds import ANSWER

HIDDEN, VOCAB, DRAFT_VOCAB, AUX = 576, 49152, 4096, 3
BATCH = 8
DEFAULT_LENGTHS = (
    (50, 3), (55, 6), (63, 7), (65, 24), (70, 9), (73, 2), (74, 21), (78, 14), (81, 24), (86, 13), (90, 11), (92, 17),
    (95, 46), (98, 31), (101, 54), (106, 55), (111, 33), (118, 53), (121, 55), (123, 72), (129, 78), (133, 43),
    (137, 13), (142, 18), (150, 90), (157, 66), (167, 59), (179, 140), (190, 97), (197, 159), (199, 159), (201, 159),
    (201, 159), (202, 159), (203, 159), (204, 159), (205, 159), (207, 159), (210, 155), (210, 159), (211, 159),
    (214, 159), (218, 159), (225, 159), (234, 159), (254, 159), (290, 159), (303, 159),
)  # fmt: skip
"""(tokens, labelled positions) of sequences spread evenly over the default run's training set, sorted by tokens."""


@dataclass(frozen=True)
class Shape:
    """A sequence's size."""

    tokens: int
    labels: int

    @classmethod
    def of_share(cls, tokens: int, prompt_share: float) -> Shape:
        return cls(tokens, tokens - 1 - round(tokens * prompt_share))


@dataclass(frozen=True)
class Work:
    """The same sequences for both."""

    sequences: list[SequenceStates]
    last: list[Tensor]
    """[T, H] of each, at every position: what the reference stores."""

    @property
    def tokens(self) -> int:
        return sum(len(states.token_ids) for states in self.sequences)

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> Work:
        """Random states."""
        last = [torch.randn(shape.tokens, HIDDEN) for shape in shapes]
        return cls([_states(shape, own) for shape, own in zip(shapes, last, strict=True)], last)


def _states(shape: Shape, last: Tensor) -> SequenceStates:
    kinds = (torch.arange(shape.tokens) >= shape.tokens - 1 - shape.labels).to(torch.uint8) * ANSWER
    labels = label_positions(kinds != 0)
    return SequenceStates(
        sequence_id="benchmark",
        token_ids=torch.randint(0, VOCAB, (shape.tokens,), dtype=torch.int32),
        kinds=kinds,
        weight=1.0,
        aux=torch.randn(shape.tokens, AUX, HIDDEN),
        label_positions=labels,
        last=last[labels.long()],
        argmax=torch.randint(0, DRAFT_VOCAB, (len(labels),), dtype=torch.int32),
        logsumexp=torch.full((len(labels),), 12.0),
    )


def default_works(count: int, prompt_share: float | None = None) -> list[Work]:
    """Random batches with the default run's lengths; with a share, that of each sequence's tokens is prompt."""
    generator = random.Random(0)
    shapes = [Shape(*pair) for pair in DEFAULT_LENGTHS]
    if prompt_share is not None:
        shapes = [Shape.of_share(shape.tokens, prompt_share) for shape in shapes]
    return [Work.of(generator.sample(shapes, BATCH)) for _ in range(count)]


def describe(works: Sequence[Work]) -> str:
    """Prompt share and how full the padded batches are."""
    tokens = sum(work.tokens for work in works)
    prompt = sum(int((states.kinds == 0).sum()) for work in works for states in work.sequences)
    padded_size = sum(max(len(s.token_ids) for s in work.sequences) * len(work.sequences) for work in works)
    return f"{prompt / tokens:.0%} prompt, padded batches {tokens / padded_size:.0%} full"
