from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.target.spec import TargetProfile

NORM_FLAGS = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
ALLOWED_FLAGS = [
    dict(zip(NORM_FLAGS, values, strict=True))
    for values in np.ndindex(2, 2, 2, 2)
    if not (values[0] and values[1])  # norm_before_fc and fc_norm exclude each other
]
VOCAB, DRAFT_VOCAB, HIDDEN, AUX = 60, 24, 16, 3

PROFILE = TargetProfile(
    name="tiny",
    source="test",
    revision=None,
    digest="0" * 64,
    architecture="LlamaForCausalLM",
    model_type="llama",
    num_layers=8,
    hidden_size=HIDDEN,
    intermediate_size=32,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    vocab_size=VOCAB,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    max_position_embeddings=512,
    rope_theta=5000.0,
    rope_scaling=None,
    tie_word_embeddings=True,
    dtype="float32",
    aux_layer_ids=[2, 4, 5],
    bos_token_id=1,
    pad_token_id=0,
    end_of_turn_ids=[2],
    special_ids=[0, 1, 2],
    think=None,
    generation_prompt_ids=[3],
    chat_template_digest="0" * 64,
)


def make_config(profile: TargetProfile = PROFILE, **flags: Any) -> DrafterConfig:
    return DrafterConfig(
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        num_aux_layers=AUX,
        intermediate_size=20,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        vocab_size=VOCAB,
        draft_vocab_size=DRAFT_VOCAB,
        rms_norm_eps=1e-5,
        rope_theta=profile.rope_theta,
        rope_scaling=profile.rope_scaling,
        max_position_embeddings=profile.max_position_embeddings,
        aux_layer_ids=profile.aux_layer_ids,
        **{name: bool(value) for name, value in flags.items()},
    )


def make_drafter(seed: int = 0, **flags: Any) -> Drafter:
    """Random weights, norms away from one, so that each of them shows in the logits."""
    torch.manual_seed(seed)
    drafter = Drafter(make_config(**flags))
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, mean=0.3 if parameter.dim() == 1 else 0.0, std=0.3)
    return drafter.eval()


def make_vocab(seed: int = 0) -> VocabMap:
    """Random ids, the end of turn (2) among them."""
    rest = torch.randperm(VOCAB - 3, generator=torch.Generator().manual_seed(seed))[: DRAFT_VOCAB - 1] + 3
    return VocabMap.of_ids(torch.cat((torch.tensor([2]), rest)).sort().values, VOCAB)


@pytest.fixture
def profile() -> TargetProfile:
    return PROFILE


@pytest.fixture(params=ALLOWED_FLAGS, ids=lambda flags: "+".join(k for k, v in flags.items() if v) or "plain")
def flags(request: pytest.FixtureRequest) -> dict[str, Any]:
    return dict(request.param)


@pytest.fixture
def embedding() -> NDArray[np.float32]:
    return np.random.default_rng(5).normal(size=(VOCAB, HIDDEN)).astype(np.float32)


def replaced(profile: TargetProfile, **changes: Any) -> TargetProfile:
    return dataclasses.replace(profile, **changes)
