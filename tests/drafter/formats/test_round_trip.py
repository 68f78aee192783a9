"""Any drafter, in any format, in any precision, comes back as it was."""

from __future__ import annotations

import dataclasses
import tempfile
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.reading import read_drafter
from eyas.drafter.formats.serving import Serving
from eyas.drafter.formats.shapes import expected_shapes
from eyas.drafter.formats.writing import FORMATS, write_drafter
from eyas.drafter.vocab import VocabMap
from eyas.target.spec import TargetProfile
from tests.export.conftest import PROFILE

LAYERS = 12
SCALINGS: list[dict[str, Any] | None] = [
    None,
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128, "beta_fast": 32},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64},
]  # fmt: skip


@st.composite
def drafters(draw: st.DrawFn) -> tuple[TargetProfile, DrafterConfig, VocabMap]:
    hidden, vocab_size = draw(st.sampled_from([8, 24])), draw(st.integers(10, 40))
    kv_heads = draw(st.integers(1, 3))
    ids = draw(st.lists(st.integers(1, LAYERS - 1), min_size=2, max_size=4, unique=True).map(sorted))
    before_fc, fc_norm = draw(st.sampled_from([(False, False), (True, False), (False, True)]))
    end = draw(st.integers(0, vocab_size - 1))
    kept = sorted({end} | draw(st.sets(st.integers(0, vocab_size - 1))))
    scaling = draw(st.sampled_from(SCALINGS))
    profile = dataclasses.replace(
        PROFILE, hidden_size=hidden, vocab_size=vocab_size, num_layers=LAYERS, aux_layer_ids=ids, end_of_turn_ids=[end],
        max_position_embeddings=draw(st.sampled_from([512, 4096])), rope_scaling=scaling,
    )  # fmt: skip
    config = DrafterConfig(
        hidden_size=hidden,
        target_hidden_size=hidden,
        num_aux_layers=len(ids),
        intermediate_size=draw(st.integers(1, 9)),
        num_attention_heads=kv_heads * draw(st.integers(1, 2)),
        num_key_value_heads=kv_heads,
        head_dim=draw(st.sampled_from([2, 6])),
        vocab_size=vocab_size,
        draft_vocab_size=len(kept),
        rms_norm_eps=draw(st.sampled_from([1e-5, 1e-6])),
        rope_theta=profile.rope_theta,
        rope_scaling=scaling,
        max_position_embeddings=profile.max_position_embeddings,
        aux_layer_ids=ids,
        norm_before_fc=before_fc,
        fc_norm=fc_norm,
        norm_before_residual=draw(st.booleans()),
        norm_output=draw(st.booleans()),
    )
    return profile, config, VocabMap.of_ids(torch.tensor(kept), vocab_size)


@pytest.mark.parametrize("name", FORMATS)
@settings(max_examples=40)
@given(drafters(), st.sampled_from(["float32", "bfloat16", "float16"]))
def test_nothing_is_lost_and_nothing_assumed(
    name: str, drawn: tuple[TargetProfile, DrafterConfig, VocabMap], dtype: str
) -> None:
    profile, config, vocab = drawn
    generator = torch.Generator().manual_seed(0)
    kind = getattr(torch, dtype)
    state = {
        key: torch.randn(shape, generator=generator).to(kind)
        for key, shape in expected_shapes(config).items()
    }
    with tempfile.TemporaryDirectory() as folder:
        write_drafter(Path(folder), name, config, state, vocab, Serving(profile, dtype, draft_tokens=2))
        read = read_drafter(Path(folder), profile)
    assert (read.config, read.format, read.assumptions) == (config, name, [])
    assert torch.equal(read.vocab.t2d, vocab.t2d)
    assert read.state.keys() == state.keys()
    for key, tensor in state.items():
        assert read.state[key].dtype == kind
        assert torch.equal(read.state[key], tensor)
