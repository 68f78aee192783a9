"""A target of a few thousand weights and stores of a small language in which each token decides the next one.

The states are made up, not computed by the target, but they fit its head: the head's most likely token behind a position is
the token that follows. So a drafter can learn everything, in seconds.
"""

from __future__ import annotations

import dataclasses
import warnings
from pathlib import Path

import torch

from eyas.compute import ComputeParams
from eyas.drafter.objective import Objective
from eyas.drafter.vocab import VocabMap
from eyas.shards import HiddenStore, SequenceStates, ShardWriter, StoreMeta, label_positions
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile
from eyas.tokenkinds import ANSWER, PROMPT
from eyas.train.fit import FitInputs, FitResult, fit
from eyas.train.params import TrainParams
from tests.tiny_target import profile_of

PARAMS = TrainParams(
    ttt_steps=2,
    epochs=2,
    batch_tokens=64,
    optimizer="adamw",
    lr=1e-3,
    schedule="cosine",
    warmup_share=0.1,
    weight_decay=0.0,
    betas=[0.9, 0.95],
    clip_norm=0.5,
    freeze_lm_head=False,
    seed=0,
    objective=Objective(step_decay=0.8, mask_out_of_vocab=True),
)
COMPUTE = ComputeParams(accelerator="cpu", devices=1)
AUX_LAYERS = 3


@dataclasses.dataclass(frozen=True)
class Language:
    """Which token follows which, and the states of each."""

    head: TargetHead
    last: torch.Tensor
    """[V, H], before the final norm, by token."""
    following: torch.Tensor
    """int64 [V]."""

    @classmethod
    def of(cls, head: TargetHead) -> Language:
        generator = torch.Generator().manual_seed(3)
        last = torch.randn(head.embedding.shape, generator=generator)
        return cls(head, last, head.logits(last).argmax(dim=-1))

    def sequence(self, name: str, prompt: int, answer: int, seed: int, weight: float = 1.0) -> SequenceStates:
        """Random prompt tokens, then what follows."""
        generator = torch.Generator().manual_seed(seed)
        ids = torch.randint(0, len(self.following), (prompt,), generator=generator).tolist()
        for _ in range(answer):
            ids.append(int(self.following[ids[-1]]))
        tokens = torch.tensor(ids, dtype=torch.int32)
        kinds = torch.tensor([PROMPT] * prompt + [ANSWER] * answer, dtype=torch.uint8)
        labels = label_positions(kinds != PROMPT)
        logits = self.head.logits(self.last[tokens[labels.long()].long()])
        mixed = self.last.roll(1, dims=1)
        return SequenceStates(
            sequence_id=name,
            token_ids=tokens,
            kinds=kinds,
            weight=weight,
            aux=torch.stack([self.last, mixed, -mixed], dim=1)[tokens.long()],
            label_positions=labels,
            last=self.last[tokens[labels.long()].long()],
            argmax=logits.argmax(dim=-1).int(),
            logsumexp=logits.logsumexp(dim=-1),
        )


def write_store(directory: Path, profile: TargetProfile, sequences: list[SequenceStates]) -> HiddenStore:
    meta = StoreMeta(
        target_digest=profile.digest,
        target_name=profile.name,
        target_revision=None,
        source_digest="x",
        dtype="float32",
        aux_layer_ids=profile.aux_layer_ids,
        backend="none",
        versions={},
    )
    writer = ShardWriter(directory, meta, 1 << 17)
    for states in sequences:
        writer.add(states)
    writer.close()
    return HiddenStore(directory)


def make_inputs(folder: Path, hidden: Path, *, train: int = 24, val: int = 8) -> FitInputs:
    """Everything that training reads, for a target of tests.tiny_target; the stores go below `hidden`."""
    profile = profile_of(folder)
    head = TargetHead.read(folder, profile, "float32")
    language = Language.of(head)
    stores = {}
    for split, count, seed in (("train", train, 0), ("val", val, 1000)):
        rows = [
            language.sequence(f"{split}:{number}", 2 + number % 5, 3 + (7 * number) % 23, seed + number)
            for number in range(count)
        ]
        stores[split] = write_store(hidden / split, profile, rows)
    used = {int(token) for store in stores.values() for states in store for token in states.token_ids}
    vocab = VocabMap.of_ids(torch.tensor(sorted(used)), profile.vocab_size)
    return FitInputs(profile=profile, vocab=vocab, head=head, **stores)


def train(
    inputs: FitInputs, params: TrainParams, journals: Path, compute: ComputeParams = COMPUTE
) -> FitResult:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third parties warn about their own settings
        result = fit(inputs, params, compute, journals)
    assert result is not None
    result.journal.close()
    return result
