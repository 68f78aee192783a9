"""The plain checkpoint for SGLang 0.5 (srt/models/llama_eagle3.py).

SGLang takes the layers to capture from the nested `eagle_config` alone, and counts outputs of layers: id i is the
Hugging Face index i + 1. The top-level list, which it only counts, is written as vLLM reads it, so that the same
folder means the same layers in both engines.
"""

from __future__ import annotations

from typing import Any

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.layerids import KEY, NESTED
from eyas.drafter.formats.plain import plain_config
from eyas.drafter.formats.serving import Serving
from eyas.target.layers import to_output_ids
from eyas.target.spec import TargetProfile

COUNTED_BY_VALUE = ("Deepseek", "Kimi")
"""Architectures whose explicit ids SGLang shifts only if the first is 1 (sgl-project/sglang#25454)."""


def config_values(config: DrafterConfig, serving: Serving) -> dict[str, Any]:
    """config.json: the plain one, with nested layer ids in SGLang's counting."""
    values = plain_config(config, serving)
    values[NESTED] = {**values[NESTED], KEY: to_output_ids(config.aux_layer_ids)}
    return values


def unservable(config: DrafterConfig, profile: TargetProfile) -> list[str]:
    """Why SGLang would compute something else than was trained, one sentence each; empty if it would not."""
    problems = []
    if config.norm_before_residual:
        problems.append(
            "SGLang always adds the feature itself, not the normed one: `norm_before_residual` is not supported there"
        )
    ids = to_output_ids(config.aux_layer_ids)
    if profile.architecture.startswith(COUNTED_BY_VALUE) and ids[0] != 1:
        problems.append(
            f"SGLang shifts the layer ids of {profile.architecture} only if the first is 1, and here they are {ids}: "
            "it would capture other layers"
        )
    return problems
