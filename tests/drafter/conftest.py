from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.shards import SequenceStates
from eyas.tokenkinds import ANSWER, PROMPT

FLAGS = [
    {},
    {"norm_before_fc": True},
    {"fc_norm": True},
    {"norm_before_residual": True},
    {"norm_output": True},
    {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True},
    {"fc_norm": True, "norm_before_residual": True, "norm_output": True},
]

VOCAB, DRAFT_VOCAB, HIDDEN = 40, 16, 16


def make_config(**values: Any) -> DrafterConfig:
    small: dict[str, Any] = dict(  # noqa: C408 - reads as the call that it stands for
        hidden_size=HIDDEN,
        target_hidden_size=HIDDEN,
        num_aux_layers=3,
        intermediate_size=24,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=6,
        vocab_size=VOCAB,
        draft_vocab_size=DRAFT_VOCAB,
        rms_norm_eps=1e-5,
        rope_theta=100.0,
        rope_scaling=None,
        max_position_embeddings=64,
        aux_layer_ids=[2, 4, 5],
    )
    return DrafterConfig(**{**small, **values})


def make_drafter(seed: int = 0, **values: Any) -> Drafter:
    """A random drafter in float64, all weights away from their defaults."""
    torch.manual_seed(seed)
    drafter = Drafter(make_config(**values)).double()
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return drafter


def make_vocab(seed: int = 0) -> VocabMap:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randperm(VOCAB, generator=generator)[:DRAFT_VOCAB].sort().values
    return VocabMap.of_ids(ids, VOCAB)


def make_states(prompt: int, generated: int, seed: int = 0, name: str = "d:0") -> SequenceStates:
    kinds = torch.full((prompt + generated,), ANSWER, dtype=torch.uint8)
    kinds[:prompt] = PROMPT
    return states_of(kinds, seed, name)


def states_of(kinds: Tensor, seed: int = 0, name: str = "d:0", weight: float = 1.0) -> SequenceStates:
    """Random states of a sequence with tokens of these kinds, uint8 [T]."""
    generator = torch.Generator().manual_seed(seed)
    length = len(kinds)
    mask = kinds != PROMPT
    labels = torch.nonzero(mask[:-1] & mask[1:]).flatten()
    last = torch.randn(len(labels), HIDDEN, generator=generator, dtype=torch.float64)
    return SequenceStates(
        sequence_id=name,
        token_ids=torch.randint(0, VOCAB, (length,), generator=generator, dtype=torch.int32),
        kinds=kinds,
        weight=weight,
        aux=torch.randn(length, 3, HIDDEN, generator=generator, dtype=torch.float64),
        label_positions=labels.int(),
        last=last,
        argmax=(last @ target_head().T).argmax(dim=-1).int(),
        logsumexp=torch.logsumexp(last @ target_head().T, dim=-1),
    )


def target_head() -> Tensor:
    """The target's head, [V, H]."""
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(5), dtype=torch.float64)


@pytest.fixture
def embedding() -> torch.Tensor:
    return torch.randn(VOCAB, HIDDEN, generator=torch.Generator().manual_seed(99), dtype=torch.float64)


@pytest.fixture(params=FLAGS, ids=lambda flags: "+".join(flags) or "plain")
def drafter(request: pytest.FixtureRequest) -> Drafter:
    return make_drafter(**request.param)


MakeStates = Callable[..., SequenceStates]
