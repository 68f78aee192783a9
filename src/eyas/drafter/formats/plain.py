"""The plain EAGLE-3 config, which vLLM and SGLang read: one flat mapping, architecture LlamaForCausalLMEagle3."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.findings import Findings
from eyas.drafter.formats.layerids import KEY, NESTED, nested
from eyas.drafter.formats.llama import flag_keys, llama_keys
from eyas.drafter.formats.serving import Serving

ARCHITECTURE = "LlamaForCausalLMEagle3"
LEGACY_FC_NORM = "use_aux_norm"


def plain_config(config: DrafterConfig, serving: Serving) -> dict[str, Any]:
    """Every value that an engine would otherwise guess. Layer ids stand at the top level, counted as vLLM does."""
    return {
        "architectures": [ARCHITECTURE],
        **llama_keys(config, serving.profile, serving.dtype),
        "draft_vocab_size": config.draft_vocab_size,
        "target_hidden_size": config.target_hidden_size,
        KEY: list(config.aux_layer_ids),
        **flag_keys(config),
        NESTED: {"use_aux_hidden_state": True, "norm_before_fc": config.norm_before_fc},
    }


def plain_flags(config: Mapping[str, Any], found: Findings) -> dict[str, bool]:
    """Norm flags as both engines read them: a nested `norm_before_fc` wins, an absent flag is off."""
    inner = nested(config)
    before_fc = inner if inner.get("norm_before_fc") is not None else config
    old_name = config.get("fc_norm") is None and config.get(LEGACY_FC_NORM) is not None
    return {
        "norm_before_fc": found.flag(before_fc, "norm_before_fc", False),
        "fc_norm": found.flag(config, LEGACY_FC_NORM if old_name else "fc_norm", False),
        "norm_before_residual": found.flag(config, "norm_before_residual", False),
        "norm_output": found.flag(config, "norm_output", False),
    }
