"""Tiny drafters on disk, as eyas writes them and as others publish them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from eyas.drafter.formats.serving import Serving
from eyas.drafter.formats.writing import write_drafter
from eyas.drafter.vocab import VocabMap
from eyas.target.model import TargetHead
from tests.export.conftest import HIDDEN, PROFILE, VOCAB, make_drafter, make_vocab

Tensors = dict[str, Tensor]
Config = dict[str, Any]

SERVING = Serving(PROFILE, "float32", draft_tokens=4)


def whole_vocab() -> VocabMap:
    return VocabMap.of_ids(torch.arange(VOCAB), VOCAB)


def make_head() -> TargetHead:
    generator = torch.Generator().manual_seed(7)
    return TargetHead(
        embedding=torch.randn(VOCAB, HIDDEN, generator=generator),
        norm_weight=torch.ones(HIDDEN),
        eps=1e-5,
        lm_head=torch.randn(VOCAB, HIDDEN, generator=generator),
    )


def written(directory: Path, name: str, serving: Serving = SERVING, **flags: bool) -> Path:
    """A folder as eyas writes it."""
    directory.mkdir(parents=True, exist_ok=True)
    drafter = make_drafter(**flags)
    write_drafter(directory, name, drafter.config, drafter.state_dict(), make_vocab(), serving)
    return directory


def parts(directory: Path) -> tuple[Config, Tensors]:
    return json.loads((directory / "config.json").read_text()), load_file(directory / "model.safetensors")


def rewrite(directory: Path, config: Config, tensors: Tensors) -> Path:
    (directory / "config.json").write_text(json.dumps(config))
    save_file(tensors, directory / "model.safetensors")
    return directory


def eagle_head(directory: Path) -> Path:
    """As SafeAILab/EAGLE publishes: one float16 .bin, a config without rope, layers, flags or target sizes."""
    config, tensors = parts(written(directory, "vllm"))
    kept = (
        "hidden_act", "hidden_size", "intermediate_size", "model_type", "num_attention_heads",
        "num_key_value_heads", "num_hidden_layers", "rms_norm_eps", "vocab_size", "draft_vocab_size", "head_dim",
    )  # fmt: skip
    config = {key: config[key] for key in kept}
    config |= {"architectures": ["LlamaForCausalLM"], "max_position_embeddings": 64, "torch_dtype": "float16"}
    halves = {
        name: tensor.half() if tensor.is_floating_point() else tensor for name, tensor in tensors.items()
    }
    (directory / "model.safetensors").unlink()
    (directory / "config.json").write_text(json.dumps(config))
    torch.save(halves, directory / "pytorch_model.bin")
    return directory


def modelopt_head(directory: Path) -> Path:
    """As NVIDIA's Model Optimizer exports: `layers.0`, no t2d, nested layer ids that count outputs of layers."""
    config, tensors = parts(written(directory, "vllm"))
    config["eagle_config"] = {
        "eagle_aux_hidden_state_layer_ids": [each - 1 for each in config.pop(IDS)],
        "use_aux_hidden_state": True,
        "use_input_layernorm_in_first_layer": True,
        "use_last_layernorm": True,
        "use_mtp_layernorm": False,
        "next_layer_regular": True,
        "parallel_draft_step": 1,
    }
    del tensors["t2d"]
    return rewrite(
        directory, config, {name.replace("midlayer.", "layers.0."): each for name, each in tensors.items()}
    )


IDS = "eagle_aux_hidden_state_layer_ids"
