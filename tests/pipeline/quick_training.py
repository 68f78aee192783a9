"""Drafters for tests, trained for a minute: on few sequences, with a plain loss."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn import functional

from eyas.drafter.batch import pack
from eyas.drafter.config import DrafterConfig
from eyas.drafter.model import Drafter
from eyas.drafter.unroll import unroll
from eyas.drafter.vocab import VocabMap
from eyas.shards import SequenceStates

TOKENS_PER_STEP = 1024


def new_drafter(config: DrafterConfig, vocab: VocabMap, head: Tensor) -> Drafter:
    """As the first step of a training finds it: the head starts as the target's rows [V, H]."""
    torch.manual_seed(0)
    drafter = Drafter(config)
    with torch.no_grad():
        drafter.lm_head.weight.copy_(head[vocab.draft_ids])
    return drafter


def train(
    drafter: Drafter,
    vocab: VocabMap,
    sequences: Sequence[SequenceStates],
    embedding: Tensor,
    *,
    steps: int,
    draft_steps: int,
    lr: float,
) -> Drafter:
    """So many steps of AdamW, cross-entropy with the target's most likely token, rate falling to zero."""
    optimizer = torch.optim.AdamW(drafter.parameters(), lr=lr)
    place = 0
    for number in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = lr * (1 - number / steps)
        batch_sequences: list[SequenceStates] = []
        while sum(len(each.token_ids) for each in batch_sequences) < TOKENS_PER_STEP:
            batch_sequences.append(sequences[place % len(sequences)])
            place += 1
        batch = pack(batch_sequences, draft_steps)
        labels = vocab.to_draft(batch.argmax)[batch.step_labels]  # [P, S]
        losses = []
        for step, output in enumerate(unroll(drafter, batch, embedding, draft_steps)):
            rows = batch.step_valid[:, step] & (labels[:, step] >= 0)
            losses.append(functional.cross_entropy(drafter.logits(output[rows]), labels[rows, step]))
        optimizer.zero_grad()
        torch.stack(losses).sum().backward()
        torch.nn.utils.clip_grad_norm_(drafter.parameters(), 1.0)
        optimizer.step()
    return drafter.eval()
