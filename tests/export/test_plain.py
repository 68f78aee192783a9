from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from transformers import LlamaConfig

from eyas import tokenkinds
from eyas.config import build
from eyas.drafter.batch import pack
from eyas.drafter.formats.plain import plain_config
from eyas.drafter.formats.serving import Serving
from eyas.drafter.unroll import unroll
from eyas.errors import ConfigError
from eyas.export.params import ExportParams
from eyas.shards import SequenceStates
from eyas.target.spec import TargetProfile
from tests.export.plain import write_plain

from .conftest import AUX, HIDDEN, VOCAB, make_config, make_drafter, make_vocab, replaced
from .numpy_loader import NumpyDrafter

STEPS = 4


def random_states(prompt: int, generated: int) -> SequenceStates:
    generator = torch.Generator().manual_seed(3)
    length = prompt + generated
    mask = torch.arange(length) >= prompt
    labels = torch.arange(prompt, length - 1, dtype=torch.int32)
    return SequenceStates(
        sequence_id="tiny:0",
        token_ids=torch.randint(0, VOCAB, (length,), generator=generator, dtype=torch.int32),
        kinds=mask.to(torch.uint8) * tokenkinds.ANSWER,
        weight=1.0,
        aux=torch.randn(length, AUX, HIDDEN, generator=generator),
        label_positions=labels,
        last=torch.randn(len(labels), HIDDEN, generator=generator),
        argmax=torch.zeros(len(labels), dtype=torch.int32),
        logsumexp=torch.zeros(len(labels)),
    )


def engine_logits(
    folder: Path, states: SequenceStates, embedding: NDArray[np.float32], anchor: int, steps: int
) -> list[NDArray[Any]]:
    """Draft from one anchor, the whole prefix computed again at each step; returns draft-vocab logits by step."""
    engine = NumpyDrafter(folder, embedding.astype(np.float64))
    tokens = states.token_ids.numpy()
    features = engine.fuse(states.aux[: anchor + 1].flatten(1).numpy().astype(np.float64))
    logits = []
    for step in range(steps):
        result = engine.run(tokens[1 : anchor + 2 + step], features)
        logits.append(result.logits[-1][np.isfinite(result.logits[-1])])
        features = np.concatenate([features, result.fed_back[-1:]])
    return logits


def test_an_engine_computes_the_trained_logits_at_every_draft_step(
    tmp_path: Path, profile: TargetProfile, flags: dict[str, Any], embedding: NDArray[np.float32]
) -> None:
    drafter, vocab = make_drafter(**flags), make_vocab()
    write_plain(tmp_path, drafter, vocab, profile, "float32")
    states = random_states(prompt=4, generated=9)
    batch = pack([states], STEPS)
    with torch.no_grad():
        trained = [
            drafter.logits(g).numpy() for g in unroll(drafter, batch, torch.from_numpy(embedding), STEPS)
        ]
    for row, anchor in enumerate(batch.anchors.tolist()):
        steps = int(batch.step_valid[row].sum())
        for step, logits in enumerate(engine_logits(tmp_path, states, embedding, anchor, steps)):
            np.testing.assert_allclose(trained[step][row], logits, rtol=2e-4, atol=2e-4)


def test_draft_ids_become_the_target_ids_of_the_vocabulary(
    tmp_path: Path, profile: TargetProfile, embedding: NDArray[np.float32]
) -> None:
    vocab = make_vocab()
    write_plain(tmp_path, make_drafter(), vocab, profile, "float32")
    engine = NumpyDrafter(tmp_path, embedding)
    logits = engine.run(np.array([5]), np.ones((1, HIDDEN))).logits[0]
    assert np.flatnonzero(np.isfinite(logits)).tolist() == torch.nonzero(vocab.t2d).flatten().tolist()


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
        {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128,
        },
    ],
    ids=["plain", "yarn", "llama3"],
)
def test_transformers_reads_the_rope_of_the_target(
    tmp_path: Path, profile: TargetProfile, scaling: dict[str, Any] | None
) -> None:
    profile = replaced(profile, rope_scaling=scaling)
    values = plain_config(make_config(profile), Serving(profile, "float32", draft_tokens=3))
    (tmp_path / "config.json").write_text(json.dumps(values))
    read = LlamaConfig.from_pretrained(tmp_path)
    assert read.rope_parameters == {"rope_type": "default", "rope_theta": 5000.0, **(scaling or {})}
    assert read.max_position_embeddings == 512
    assert read.head_dim == 6
    assert read.eagle_aux_hidden_state_layer_ids == [2, 4, 5]
    assert read.draft_vocab_size == 24


def test_the_config_says_everything_an_engine_would_guess(tmp_path: Path, profile: TargetProfile) -> None:
    write_plain(tmp_path, make_drafter(norm_before_fc=True), make_vocab(), profile, "float32")
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert (config["vocab_size"], config["draft_vocab_size"]) == (60, 24)
    assert (config["eagle_aux_hidden_state_layer_ids"], config["num_aux_hidden_states"]) == ([2, 4, 5], 3)
    assert config["eagle_config"] == {"use_aux_hidden_state": True, "norm_before_fc": True}
    flags = {
        name: config[name] for name in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
    }
    assert flags == {
        "norm_before_fc": True,
        "fc_norm": False,
        "norm_before_residual": False,
        "norm_output": False,
    }
    assert (config["bos_token_id"], config["eos_token_id"]) == (1, 2)
    assert config["tie_word_embeddings"] is False


def test_weights_are_written_in_the_asked_precision_and_maps_as_integers(
    tmp_path: Path, profile: TargetProfile
) -> None:
    write_plain(tmp_path, make_drafter(), make_vocab(), profile, "bfloat16")
    tensors = load_file(tmp_path / "model.safetensors")
    assert {
        name: str(tensor.dtype) for name, tensor in tensors.items() if name in ("d2t", "t2d", "fc.weight")
    } == {
        "d2t": "torch.int64",
        "t2d": "torch.bool",
        "fc.weight": "torch.bfloat16",
    }
    assert "embed_tokens.weight" not in tensors
    assert json.loads((tmp_path / "config.json").read_text())["torch_dtype"] == "bfloat16"


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (
            {"formats": ["vllm", "gguf"], "dtype": "float32"},
            "`export.formats`: 'gguf' can't be written; known: vllm, sglang, speculators",
        ),
        ({"formats": ["sglang"], "dtype": "float32"}, "lacks vllm, which evaluate and engine read"),
        ({"formats": [], "dtype": "float32"}, "`export.formats`: at least one"),
        ({"formats": ["vllm", "vllm"], "dtype": "float32"}, "names one twice"),
        ({"formats": ["vllm"], "dtype": "int8"}, "`export.dtype`: 'int8'"),
    ],
)
def test_params_are_checked(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match="`export") as caught:
        build("export", ExportParams, values)
    assert message in str(caught.value)
