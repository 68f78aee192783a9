"""Writing a drafter in a format that an engine loads: config.json and model.safetensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats import sglang, speculators, vllm
from eyas.drafter.formats.folder import CONFIG
from eyas.drafter.formats.names import numbered_name
from eyas.drafter.formats.serving import Serving
from eyas.drafter.vocab import VocabMap
from eyas.files import write_json

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Format:
    """How one kind of checkpoint is written."""

    config_values: Callable[[DrafterConfig, Serving], dict[str, Any]]
    tensor_name: Callable[[str], str] = str
    """Name in the file of one of `Drafter`'s parameters."""


FORMATS = {
    "vllm": Format(vllm.config_values),
    "sglang": Format(sglang.config_values),
    "speculators": Format(speculators.config_values, numbered_name),
}


def write_drafter(
    directory: Path,
    name: str,
    config: DrafterConfig,
    state: Mapping[str, Tensor],
    vocab: VocabMap,
    serving: Serving,
) -> None:
    """Write the checkpoint of format `name` into an existing directory.

    `state`: weights by the names of `Drafter`'s parameters, in any precision.
    """
    write_json(directory / CONFIG, FORMATS[name].config_values(config, serving))
    path = directory / WEIGHTS
    save_file(file_tensors(name, state, vocab, serving.dtype), path, metadata={"format": "pt"})
    path.chmod(
        0o644
    )  # safetensors writes files that only their owner can read, and a server may be another user


def file_tensors(name: str, state: Mapping[str, Tensor], vocab: VocabMap, dtype: str) -> dict[str, Tensor]:
    """All tensors by their names in the file: weights in `dtype`, and the maps unless every target token is drafted.

    Without a smaller vocabulary vLLM has no place for a map, and fails to load it.
    """
    kind, named = getattr(torch, dtype), FORMATS[name].tensor_name
    weights = {named(key): tensor.detach().to("cpu", kind).contiguous() for key, tensor in state.items()}
    if vocab.size == len(vocab.t2d):
        return weights
    return {**weights, "d2t": vocab.d2t.contiguous(), "t2d": vocab.t2d.contiguous()}
