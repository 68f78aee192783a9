"""Building the target's profile from its folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eyas.errors import ConfigError, InputError
from eyas.hashing import digest, files_digest
from eyas.target import layers
from eyas.target.bring import Origin
from eyas.target.formats import TurnFormat, resolve_format
from eyas.target.params import TargetParams
from eyas.target.spec import TargetProfile
from eyas.target.template import generation_prompt_ids, load_tokenizer, special_ids


def build_profile(directory: Path, origin: Origin, params: TargetParams) -> TargetProfile:
    """Read sizes from the config, ids from tokenizer and template.

    Raises:
        InputError: the config lacks a size that a drafter needs, or the template can't be used.
        ConfigError: `target.aux_layer_ids` does not fit the target.
    """
    config = _text_config(directory, params)
    tokenizer = load_tokenizer(directory.resolve(), trust_remote_code=params.trust_remote_code)
    turns = resolve_format(tokenizer, params.think_format)
    num_layers = _size(config, "num_hidden_layers", directory)
    heads = _size(config, "num_attention_heads", directory)
    rope = _rope(config)
    return TargetProfile(
        name=origin.served_name,
        source=origin.source,
        revision=origin.revision,
        digest=files_digest((path for path in directory.rglob("*") if path.is_file()), directory),
        architecture=_architecture(directory),
        model_type=str(config.model_type),
        num_layers=num_layers,
        hidden_size=_size(config, "hidden_size", directory),
        intermediate_size=_size(config, "intermediate_size", directory),
        num_attention_heads=heads,
        num_key_value_heads=getattr(config, "num_key_value_heads", None) or heads,
        head_dim=getattr(config, "head_dim", None) or config.hidden_size // heads,
        vocab_size=_size(config, "vocab_size", directory),
        rms_norm_eps=float(_size(config, "rms_norm_eps", directory)),
        hidden_act=str(_size(config, "hidden_act", directory)),
        max_position_embeddings=_size(config, "max_position_embeddings", directory),
        rope_theta=float(rope.pop("rope_theta", 10000.0)),
        rope_scaling=None if rope.get("rope_type", "default") == "default" else rope,
        tie_word_embeddings=bool(getattr(config, "tie_word_embeddings", False)),
        dtype=params.dtype,
        aux_layer_ids=_aux_layers(params, num_layers),
        bos_token_id=tokenizer.bos_token_id,
        pad_token_id=tokenizer.pad_token_id,
        end_of_turn_ids=_end_of_turn_ids(directory, config, tokenizer, turns),
        special_ids=special_ids(tokenizer),
        think=turns.think,
        generation_prompt_ids=generation_prompt_ids(tokenizer),
        chat_template_digest=digest(tokenizer.chat_template),
        trust_remote_code=params.trust_remote_code,
        family=turns.family,
        tools=turns.tools,
    )


def _text_config(directory: Path, params: TargetParams) -> Any:
    from transformers import AutoConfig

    try:
        config = AutoConfig.from_pretrained(
            directory, local_files_only=True, trust_remote_code=params.trust_remote_code
        )
    except (OSError, ValueError, KeyError) as error:
        raise InputError(f"the target's config can't be loaded: {error}", where=str(directory)) from error
    return config.get_text_config(decoder=True)


def _size(config: Any, key: str, directory: Path) -> Any:
    value = getattr(config, key, None)
    if value is None:
        raise InputError(
            f"the target's config has no `{key}`, which a drafter needs",
            where=str(directory / "config.json"),
            hint="targets of the Llama and Qwen kind are supported",
        )
    return value


def _architecture(directory: Path) -> str:
    architectures = json.loads((directory / "config.json").read_bytes()).get("architectures")
    if not architectures:
        raise InputError("config.json names no architecture", where=str(directory / "config.json"))
    return str(architectures[0])


def _rope(config: Any) -> dict[str, Any]:
    """Rope settings of a config. Newer configs hold theta and scaling in one mapping."""
    rope = dict(getattr(config, "rope_parameters", None) or {})
    if not rope:
        rope = dict(getattr(config, "rope_scaling", None) or {})
        rope["rope_theta"] = getattr(config, "rope_theta", 10000.0)
    if any(isinstance(value, dict) for value in rope.values()):
        raise InputError(f"layers with different rope settings are not supported: {sorted(rope)}")
    return rope


def _aux_layers(params: TargetParams, num_layers: int) -> list[int]:
    try:
        if params.aux_layer_ids is None:
            return layers.canonical_layers(num_layers)
        layers.check_layers(params.aux_layer_ids, num_layers)
    except ValueError as error:
        raise ConfigError(
            f"`target.aux_layer_ids`: {error}",
            where="params.yaml",
            hint=f"give ascending ids within 1..{num_layers - 1}",
        ) from error
    return list(params.aux_layer_ids)


def _end_of_turn_ids(directory: Path, config: Any, tokenizer: Any, turns: TurnFormat) -> list[int]:
    """Eos ids of the generation config (else the config, else the tokenizer), and those of the turn format."""
    path = directory / "generation_config.json"
    eos = json.loads(path.read_bytes()).get("eos_token_id") if path.exists() else None
    for fallback in (getattr(config, "eos_token_id", None), tokenizer.eos_token_id):
        eos = fallback if eos is None else eos
    found = [*(eos if isinstance(eos, list) else [eos]), *turns.end_of_turn_ids]
    ids = {int(token) for token in found if token is not None}
    if not ids:
        raise InputError(
            "the target names no token that ends a turn",
            where=str(directory),
            hint="set eos_token_id in generation_config.json",
        )
    inside = sorted(ids & _ids_within_turns(turns))
    if inside:
        raise InputError(
            f"end-of-turn id {inside[0]} ({tokenizer.decode(inside[:1])!r}) also stands within turns of the family "
            f"{turns.family}, where a server would stop",
            where=str(path if path.exists() else directory / "config.json"),
            hint="correct eos_token_id",
        )
    return sorted(ids)


def _ids_within_turns(turns: TurnFormat) -> set[int]:
    think, tools = turns.think, turns.tools
    sections = [] if think is None else [think.start_ids, think.end_ids, *think.implicit_end_ids]
    sections += [] if tools is None else [*tools.start_ids]
    return {token for ids in sections for token in ids}
