"""Exported drafters made wrong in the ways that vLLM 0.32 accepts without a word."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

Config = dict[str, Any]
Tensors = dict[str, Tensor]


@dataclass(frozen=True)
class Sabotage:
    """A way to spoil a folder, and the cause that a diagnosis must name."""

    name: str
    cause: str
    spoil: Callable[[Config, Tensors], None]


def write_spoiled(directory: Path, sound: Path, spoil: Callable[[Config, Tensors], None]) -> Path:
    """A copy of an exported folder with something spoiled."""
    config: Config = json.loads((sound / "config.json").read_text())
    tensors: Tensors = load_file(sound / "model.safetensors")
    spoil(config, tensors)
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, directory / "model.safetensors")
    return directory


def ids_moved(by: int) -> Callable[[Config, Tensors], None]:
    def spoil(config: Config, tensors: Tensors) -> None:
        ids = config["eagle_aux_hidden_state_layer_ids"]
        config["eagle_aux_hidden_state_layer_ids"] = [number + by for number in ids]

    return spoil


def columns_swapped(config: Config, tensors: Tensors) -> None:
    """The first and the last layer change places in fc, as if aux states had been concatenated the other way."""
    for name in ("fc.weight", "input_norm.weight"):
        if name in tensors:
            low, middle, high = tensors[name].chunk(3, dim=-1)
            tensors[name] = torch.cat([high, middle, low], dim=-1)


def without(*names: str) -> Callable[[Config, Tensors], None]:
    def spoil(config: Config, tensors: Tensors) -> None:
        for name in names:
            del tensors[name]

    return spoil


def d2t_absolute(config: Config, tensors: Tensors) -> None:
    tensors["d2t"] = tensors["d2t"] + torch.arange(len(tensors["d2t"]))


def flag_flipped(name: str) -> Callable[[Config, Tensors], None]:
    def spoil(config: Config, tensors: Tensors) -> None:
        config[name] = not config[name]
        if name in config.get("eagle_config", {}):
            config["eagle_config"][name] = config[name]

    return spoil


def own_embedding(config: Config, tensors: Tensors) -> None:
    generator = torch.Generator().manual_seed(0)
    shape = (config["vocab_size"], config["hidden_size"])
    tensors["embed_tokens.weight"] = torch.randn(shape, generator=generator) * 0.02


def rope(**changes: Any) -> Callable[[Config, Tensors], None]:
    def spoil(config: Config, tensors: Tensors) -> None:
        config["rope_parameters"] = {**config["rope_parameters"], **changes}
        config["rope_theta"] = config["rope_parameters"]["rope_theta"]
        if config["rope_parameters"]["rope_type"] != "default":
            config["rope_scaling"] = {k: v for k, v in config["rope_parameters"].items() if k != "rope_theta"}

    return spoil


def head_of_target(rows: Tensor) -> Callable[[Config, Tensors], None]:
    """The head is the target's: rows [V, H] of its lm_head."""

    def spoil(config: Config, tensors: Tensors) -> None:
        ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"]
        tensors["lm_head.weight"] = rows[ids].to(tensors["lm_head.weight"].dtype)

    return spoil


def sabotages(head: Tensor) -> list[Sabotage]:
    """All of a folder alone; `head` is the target's lm_head [V, H]."""
    yarn = {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 256}
    return [
        Sabotage("ids-output", "aux_layers_shifted", ids_moved(-1)),
        Sabotage("ids-input", "aux_layers_shifted", ids_moved(+1)),
        Sabotage("order", "aux_order", columns_swapped),
        Sabotage("d2t-missing", "d2t_ignored", without("d2t")),
        Sabotage("d2t-absolute", "d2t_absolute", d2t_absolute),
        Sabotage("residual", "norm_before_residual", flag_flipped("norm_before_residual")),
        Sabotage("norm-output", "norm_output", flag_flipped("norm_output")),
        Sabotage("norm-before-fc", "norm_before_fc", flag_flipped("norm_before_fc")),
        Sabotage("final-norm", "final_norm", without("norm.weight")),
        Sabotage("embedding", "embedding", own_embedding),
        Sabotage("head-target", "head_of_target", head_of_target(head)),
        Sabotage("head-missing", "head_missing", without("lm_head.weight")),
        Sabotage("theta", "rope_theta", rope(rope_theta=10_000.0)),
        Sabotage("scaling", "rope_scaling", rope(**yarn)),
        Sabotage("hidden-norm", "tensor_missing", without("midlayer.hidden_norm.weight")),
    ]
