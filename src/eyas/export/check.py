"""Strict checks of an exported folder. Engines report neither a missing tensor nor a wrong number, so we do.

vLLM 0.32 leaves a missing projection uninitialised and a missing norm at ones, drops `input_norm` when its flag
is not set, and takes absent layer ids for its default ones; SGLang skips unknown names. Each of these only shows as low
acceptance.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.folder import CONFIG
from eyas.drafter.formats.names import drafter_name
from eyas.drafter.formats.shapes import weight_problems
from eyas.drafter.formats.writing import FORMATS, WEIGHTS
from eyas.drafter.vocab import VocabMap
from eyas.errors import ArtifactError
from eyas.export.view import FLAGS, View, view
from eyas.target.spec import TargetProfile

SIZES = (
    "hidden_size",
    "target_hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "vocab_size",
    "draft_vocab_size",
    "num_aux_hidden_states",
)
MAPS = ("d2t", "t2d")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint folder as it lies on disk."""

    config: dict[str, Any]
    tensors: dict[str, Tensor]

    @classmethod
    def read(cls, directory: Path) -> Checkpoint:
        """Read config.json and model.safetensors.

        Raises:
            ArtifactError: a file is missing or damaged.
        """
        try:
            config = json.loads((directory / CONFIG).read_text())
            return cls(config=config, tensors=load_file(directory / WEIGHTS))
        except (OSError, ValueError, SafetensorError) as error:
            raise ArtifactError(
                f"can't read the exported drafter: {error}",
                where=str(directory),
                hint="run `dvc repro export`",
            ) from error


def find_problems(
    checkpoint: Checkpoint, name: str, profile: TargetProfile, imported: DrafterConfig | None = None
) -> list[str]:
    """Everything wrong with a checkpoint of format `name`, one sentence each; empty if it is sound.

    Rope and lengths must be the target's, and every end of turn and think marker draftable. A drafter that was
    `imported` keeps its own instead.
    """
    seen = view(name, checkpoint.config)
    values = seen.values
    missing = [f"config: `{key}` must be a positive number" for key in SIZES if not _is_size(values.get(key))]
    missing += [
        f"config: `{key}` must be true or false, is {values.get(key)!r}"
        for key in FLAGS
        if not isinstance(values.get(key), bool)
    ]
    if missing:  # nothing else can be judged without sizes and flags
        return missing
    return [
        *seen.problems,
        *_config_problems(values),
        *_layer_id_problems(seen, profile),
        *_target_problems(values, profile, imported),
        *_tensor_problems(checkpoint, name, values, profile),
        *_vocab_problems(checkpoint, values, profile, draftable=imported is None),
    ]


def undraftable(vocab: VocabMap, profile: TargetProfile) -> list[int]:
    """Ends of turn and think markers that are not in the draft vocabulary."""
    wanted = [*profile.end_of_turn_ids, *sorted(profile.think.marker_ids if profile.think else ())]
    return [token for token in wanted if not vocab.t2d[token]]


def refuse(problems: list[str], directory: Path) -> None:
    """Stop at problems.

    Raises:
        ArtifactError: naming every one.
    """
    if problems:
        raise ArtifactError(
            "the exported drafter would not be what was trained:\n"
            + "\n".join(f"  - {each}" for each in problems),
            where=str(directory),
            hint="an engine would serve it without complaint; train and export again for this target",
        )


def _config_problems(values: dict[str, Any]) -> list[str]:
    nested = values.get("eagle_config") or {}
    fused = values["num_aux_hidden_states"] * values["target_hidden_size"]
    must = {
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
    }
    problems = [
        f"config: `{key}` must be {value!r}, is {values.get(key)!r}"
        for key, value in must.items()
        if values.get(key) != value
    ]
    if nested.get("norm_before_fc", values["norm_before_fc"]) != values["norm_before_fc"]:
        problems.append("config: `eagle_config.norm_before_fc`, which wins, differs from `norm_before_fc`")
    if not nested.get("use_aux_hidden_state", True):
        problems.append("config: `eagle_config.use_aux_hidden_state` is off: engines would skip fc")
    if values["norm_before_fc"] and values["fc_norm"]:
        problems.append("config: `norm_before_fc` and `fc_norm` exclude each other")
    if fused == values["hidden_size"]:
        problems.append("config: the fused width equals `hidden_size`; SGLang tells draft steps apart by it")
    if values["num_attention_heads"] % values["num_key_value_heads"]:
        problems.append("config: `num_attention_heads` is not a multiple of `num_key_value_heads`")
    return problems


def _layer_id_problems(seen: View, profile: TargetProfile) -> list[str]:
    problems = []
    if seen.layer_ids != seen.counted(profile.aux_layer_ids):
        problems.append(
            f"config: `{seen.layer_key}` must be {seen.counted(profile.aux_layer_ids)}, "
            f"the layers that were captured, {seen.place}; is {seen.layer_ids}"
        )
    if seen.values["num_aux_hidden_states"] != len(profile.aux_layer_ids):
        problems.append(
            f"config: `num_aux_hidden_states` is {seen.values['num_aux_hidden_states']}, "
            f"but {len(profile.aux_layer_ids)} layers were captured"
        )
    return problems


def _target_problems(
    values: dict[str, Any], profile: TargetProfile, imported: DrafterConfig | None
) -> list[str]:
    source: TargetProfile | DrafterConfig = imported or profile
    scaling = source.rope_scaling or None
    rope = {"rope_type": "default", "rope_theta": source.rope_theta, **(scaling or {})}
    must = {
        "vocab_size": profile.vocab_size,
        "target_hidden_size": profile.hidden_size,
        "hidden_size": profile.hidden_size,
        "max_position_embeddings": source.max_position_embeddings,
        "rope_theta": source.rope_theta,
        "rope_scaling": scaling,
        "rope_parameters": rope,
    }
    whose = "target" if imported is None else "imported drafter"
    return [
        f"config: `{key}` is {values.get(key)!r}, but the {whose} calls for {value!r}"
        for key, value in must.items()
        if values.get(key) != value
    ]


def _tensor_problems(
    checkpoint: Checkpoint, name: str, values: dict[str, Any], profile: TargetProfile
) -> list[str]:
    named = FORMATS[name].tensor_name
    state = {drafter_name(key): tensor for key, tensor in checkpoint.tensors.items() if key not in MAPS}
    problems = [
        f"tensor `{key}` must be named `{named(drafter_name(key))}` in this format"
        for key in checkpoint.tensors
        if key not in MAPS and named(drafter_name(key)) != key
    ]
    dtype = values.get("torch_dtype")
    if values.get("dtype") != dtype:
        problems.append(f"config: `dtype` {values.get('dtype')!r} differs from `torch_dtype` {dtype!r}")
    problems += [
        f"tensor `{key}` is {tensor.dtype}, the config says {dtype}"
        for key, tensor in state.items()
        if str(tensor.dtype) != f"torch.{dtype}"
    ]
    config = _drafter_config(values, profile)
    return problems if config is None else [*problems, *weight_problems(state, config)]


def _drafter_config(values: dict[str, Any], profile: TargetProfile) -> DrafterConfig | None:
    """The shape that this config describes; None if it describes none, which is named among its problems."""
    same = {field.name for field in fields(DrafterConfig)} & (set(SIZES) | set(FLAGS))
    try:
        return DrafterConfig(
            **{key: values[key] for key in same},
            num_aux_layers=values["num_aux_hidden_states"],
            rms_norm_eps=profile.rms_norm_eps,
            rope_theta=profile.rope_theta,
            rope_scaling=None,
            max_position_embeddings=profile.max_position_embeddings,
            aux_layer_ids=list(range(values["num_aux_hidden_states"])),
        )
    except ValueError:
        return None


def _vocab_problems(
    checkpoint: Checkpoint, values: dict[str, Any], profile: TargetProfile, *, draftable: bool
) -> list[str]:
    if values["draft_vocab_size"] == profile.vocab_size:
        return [
            f"tensor `{key}` does not belong to a drafter of the whole vocabulary: vLLM has no place for it"
            for key in MAPS
            if key in checkpoint.tensors
        ]
    if missing := [key for key in MAPS if key not in checkpoint.tensors]:
        return [f"tensor `{key}` is missing" for key in missing]
    vocab = VocabMap(d2t=checkpoint.tensors["d2t"], t2d=checkpoint.tensors["t2d"])
    try:
        vocab.check(WEIGHTS)
    except ArtifactError as error:
        return [error.what]
    problems = [
        f"tensor `{key}` has shape [{length}], the config calls for [{wanted}]"
        for key, length, wanted in (
            ("d2t", len(vocab.d2t), values["draft_vocab_size"]),
            ("t2d", len(vocab.t2d), values["vocab_size"]),
        )
        if length != wanted
    ]
    if problems or len(vocab.t2d) != profile.vocab_size or not draftable:
        return problems
    return [
        f"the draft vocabulary lacks token {token}, an end of turn or think marker"
        for token in undraftable(vocab, profile)
    ]


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
