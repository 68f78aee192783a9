"""A target profile, params and prompt tables for tests."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl

from eyas import paths
from eyas.freshness import inputs_digest
from eyas.generate.params import GenerateParams
from eyas.schema import MESSAGES
from eyas.tables import INPUTS
from eyas.target.spec import TargetProfile
from tests.generate.scripted import GENERATION_PROMPT, MODEL

GENERATE: dict[str, Any] = {
    "dialect": "vllm",
    "temperature": 0.0,
    "top_p": 1.0,
    "top_k": 0,
    "max_tokens": 16,
    "seed": 0,
    "chat_template_kwargs": {},
    "expect_reasoning": False,
    "stream": False,
    "accept_unparsed_reasoning": False,
    "gate_rows": 100,
    "gate_min_reasoning_share": 0.5,
    "gate_max_truncated_share": 1.0,
    "max_failed_share": 0.0,
}


def generate_params(**changes: Any) -> GenerateParams:
    return GenerateParams(**GENERATE | changes)


def profile(**changes: Any) -> TargetProfile:
    values: dict[str, Any] = {
        "name": MODEL,
        "source": "test",
        "revision": None,
        "digest": "0" * 64,
        "architecture": "LlamaForCausalLM",
        "model_type": "llama",
        "num_layers": 4,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "vocab_size": 2000,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "max_position_embeddings": 512,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "tie_word_embeddings": True,
        "dtype": "float32",
        "aux_layer_ids": [1, 2, 3],
        "bos_token_id": 1,
        "pad_token_id": 2,
        "end_of_turn_ids": [2],
        "special_ids": [0, 1, 2],
        "think": None,
        "generation_prompt_ids": GENERATION_PROMPT,
        "chat_template_digest": "0" * 64,
    }
    return TargetProfile(**values | changes)


def write_prompts(
    dataset: str, prompts: Sequence[str | list[dict[str, Any]]], inputs: str | None = None
) -> Path:
    """data/prompts/X.parquet below the working directory, fresh unless `inputs` is given.

    A prompt is the text of a single user turn, or a list of messages.
    """
    path = paths.prompts(dataset)
    path.parent.mkdir(parents=True, exist_ok=True)
    count = len(prompts)
    frame = pl.DataFrame(
        {
            "sample_id": [f"{dataset}:{index:0{max(4, len(str(count)))}}" for index in range(count)],
            "dataset": [dataset] * count,
            "messages": [
                [{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt
                for prompt in prompts
            ],
            "tools": [None] * count,
            "prompt_hash": [f"{index:064x}" for index in range(count)],
            "task": [None] * count,
        },
        schema={
            "sample_id": pl.String,
            "dataset": pl.String,
            "messages": MESSAGES,
            "tools": pl.String,
            "prompt_hash": pl.String,
            "task": pl.String,
        },
    )
    frame.write_parquet(path, metadata={INPUTS: inputs_digest() if inputs is None else inputs})
    return path
