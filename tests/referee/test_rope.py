"""Frequencies against transformers, whose rope the trainer uses."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from eyas.errors import ArtifactError
from eyas.referee.rope import Rope, frequencies, rotation

LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128}


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "linear", "factor": 2.5},
        LLAMA3,
        YARN,
        {**YARN, "beta_fast": 20.0, "beta_slow": 2.0},
        {**YARN, "mscale": 0.7, "mscale_all_dim": 1.1},
        {**YARN, "attention_factor": 0.9},
        {**YARN, "truncate": False},
    ],
    ids=["plain", "linear", "llama3", "yarn", "betas", "mscale", "attention", "exact"],
)
def test_rotation_is_that_of_transformers(scaling: dict[str, Any] | None) -> None:
    parameters = {"rope_type": "default", "rope_theta": 500_000.0, **(scaling or {})}
    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=2,
        head_dim=32,
        max_position_embeddings=512,
        rope_parameters=parameters,
    )
    positions = torch.arange(0, 400, 7)
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), positions[None])
    rope = Rope.of_config({"rope_parameters": parameters})
    mine = rotation(rope, 32, 512, positions.numpy())
    np.testing.assert_allclose(mine.cos[:, 0], cos[0, :, :16].numpy(), atol=2e-5)
    np.testing.assert_allclose(mine.sin[:, 0], sin[0, :, :16].numpy(), atol=2e-5)


def test_a_config_is_read_in_the_names_of_both_transformers() -> None:
    old = Rope.of_config({"rope_theta": 1e6, "rope_scaling": {"type": "linear", "factor": 2.0}})
    new = Rope.of_config({"rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e6}})
    assert old == new
    assert Rope.of_config({}) == Rope(10_000.0)
    assert Rope.of_config({"rope_parameters": {"rope_type": "default", "rope_theta": 5.0}}) == Rope(5.0)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ArtifactError, match="'longrope' can't be simulated"):
        frequencies(Rope(1e4, {"rope_type": "longrope"}), 8, 64)
