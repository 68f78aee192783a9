"""A tiny drafter with random weights, its folder written tensor by tensor, and answers with random states."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch import Tensor

from eyas import tokenkinds
from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.referee.drafting import Answered
from eyas.referee.rope import Rope
from eyas.referee.target import TargetSide
from eyas.shards import SequenceStates

VOCAB, DRAFT_VOCAB, HIDDEN, LAYERS = 60, 24, 16, 8
IDS = [2, 4, 5]


def make_config(**changes: Any) -> DrafterConfig:
    values: dict[str, Any] = {
        "hidden_size": HIDDEN,
        "target_hidden_size": HIDDEN,
        "num_aux_layers": len(IDS),
        "intermediate_size": 20,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 6,
        "vocab_size": VOCAB,
        "draft_vocab_size": DRAFT_VOCAB,
        "rms_norm_eps": 1e-5,
        "rope_theta": 5000.0,
        "rope_scaling": None,
        "max_position_embeddings": 512,
        "aux_layer_ids": IDS,
    }
    return DrafterConfig(**{**values, **changes})


def make_drafter(**changes: Any) -> Drafter:
    """Norms away from one, so that each of them shows."""
    torch.manual_seed(0)
    drafter = Drafter(make_config(**changes))
    for parameter in drafter.parameters():
        torch.nn.init.normal_(parameter, mean=0.4 if parameter.dim() == 1 else 0.0, std=0.3)
    return drafter.eval()


def make_vocab() -> VocabMap:
    return VocabMap.of_ids(
        torch.randperm(VOCAB, generator=torch.Generator().manual_seed(1))[:DRAFT_VOCAB].sort().values, VOCAB
    )


@dataclass(frozen=True)
class HandMade:
    vocab: VocabMap
    embedding: NDArray[np.float32]
    target: TargetSide
    sequences: list[SequenceStates] = field(default_factory=list)

    @property
    def answers(self) -> list[Answered]:
        return [answered(each) for each in self.sequences]


def hand_made() -> HandMade:
    rng = np.random.default_rng(3)
    embedding = rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
    head = rng.normal(size=(VOCAB, HIDDEN)).astype(np.float32)
    target = TargetSide(LAYERS, HIDDEN, VOCAB, 512, Rope(5000.0), "float32", embedding=embedding, head=head)
    vocab = make_vocab()
    return HandMade(vocab, embedding, target, [random_states(n, 3 + n, 7 + 2 * n, vocab) for n in range(4)])


def random_states(seed: int, prompt: int, generated: int, vocab: VocabMap) -> SequenceStates:
    """Answers of tokens that can be drafted."""
    generator = torch.Generator().manual_seed(seed)
    length = prompt + generated
    picked = torch.randint(0, DRAFT_VOCAB, (length,), generator=generator)
    mask = torch.arange(length) >= prompt
    labels = torch.arange(prompt, length - 1, dtype=torch.int32)
    tokens = vocab.draft_ids[picked].to(torch.int32)
    return SequenceStates(
        sequence_id=f"tiny:{seed}",
        token_ids=tokens,
        kinds=mask.to(torch.uint8) * tokenkinds.ANSWER,
        weight=1.0,
        aux=torch.randn(length, len(IDS), HIDDEN, generator=generator),
        label_positions=labels,
        last=torch.randn(len(labels), HIDDEN, generator=generator),
        argmax=tokens[labels.long() + 1],
        logsumexp=torch.zeros(len(labels)),
    )


def answered(states: SequenceStates) -> Answered:
    greedy = np.full(len(states.token_ids), -1)
    greedy[states.label_positions.numpy()] = states.argmax.numpy()
    mask = states.loss_mask.numpy()
    return Answered(
        states.sequence_id,
        states.token_ids.numpy().astype(np.int64),
        int(mask.argmax()),
        states.aux.numpy(),
        greedy,
    )


def echoing(states: SequenceStates, choices: list[int]) -> SequenceStates:
    """The same with other answer tokens."""
    tokens = states.token_ids.clone()
    tokens[-len(choices) :] = torch.tensor(choices, dtype=torch.int32)
    return replace(states, token_ids=tokens, argmax=tokens[states.label_positions.long() + 1])


def plain_config(drafter: Drafter, **changes: Any) -> dict[str, Any]:
    config = drafter.config
    keys = (
        "hidden_size", "target_hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads",
        "head_dim", "vocab_size", "draft_vocab_size", "rms_norm_eps", "max_position_embeddings",
        "norm_before_fc", "fc_norm", "norm_before_residual", "norm_output",
    )  # fmt: skip
    plain = {key: getattr(config, key) for key in keys}
    return {
        **plain,
        "architectures": ["LlamaForCausalLMEagle3"],
        "model_type": "llama",
        "num_hidden_layers": 1,
        "hidden_act": "silu",
        "num_aux_hidden_states": config.num_aux_layers,
        "eagle_aux_hidden_state_layer_ids": config.aux_layer_ids,
        "rope_parameters": config.rope_parameters,
        **changes,
    }


def plain_tensors(drafter: Drafter, vocab: VocabMap) -> dict[str, Tensor]:
    weights = {name: each.detach().clone() for name, each in drafter.state_dict().items()}
    return {**weights, "d2t": vocab.d2t, "t2d": vocab.t2d}


def write_folder(directory: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "config.json").write_text(json.dumps(config))
    save_file({name: each.contiguous() for name, each in tensors.items()}, directory / "model.safetensors")
    return directory
