"""What vLLM's `extract_hidden_states` can't do, told before a server is started, or out of the log of one that refused.

Read in vllm 0.32: `config/speculative.py`, `v1/spec_decode/extract_hidden_states.py`, `config/model.py`, and the
connector.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas.errors import ArtifactError, EyasError, InputError, ServerError
from eyas.target.spec import TargetProfile

MLA_KEY = "kv_lora_rank"
"""In the config of every target with multi-head latent attention: DeepSeek, Kimi, GLM, LongCat, ...

vLLM's connector calls them unsupported, but finds out only if the target has caches of several kinds.
"""
UNCOMPRESSED = ("minicpm3",)
"""Model types with that key whose attention vLLM computes as ordinary attention."""
UNSCALED_ROPE = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")
"""Ropes whose `max_position_embeddings` is the full length already; vLLM multiplies that of the others by `factor`."""
INSTEAD = "set extract.backend to transformers"


@dataclass(frozen=True)
class Refusal:
    """A sentence in the log of a server that did not start."""

    said: str
    what: str


REFUSALS = (
    Refusal(
        "does not support EAGLE3 interface", "vLLM's model class of this target can't give its hidden states"
    ),
    Refusal(
        "MLA verifiers are unsupported",
        "vLLM can't give the hidden states of this target's kind of attention",
    ),
    Refusal("Hidden-states block-size mismatch", "vLLM can't give the hidden states of this hybrid target"),
    Refusal(
        "with pipeline parallelism", "vLLM can't give this target's hidden states with pipeline parallelism"
    ),
    Refusal("are not supported for now", "vLLM does not know this target's architecture"),
    Refusal(
        "is greater than the derived max_model_len", "the longest sequence does not fit the target in vLLM"
    ),
)
TOO_SMALL = "larger than the available KV cache memory"


def check_limits(directory: Path, profile: TargetProfile, longest: int) -> None:
    """Refuse what can be known from the target's config.

    Args:
        directory: holds the target's config.json.
        longest: tokens of the longest sequence; vLLM needs one more, for the token that every request generates.

    Raises:
        InputError: the target's attention is of a kind whose states vLLM can't give, or the sequence is too long.
        ArtifactError: there is no config.json.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ArtifactError(
            f"the target's config can't be read: {error}", where=str(path), hint="dvc repro target"
        ) from error
    if has_latent_attention(config):
        raise InputError(
            f"{profile.architecture} has multi-head latent attention (MLA), of which vLLM gives no hidden states",
            where=str(path),
            hint=INSTEAD,
        )
    if longest + 1 > (limit := longest_context(profile)):
        raise InputError(
            f"the longest sequence has {longest} tokens; vLLM generates one more, and the target holds {limit}",
            where=str(path),
            hint=f"set reassemble.max_length to {limit - 1} or less, or {INSTEAD}",
        )


def has_latent_attention(config: dict[str, Any]) -> bool:
    """Whether the target, or the language model inside it, keeps a compressed latent instead of keys and values."""
    text = config.get("text_config")
    parts = [config, text] if isinstance(text, dict) else [config]
    return any(part.get(MLA_KEY) is not None and part.get("model_type") not in UNCOMPRESSED for part in parts)


def longest_context(profile: TargetProfile) -> int:
    """Tokens that vLLM lets a sequence of this target have, prompt and answer."""
    scaling = profile.rope_scaling or {}
    kind = scaling.get("rope_type", scaling.get("type", "default"))
    factor = 1.0 if kind in UNSCALED_ROPE else scaling.get("factor") or 1.0
    return int(profile.max_position_embeddings * factor)


def explained(error: ServerError, log: Path) -> EyasError:
    """A better error for a server that did not start, if its log says why; else the same."""
    try:
        text = log.read_text(errors="replace")
    except OSError:
        return error
    if TOO_SMALL in text:
        return ServerError(
            "the states of the longest sequence do not fit into the server's KV cache",
            where=str(log),
            hint="a larger server.kv_cache_gib on a CPU, a larger --gpu-memory-utilization or more GPUs in "
            "server.extra_args elsewhere: the cache holds the states of all layers beside keys and values",
        )
    for refusal in REFUSALS:
        if refusal.said in text:
            return InputError(refusal.what, where=str(log), hint=INSTEAD)
    return error
