"""Training speed by prompt share: anchors only, against every position through every draft step, in the same run.

The baseline is the same code with every position as an anchor, which is what a trainer pays that masks prompt positions
out of the loss after computing them. Both do the forward and backward pass of one batch; times alternate.

    python benchmarks/train.py
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass, replace

import torch

from eyas.drafter.batch import DraftBatch, pack
from eyas.drafter.config import DrafterConfig
from eyas.drafter.loss import DraftTargets, score_steps, total_loss
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.shards import SequenceStates, label_positions

HIDDEN, VOCAB, DRAFT_VOCAB, AUX = 576, 49152, 4096, 3
SEQUENCES, LENGTH, STEPS, ROUNDS = 8, 256, 3, 3


@dataclass(frozen=True)
class Setup:
    """A drafter of the default run's size, random weights."""

    drafter: Drafter
    vocab: VocabMap
    embedding: torch.Tensor
    head_rows: torch.Tensor

    @classmethod
    def make(cls) -> Setup:
        torch.manual_seed(0)
        config = DrafterConfig(
            hidden_size=HIDDEN,
            target_hidden_size=HIDDEN,
            num_aux_layers=AUX,
            intermediate_size=1536,
            num_attention_heads=9,
            num_key_value_heads=3,
            head_dim=64,
            vocab_size=VOCAB,
            draft_vocab_size=DRAFT_VOCAB,
            rms_norm_eps=1e-5,
            rope_theta=1e5,
            rope_scaling=None,
            max_position_embeddings=2048,
            aux_layer_ids=[2, 15, 27],
        )
        return cls(
            drafter=Drafter(config),
            vocab=VocabMap.of_ids(torch.arange(DRAFT_VOCAB), VOCAB),
            embedding=torch.randn(VOCAB, HIDDEN),
            head_rows=torch.randn(DRAFT_VOCAB, HIDDEN),
        )

    def step_s(self, batch: DraftBatch) -> float:
        """Seconds of one forward and backward pass."""
        started = time.perf_counter()
        targets = DraftTargets.of(batch.last, self.head_rows, batch.argmax, self.vocab)
        scores = score_steps(self.drafter, batch, targets, self.embedding, STEPS, mask_out_of_vocab=False)
        total_loss(scores, 0.8).backward()
        self.drafter.zero_grad()
        return time.perf_counter() - started


def sequence(prompt_share: float) -> SequenceStates:
    mask = torch.arange(LENGTH) >= round(LENGTH * prompt_share)
    labels = label_positions(mask)
    return SequenceStates(
        sequence_id="benchmark",
        token_ids=torch.randint(0, VOCAB, (LENGTH,), dtype=torch.int32),
        loss_mask=mask,
        aux=torch.randn(LENGTH, AUX, HIDDEN),
        label_positions=labels,
        last=torch.randn(len(labels), HIDDEN),
        argmax=torch.randint(0, DRAFT_VOCAB, (len(labels),), dtype=torch.int32),
        logsumexp=torch.zeros(len(labels)),
    )


def everywhere(states: SequenceStates) -> SequenceStates:
    """The same sequence with every position generated."""
    mask = torch.ones_like(states.loss_mask)
    labels = label_positions(mask)
    return replace(
        states,
        loss_mask=mask,
        label_positions=labels,
        last=torch.randn(len(labels), HIDDEN),
        argmax=torch.randint(0, DRAFT_VOCAB, (len(labels),), dtype=torch.int32),
        logsumexp=torch.zeros(len(labels)),
    )


def main() -> None:
    setup = Setup.make()
    tokens = SEQUENCES * LENGTH
    print(f"{SEQUENCES} sequences of {LENGTH} tokens, {STEPS} draft steps, {torch.get_num_threads()} threads")
    for share in (0.0, 0.5, 0.8):
        rows = [sequence(share) for _ in range(SEQUENCES)]
        ours, baseline = pack(rows, STEPS), pack([everywhere(row) for row in rows], STEPS)
        setup.step_s(ours)  # warm-up
        pairs = [(setup.step_s(ours), setup.step_s(baseline)) for _ in range(ROUNDS)]
        ratio = statistics.median(other / own for own, other in pairs)
        own, other = (tokens / statistics.median(times) for times in zip(*pairs, strict=True))
        print(f"prompt share {share:.0%}: {own:6.0f} tokens/s, baseline {other:6.0f}, ratio {ratio:.2f}")


if __name__ == "__main__":
    main()
