"""The drafter that training starts from: a new one, or one that was trained before."""

from __future__ import annotations

import logging
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from eyas import paths
from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.layerids import layers_to_set
from eyas.drafter.formats.reading import read_drafter
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.errors import ConfigError
from eyas.hashing import files_digest
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile
from eyas.train.params import TrainParams

logger = logging.getLogger("eyas.train")


@dataclass(frozen=True)
class Target:
    """What an imported drafter is compared with."""

    profile: TargetProfile
    head: TargetHead


def drafter_config(profile: TargetProfile, vocab: VocabMap, params: TrainParams) -> DrafterConfig:
    """The drafter's shape: the target's widths, heads, rope and lengths; the params' flags."""
    return DrafterConfig(
        hidden_size=profile.hidden_size,
        target_hidden_size=profile.hidden_size,
        num_aux_layers=len(profile.aux_layer_ids),
        intermediate_size=profile.intermediate_size,
        num_attention_heads=profile.num_attention_heads,
        num_key_value_heads=profile.num_key_value_heads,
        head_dim=profile.head_dim,
        vocab_size=profile.vocab_size,
        draft_vocab_size=vocab.size,
        rms_norm_eps=profile.rms_norm_eps,
        rope_theta=profile.rope_theta,
        rope_scaling=profile.rope_scaling,
        max_position_embeddings=profile.max_position_embeddings,
        aux_layer_ids=list(profile.aux_layer_ids),
        **asdict(params.drafter),
    )


def first_drafter(profile: TargetProfile, vocab: VocabMap, head: TargetHead, params: TrainParams) -> Drafter:
    """The drafter before its first step.

    A new one has random weights by `torch`'s seed, and a head that starts as the target's rows of the draft vocabulary.
    With `init_from` shapes, flags, rope and weights are those of that drafter, whatever `params.drafter` says. It may have
    any format of `eyas.drafter.formats`.

    Raises:
        ConfigError: `init_from` is the folder that training writes, or has other layers or another draft vocabulary; says
            what to set.
        InputError: the drafter of `init_from` can't be read, or is of another target.
    """
    config = drafter_config(profile, vocab, params)
    if params.init_from is None:
        drafter = Drafter(config)
        with torch.no_grad():
            drafter.lm_head.weight.copy_(head.lm_head[vocab.draft_ids])
    else:
        drafter = _trained_before(Path(params.init_from), config, vocab, Target(profile, head))
    drafter.lm_head.weight.requires_grad_(not params.freeze_lm_head)
    return drafter.train()


def initial_digest(params: TrainParams) -> str | None:
    """Digest of the files of `init_from`, since a folder's name says nothing about its content."""
    if params.init_from is None:
        return None
    directory = Path(params.init_from)
    return files_digest((path for path in directory.rglob("*") if path.is_file()), directory)


def origin(params: TrainParams, profile: TargetProfile, head: TargetHead) -> dict[str, Any] | None:
    """What the drafter of `init_from` was, for the record beside the trained one; None for a new drafter."""
    if params.init_from is None:
        return None
    imported = read_drafter(Path(params.init_from), profile, head)
    return {
        "folder": Path(params.init_from).name,
        "files_digest": initial_digest(params),
        "format": imported.format,
        "dtypes": imported.dtypes,
        "assumptions": imported.assumptions,
    }


def _trained_before(directory: Path, wanted: DrafterConfig, vocab: VocabMap, target: Target) -> Drafter:
    if directory.resolve().is_relative_to(paths.DRAFTER.resolve()):
        raise ConfigError(
            f"train.init_from: {directory} is this stage's own output, which DVC deletes before it runs",
            hint="copy the drafter to another folder and name the copy",
        )
    imported = read_drafter(directory, target.profile, target.head)
    logger.info(
        "%s is a drafter in the format %s, %s", directory, imported.format, ", ".join(imported.dtypes)
    )
    for sentence in imported.assumptions:
        logger.warning("assumed of %s: %s", directory, sentence)
    _check_layers(directory, imported.config, wanted)
    _check_vocab(directory, imported.vocab, vocab)
    if different := _different(imported.config, wanted):
        logger.info("kept from %s, whatever target and train.drafter say: %s", directory, different)
    drafter = Drafter(imported.config)
    drafter.load_state_dict(imported.state)
    return drafter


def _check_layers(directory: Path, config: DrafterConfig, wanted: DrafterConfig) -> None:
    if config.aux_layer_ids != wanted.aux_layer_ids:
        raise ConfigError(
            f"the drafter to start from reads layers {config.aux_layer_ids}, extracted are {wanted.aux_layer_ids}",
            where=str(directory),
            hint=layers_to_set(config.aux_layer_ids, wanted.aux_layer_ids),
        )


def _check_vocab(directory: Path, own: VocabMap, vocab: VocabMap) -> None:
    if torch.equal(own.t2d, vocab.t2d):
        return
    first = int((own.t2d != vocab.t2d).nonzero()[0])
    whose = "the drafter's" if own.t2d[first] else f"that of {paths.VOCAB}"
    raise ConfigError(
        f"the drafter to start from has another draft vocabulary, {own.size} tokens in place of {vocab.size}: "
        f"token {first} is only in {whose}. Its head would mean other tokens",
        where=str(directory),
        hint=f"set vocab.map_from to {directory} and vocab.draft_vocab_size to {own.size}, and run again",
    )


def _different(config: DrafterConfig, wanted: DrafterConfig) -> str:
    """The settings that are not what a new drafter would have, as `name value`."""
    ours, theirs = asdict(wanted), asdict(config)
    return ", ".join(f"{name} {theirs[name]}" for name in ours if ours[name] != theirs[name])
