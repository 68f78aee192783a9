"""Greedy decoding with a drafter, one token at a time, as an engine does it. Shares no code with eyas.

Each draft step runs the whole causal prefix again, and feeds the drafter's own proposals.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tests.export.numpy_loader import NumpyDrafter


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
    engine: NumpyDrafter, tokens: list[int], aux: NDArray[Any], prompt_length: int, draft_tokens: int
) -> Counted:
    """tokens: prompt and the target's greedy answer; aux [T, A * H]."""
    counted = Counted(accepted_at=[0] * draft_tokens)
    known = prompt_length + 1  # the target's prefill gives the first generated token
    while known < len(tokens):
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


def draft(engine: NumpyDrafter, known: list[int], aux: NDArray[Any], draft_tokens: int) -> list[int]:
    """Proposals after the known tokens; aux of all of them but the last."""
    features = engine.fuse(aux)
    fed = known[1:]
    proposals: list[int] = []
    for _ in range(draft_tokens):
        result = engine.run(np.array(fed), features)
        proposals.append(int(np.argmax(result.logits[-1])))
        fed = [*fed, proposals[-1]]
        features = np.concatenate([features, result.fed_back[-1:]])
    return proposals
