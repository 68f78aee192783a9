"""The format of vllm-project/speculators, which vLLM 0.32 flattens (transformers_utils/configs/speculators).

The Llama part is nested in `transformer_layer_config`; flags, layer ids and draft vocabulary stand beside it, and a
`speculators_config` names the target, here the "verifier". An absent `norm_before_residual` means true, not false as
in a plain config.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.findings import Findings
from eyas.drafter.formats.layerids import KEY
from eyas.drafter.formats.llama import flag_keys, llama_keys
from eyas.drafter.formats.serving import Serving

ARCHITECTURE = "Eagle3DraftModel"
KIND = "speculators_model_type"
LAYER = "transformer_layer_config"
VERSION = "0.9.0"
"""The release whose fields are written."""


def config_values(config: DrafterConfig, serving: Serving) -> dict[str, Any]:
    """config.json. The number of aux layers stands in the nested part, where alone vLLM looks for it."""
    return {
        "architectures": [ARCHITECTURE],
        KIND: "eagle3",
        "speculators_version": VERSION,
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        KEY: list(config.aux_layer_ids),
        **flag_keys(config),
        "embed_requires_grad": False,
        "tie_word_embeddings": False,
        "torch_dtype": serving.dtype,
        "dtype": serving.dtype,
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [
                {
                    "proposal_type": "greedy",
                    "speculative_tokens": serving.draft_tokens,
                    "accept_tolerance": 0.0,
                    "verifier_accept_k": 1,
                }
            ],
            "verifier": {
                "name_or_path": serving.target_name,
                "architectures": [serving.profile.architecture],
            },
        },
        LAYER: llama_keys(config, serving.profile, serving.dtype),
    }


def flattened(config: Mapping[str, Any], found: Findings) -> dict[str, Any]:
    """The Llama part with what stands beside it, as vLLM flattens it."""
    layer = config.get(LAYER)
    if config.get(KIND) != "eagle3":
        found.refuse(f"config: `{KIND}` is {config.get(KIND)!r}; only 'eagle3' is a drafter of this kind")
    if not isinstance(layer, dict):
        found.refuse(f"config: `{LAYER}` must hold the sizes of the drafter, is {layer!r}")
        layer = {}
    beside = {
        key: config[key] for key in ("draft_vocab_size", "target_hidden_size") if config.get(key) is not None
    }
    return {**layer, **beside}


def speculators_flags(config: Mapping[str, Any], found: Findings) -> dict[str, bool]:
    """Norm flags with the defaults of vLLM's reader."""
    return {
        "norm_before_fc": found.flag(config, "norm_before_fc", False),
        "fc_norm": found.flag(config, "fc_norm", False),
        "norm_before_residual": found.flag(config, "norm_before_residual", True),
        "norm_output": found.flag(config, "norm_output", False),
    }
