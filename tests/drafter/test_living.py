from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from eyas.drafter.batch import pack
from eyas.drafter.living import living_steps
from eyas.drafter.rules import Judged
from eyas.drafter.unroll import draft_steps

from .conftest import FLAGS, make_drafter, make_states

STEPS = 4


class Chance:
    """Lets a share of the chains live, and remembers what the drafter's head would have read."""

    def __init__(self, share: float) -> None:
        self.share = share
        self.random = torch.Generator().manual_seed(0)
        self.hidden: list[Tensor] = []

    def __call__(self, step: int, rows: Tensor, hidden: Tensor, lm_head: Tensor) -> Judged:
        assert len(rows) == len(hidden)
        assert step == len(self.hidden)
        self.hidden.append(hidden)
        follow = (torch.rand(len(rows), generator=self.random) < self.share).float()
        return Judged(torch.zeros(len(rows), dtype=torch.int64), follow, follow)


@pytest.mark.parametrize("flags", FLAGS, ids=lambda flags: "+".join(flags) or "plain")
@pytest.mark.parametrize("share", [1.0, 0.6])
def test_the_chains_that_live_are_those_of_training(
    flags: dict[str, Any], share: float, embedding: Tensor
) -> None:
    drafter = make_drafter(2, **flags)
    batch = pack([make_states(3, 9, seed=1), make_states(5, 3, seed=2), make_states(2, 14, seed=3)], STEPS)
    judge = Chance(share)
    found = living_steps(drafter, batch, embedding, STEPS, judge)
    assert len(found) == STEPS
    alive = torch.ones(len(batch.anchors), dtype=torch.bool)
    with torch.no_grad():
        for number, whole in enumerate(draft_steps(drafter, batch, embedding, STEPS)):
            alive &= batch.step_valid[:, number]
            rows = torch.nonzero(alive).flatten()
            assert torch.equal(found[number].rows, rows)
            assert torch.allclose(judge.hidden[number], whole.normed[rows], atol=1e-9)
            alive[rows] = found[number].judged.follow > 0
    assert share == 1.0 or len(found[-1].rows) < len(found[0].rows) / 2


def test_it_stops_when_no_chain_lives(embedding: Tensor) -> None:
    batch = pack([make_states(3, 9)], STEPS)
    assert len(living_steps(make_drafter(), batch, embedding, STEPS, Chance(0.0))) == 1
