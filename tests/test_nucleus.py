from __future__ import annotations

import pytest
import torch

from eyas import nucleus
from eyas.sampling import Sampling


@pytest.mark.parametrize("width", [50, 9000])
@pytest.mark.parametrize(
    "sampling",
    [
        Sampling("vllm", 1.0, 1.0, 7),
        Sampling("vllm", 1.0, 0.9, 0),
        Sampling("vllm", 1.0, 0.5, 20),
        Sampling("sglang", 1.0, 0.5, 20),
    ],
    ids=lambda each: f"{each.dialect} {each}",
)
def test_what_is_kept_equals_a_sorted_vocabulary(width: int, sampling: Sampling) -> None:
    logits = torch.randn(6, width, generator=torch.Generator().manual_seed(width), dtype=torch.float64)
    depths = logits - logits.amax(dim=-1, keepdim=True)
    weights = depths.exp()
    kept = nucleus.kept(depths, weights.sum(dim=-1), sampling)
    for row, found in zip(depths, kept, strict=True):
        order = row.sort(descending=True).values
        order = order[: sampling.top_k] if sampling.top_k else order
        mass = (row if sampling.joint else order).exp().sum()
        above = order.exp().cumsum(0) - order.exp()
        wanted = order[above < sampling.top_p * mass]
        assert torch.equal(found[~found.isneginf()], wanted)


def test_ties_with_the_last_of_top_k_are_kept() -> None:
    depths = torch.tensor([[0.0, -1.0, -1.0, -1.0, -2.0]])
    kept = nucleus.kept(depths, depths.exp().sum(dim=-1), Sampling("vllm", 1.0, 1.0, 2))
    assert kept[~kept.isneginf()].tolist() == [0.0, -1.0, -1.0, -1.0]
