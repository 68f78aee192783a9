"""A GGUF file as a Hugging Face folder.

transformers dequantises the weights but leaves a config that calls itself quantised, a float32-rounded epsilon, and
the wrong pre-tokenizer; each is repaired here. Limited to the Llama architecture and to pre-tokenizers whose
definition is known: a wrong one still decodes well and only shows as poor answers.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gguf import GGUFReader
from tokenizers.pre_tokenizers import ByteLevel, Digits, PreTokenizer, Sequence
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GenerationConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)

from eyas.errors import InputError
from eyas.files import write_json

SPECIAL_ROLES = ("bos_token", "eos_token", "unk_token", "pad_token")


def convert_gguf(gguf_file: Path, directory: Path, dtype: str) -> None:
    """Write config, weights (in `dtype`), generation config and tokenizer of a GGUF file into `directory`.

    Raises:
        InputError: another architecture, an unknown pre-tokenizer, or no chat template.
    """
    reader = GGUFReader(str(gguf_file))
    architecture = _field(reader, "general.architecture", gguf_file)
    if architecture != "llama":
        raise InputError(
            f"GGUF architecture {architecture!r} is not supported",
            where=gguf_file.name,
            hint="use the original Hugging Face folder: target.source: folder or hub",
        )
    model = _load_model(gguf_file, reader, dtype)
    model.save_pretrained(directory)
    model.generation_config.save_pretrained(directory)
    _load_tokenizer(gguf_file, reader, model.config).save_pretrained(directory)
    _name_portable_class(directory / "tokenizer_config.json")
    for path in directory.iterdir():
        path.chmod(0o644)  # safetensors writes 0600, which a server run by another user can't read


def _load_model(gguf_file: Path, reader: GGUFReader, dtype: str) -> Any:
    """Copy dequantised weights into a model that does not know about quantisation."""
    auto: Any = AutoModelForCausalLM
    source = auto.from_pretrained(
        gguf_file.parent, gguf_file=gguf_file.name, dtype=torch.float32, local_files_only=True
    )
    values = source.config.to_dict()
    for key in ("quantization_config", "_model_name_or_path", "_name_or_path", "transformers_version"):
        values.pop(key, None)
    values["rms_norm_eps"] = _shortest(_field(reader, "llama.attention.layer_norm_rms_epsilon", gguf_file))
    values["tie_word_embeddings"] = not any(tensor.name == "output.weight" for tensor in reader.tensors)
    values["architectures"] = ["LlamaForCausalLM"]
    values["dtype"] = dtype
    eos = int(_field(reader, "tokenizer.ggml.eos_token_id", gguf_file))
    with torch.device("meta"):
        model = auto.from_config(LlamaConfig(**values))
    model.to_empty(device="cpu")
    model.tie_weights()
    model.load_state_dict(source.state_dict(), strict=True)
    model.generation_config = GenerationConfig.from_dict(
        {"bos_token_id": values["bos_token_id"], "eos_token_id": eos, "pad_token_id": values["pad_token_id"]}
    )
    return model.to(getattr(torch, dtype))


def _load_tokenizer(gguf_file: Path, reader: GGUFReader, config: LlamaConfig) -> Any:
    """The tokenizer of the file with its pre-tokenizer repaired, of a class that loads tokenizer.json as it is."""
    loaded = AutoTokenizer.from_pretrained(gguf_file.parent, gguf_file=gguf_file.name, local_files_only=True)
    if not loaded.chat_template:
        raise InputError("the GGUF file has no chat template", where=gguf_file.name)
    backend = loaded.backend_tokenizer
    backend.pre_tokenizer = _pre_tokenizer(str(_field(reader, "tokenizer.ggml.pre", gguf_file)), gguf_file)
    roles = {role: getattr(loaded, role) for role in SPECIAL_ROLES if getattr(loaded, role) is not None}
    fast: Any = PreTrainedTokenizerFast
    return fast(
        tokenizer_object=backend,
        chat_template=loaded.chat_template,
        clean_up_tokenization_spaces=False,
        model_max_length=config.max_position_embeddings,
        **roles,
    )


def _name_portable_class(path: Path) -> None:
    """Name the class under which every version of transformers loads tokenizer.json as it is."""
    values = json.loads(path.read_bytes())
    values.pop("backend", None)
    write_json(path, {**values, "tokenizer_class": "PreTrainedTokenizerFast"})


def _pre_tokenizer(name: str, gguf_file: Path) -> PreTokenizer:
    """The pre-tokenizer that a GGUF name stands for (llama.cpp, `llama_vocab_pre_type`)."""
    if name == "smollm":
        return Sequence([Digits(individual_digits=True), ByteLevel(add_prefix_space=False)])
    if name in {"gpt-2", "default"}:
        return ByteLevel(add_prefix_space=False)
    raise InputError(
        f"GGUF pre-tokenizer {name!r} is not supported",
        where=gguf_file.name,
        hint="use the original Hugging Face folder: target.source: folder or hub",
    )


def _field(reader: GGUFReader, key: str, gguf_file: Path) -> Any:
    field = reader.get_field(key)
    if field is None:
        raise InputError(f"the GGUF file has no `{key}`", where=gguf_file.name)
    return field.contents()


def _shortest(value: float) -> float:
    """The decimal that was meant: GGUF stores 1e-05 as a float32, which reads back as 9.999999747378752e-06."""
    return float(str(np.float32(value)))
