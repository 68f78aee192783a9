"""Decoding with a drafter, one token at a time, as an engine does it. Shares no code with eyas.

Each draft step runs the whole causal prefix again, and feeds the drafter's own proposals.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.export.numpy_loader import NumpyDrafter

Array = NDArray[Any]


@dataclass
class Counted:
    drafts: int = 0
    accepted_at: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)
    past_end: int = 0
    missed: list[int] = field(default_factory=list)
    """Target ids that ended a draft."""


def decode(
    engine: NumpyDrafter,
    tokens: list[int],
    aux: Array,
    prompt_length: int,
    draft_tokens: int,
    asked: int | None = None,
) -> Counted:
    """tokens: prompt and the target's greedy answer; aux [T, A * H]; only so many tokens of the answer are asked for, and
    as an engine does, all that was drafted is judged and counted nevertheless."""
    counted = Counted(accepted_at=[0] * draft_tokens)
    end = len(tokens) if asked is None else prompt_length + asked
    known = prompt_length + 1  # the target's prefill gives the first generated token
    while known < end:
        proposals = draft(engine, tokens[:known], aux[: known - 1], draft_tokens)
        accepted = 0
        for place, proposal in enumerate(proposals):
            if known + place >= len(tokens):
                break
            if proposal != tokens[known + place]:
                counted.missed.append(tokens[known + place])
                break
            accepted += 1
            counted.accepted_at[place] += 1
        counted.drafts += 1
        counted.positions.append(known - prompt_length - 1)
        counted.accepted.append(accepted)
        counted.past_end += max(0, known + draft_tokens - len(tokens))
        known += accepted + 1  # the accepted ones and the bonus token
    return counted


def draft(engine: NumpyDrafter, known: list[int], aux: Array, draft_tokens: int) -> list[int]:
    """Proposals after the known tokens; aux of all of them but the last."""
    return [int(np.argmax(logits)) for logits in draft_logits(engine, known, aux, draft_tokens, np.argmax)]


def draft_logits(
    engine: NumpyDrafter, known: list[int], aux: Array, draft_tokens: int, choose: Callable[[Array], Any]
) -> list[Array]:
    """Logits [V] of each draft step after the known tokens, each fed with what was chosen from those before."""
    features = engine.fuse(aux)
    fed = known[1:]
    found = []
    for _ in range(draft_tokens):
        result = engine.run(np.array(fed), features)
        found.append(result.logits[-1])
        fed = [*fed, int(choose(result.logits[-1]))]
        features = np.concatenate([features, result.fed_back[-1:]])
    return found


class Speculation:
    """Rejection sampling (arXiv:2211.17192) with vLLM's two ways to draft; random numbers of its own."""

    def __init__(self, temperature: float, drafting: str, seed: int) -> None:
        self.temperature = temperature
        self.drafting = drafting
        self.random = np.random.default_rng(seed)

    def sample(self, probabilities: Array) -> int:
        steps = np.cumsum(probabilities)
        return int(np.searchsorted(steps, self.random.random() * steps[-1], side="right"))

    def drafted(self, logits: Array) -> Array:
        """What a token is drafted from, [V]: one-hot or a softmax."""
        if self.drafting == "greedy":
            one_hot: Array = np.eye(len(logits))[int(np.argmax(logits))]
            return one_hot
        scaled: Array = np.exp((logits - logits.max()) / self.temperature)
        scaled /= scaled.sum()
        return scaled

    def judge(self, token: int, p: Array, q: Array) -> int:
        """The token itself if it is accepted, another one if not."""
        if self.random.random() < min(1.0, p[token] / q[token]):
            return token
        return self.sample(np.maximum(p - q, 0.0))
