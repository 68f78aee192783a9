"""A tiny target with greedy answers, its states in a store, and a drafter trained on them: a run in seconds."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from eyas import tokenkinds
from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.shards import HiddenStore, SequenceStates, ShardWriter, StoreMeta, label_positions
from eyas.target.model import TargetHead, capture, load_target
from eyas.target.spec import TargetProfile
from tests.pipeline.quick_training import new_drafter, train
from tests.referee.hand_made import plain_config, plain_tensors, write_folder
from tests.tiny_target import profile_of, write_target

PROMPTS, PROMPT_TOKENS, ANSWER_TOKENS, STEPS = 40, 8, 24, 3
FLAGS = {"norm_before_fc": True, "norm_before_residual": True, "norm_output": True}


@dataclass(frozen=True)
class TinyRun:
    target: Path
    profile: TargetProfile
    head: TargetHead
    vocab: VocabMap
    store: HiddenStore
    sound: Path
    """A drafter's folder, of the FLAGS."""

    @property
    def sequences(self) -> list[SequenceStates]:
        return list(self.store)

    def drafter(self, **changes: Any) -> Drafter:
        """An untrained one."""
        profile = self.profile
        values: dict[str, Any] = {
            "hidden_size": profile.hidden_size,
            "target_hidden_size": profile.hidden_size,
            "num_aux_layers": len(profile.aux_layer_ids),
            "intermediate_size": profile.intermediate_size,
            "num_attention_heads": profile.num_attention_heads,
            "num_key_value_heads": profile.num_key_value_heads,
            "head_dim": profile.head_dim,
            "vocab_size": profile.vocab_size,
            "draft_vocab_size": self.vocab.size,
            "rms_norm_eps": profile.rms_norm_eps,
            "rope_theta": profile.rope_theta,
            "rope_scaling": None,
            "max_position_embeddings": profile.max_position_embeddings,
            "aux_layer_ids": profile.aux_layer_ids,
            **FLAGS,
        }
        drafter = new_drafter(DrafterConfig(**{**values, **changes}), self.vocab, self.head.lm_head)
        for parameter in drafter.parameters():
            if parameter.dim() == 1:  # ones would hide whether a norm is applied
                torch.nn.init.uniform_(parameter, 0.5, 1.5)
        return drafter

    def trained(self, folder: Path, *, steps: int, draft_steps: int = STEPS) -> Path:
        """A folder of a drafter after so many steps."""
        drafter = self.drafter()
        train(
            drafter,
            self.vocab,
            self.sequences,
            self.head.embedding,
            steps=steps,
            draft_steps=draft_steps,
            lr=8e-3,
        )
        return write_folder(folder, plain_config(drafter), plain_tensors(drafter, self.vocab))


def tiny_run(directory: Path, **sizes: Any) -> TinyRun:
    """A run in an empty directory; `sizes` of the target other than tests.tiny_target's."""
    rope = {"rope_type": "default", "rope_theta": 100_000.0}
    target = write_target(directory / "target", rope_parameters=rope, **sizes)
    profile = profile_of(target, dtype="float32")
    head = TargetHead.read(target, profile, "float32")
    model = load_target(target, "float32")
    generator = torch.Generator().manual_seed(0)
    prompts = torch.randint(3, 300, (PROMPTS, PROMPT_TOKENS), generator=generator)
    with torch.inference_mode():
        tokens = prompts
        for _ in range(ANSWER_TOKENS):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(dim=-1)], dim=1)
    store = _stored(directory / "hidden", tokens, model, profile, head)
    seen = sorted(set(tokens[:, PROMPT_TOKENS:].flatten().tolist()))
    vocab = VocabMap.of_ids(torch.tensor(seen), profile.vocab_size)
    run = TinyRun(target, profile, head, vocab, store, directory / "sound")
    run.trained(run.sound, steps=90)
    return run


def _stored(
    directory: Path, tokens: torch.Tensor, model: Any, profile: TargetProfile, head: TargetHead
) -> HiddenStore:
    meta = StoreMeta(
        target_digest=profile.digest,
        target_name=profile.name,
        target_revision=None,
        source_digest="tiny",
        dtype="float32",
        aux_layer_ids=profile.aux_layer_ids,
        backend="transformers",
        versions={},
    )
    writer = ShardWriter(directory, meta, shard_bytes=10**9)
    states = capture(model, tokens, None, profile.aux_layer_ids)
    mask = torch.arange(tokens.shape[1]) >= PROMPT_TOKENS
    labels = label_positions(mask)
    for number, ids in enumerate(tokens):
        last = states.last[number, labels.long()].clone()
        logits = head.logits(last)
        assert torch.equal(logits.argmax(-1), ids[labels.long() + 1])  # or nothing below would mean anything
        writer.add(
            SequenceStates(
                f"tiny:{number}",
                ids.to(torch.int32),
                mask.to(torch.uint8) * tokenkinds.ANSWER,
                1.0,
                states.aux[number].clone(),
                labels,
                last,
                logits.argmax(-1),
                logits.logsumexp(-1),
            )
        )
    writer.close()
    return HiddenStore(directory)
