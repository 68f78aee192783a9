"""A target of a few thousand weights with a real tokenizer and chat template, as a Hugging Face folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen3Config,
)

from eyas.target.bring import Origin
from eyas.target.params import TargetParams
from eyas.target.profile import build_profile
from eyas.target.spec import TargetProfile

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
CONFIGS: dict[str, Any] = {"llama": LlamaConfig, "qwen2": Qwen2Config, "qwen3": Qwen3Config}
LAYERS = 8
HIDDEN = 32


def make_tokenizer(*, think: bool = False, template: str = CHATML) -> Any:
    """A byte-level BPE over a few words; ids 0..2 are the special tokens, then think markers if asked for."""
    backend: Any = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=290,
        special_tokens=[*SPECIAL, *(["<think>", "</think>"] if think else [])],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(["the user asks the assistant and the assistant answers"] * 4, trainer)
    fast: Any = PreTrainedTokenizerFast
    return fast(
        tokenizer_object=backend,
        eos_token="<|endoftext|>",
        pad_token="<|endoftext|>",
        chat_template=template,
        clean_up_tokenization_spaces=False,
    )


def write_target(
    directory: Path,
    kind: str = "llama",
    *,
    tied: bool = True,
    think: bool = False,
    seed: int = 0,
    template: str = CHATML,
    max_shard_size: str = "5GB",
    **overrides: Any,
) -> Path:
    """Write a random target of a kind: llama, qwen2 or qwen3."""
    torch.manual_seed(seed)
    config = CONFIGS[kind](
        **{
            "hidden_size": HIDDEN,
            "intermediate_size": 64,
            "num_hidden_layers": LAYERS,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 8,
            "vocab_size": 300,
            "max_position_embeddings": 512,
            "initializer_range": 0.2,
            "tie_word_embeddings": tied,
            "bos_token_id": None,
            "eos_token_id": 0,
            "pad_token_id": 0,
            **overrides,
        }
    )
    auto: Any = AutoModelForCausalLM
    model = auto.from_config(config)
    for name, parameter in model.named_parameters():
        if name.endswith("norm.weight"):  # ones would hide a forgotten or doubled norm weight
            torch.nn.init.uniform_(parameter, 0.5, 1.5)
    model.save_pretrained(directory, max_shard_size=max_shard_size)
    make_tokenizer(think=think, template=template).save_pretrained(directory)
    return directory


def profile_of(directory: Path, **params: Any) -> TargetProfile:
    """The profile that the target stage would write for a folder."""
    return build_profile(
        directory,
        Origin(f"folder:{directory.name}", None, directory.name),
        TargetParams(source="folder", name=str(directory), **params),
    )
