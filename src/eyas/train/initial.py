"""The drafter that training starts from: a new one, or one that was trained before."""

from __future__ import annotations

import logging
from dataclasses import asdict
from pathlib import Path

import torch

from eyas import paths
from eyas.drafter.checkpoint import load_drafter
from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.errors import ArtifactError, ConfigError
from eyas.hashing import files_digest
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile
from eyas.train.params import TrainParams

logger = logging.getLogger("eyas.train")

FROM_TARGET = ("hidden_size", "target_hidden_size", "vocab_size", "draft_vocab_size", "aux_layer_ids")
"""What a drafter must have in common with the target and the stores."""


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
    With `init_from` shapes, flags and weights are those of that drafter, whatever `params.drafter` says.

    Raises:
        ConfigError: `init_from` is the folder that training writes.
        ArtifactError: the drafter of `init_from` can't be read, or is of another target, layers or draft vocabulary.
    """
    config = drafter_config(profile, vocab, params)
    if params.init_from is None:
        drafter = Drafter(config)
        with torch.no_grad():
            drafter.lm_head.weight.copy_(head.lm_head[vocab.draft_ids])
    else:
        drafter = _trained_before(Path(params.init_from), config, vocab)
    drafter.lm_head.weight.requires_grad_(not params.freeze_lm_head)
    return drafter.train()


def initial_digest(params: TrainParams) -> str | None:
    """Digest of the files of `init_from`, since a folder's name says nothing about its content."""
    if params.init_from is None:
        return None
    directory = Path(params.init_from)
    return files_digest((path for path in directory.rglob("*") if path.is_file()), directory)


def _trained_before(directory: Path, wanted: DrafterConfig, vocab: VocabMap) -> Drafter:
    if directory.resolve().is_relative_to(paths.DRAFTER.resolve()):
        raise ConfigError(
            f"train.init_from: {directory} is this stage's own output, which DVC deletes before it runs",
            hint="copy the drafter to another folder and name the copy",
        )
    drafter, own_vocab = load_drafter(directory)
    for name in FROM_TARGET:
        ours, theirs = getattr(wanted, name), getattr(drafter.config, name)
        if ours != theirs:
            raise ArtifactError(
                f"the drafter to start from has {name} {theirs}, target and vocabulary ask for {ours}",
                where=str(directory),
                hint="train.init_from must name a drafter of the same target, layers and draft vocabulary",
            )
    if not torch.equal(own_vocab.t2d, vocab.t2d):
        raise ArtifactError(
            "the drafter to start from has another draft vocabulary: its head would mean other tokens",
            where=str(directory),
            hint="put its vocabulary in place of models/vocab, or train a new drafter",
        )
    if drafter.config != wanted:
        logger.info("shapes and flags are those of %s, not those of train.drafter", directory)
    return drafter
