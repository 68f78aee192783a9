"""From the states of a sequence to what is stored of it: the labels, and how well the target predicts its own tokens.

Letters in shape comments: T tokens, H hidden size, A aux layers, G generated tokens, L labelled positions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from eyas.extract.predictions import Predictions, predict
from eyas.extract.table import Sequences
from eyas.sampling import Sampling
from eyas.states import SequenceStates, label_positions
from eyas.target.model import TargetHead, TargetStates
from eyas.tokenkinds import PROMPT


@dataclass(frozen=True)
class Generated:
    """The generated tokens of a sequence that have a token before them."""

    before: Tensor
    """int64 [G] positions whose distribution predicts a generated token."""
    following: Tensor
    """int64 [G] those tokens."""

    @classmethod
    def of(cls, tokens: Tensor, kinds: Tensor) -> Generated:
        """From token ids [T] and kinds [T]."""
        before = torch.nonzero(kinds[1:] != PROMPT).flatten()
        return cls(before, tokens[before + 1].long())


@dataclass(frozen=True)
class Columns:
    """What the table says of one sequence, as tensors."""

    tokens: Tensor
    """int32 [T]"""
    kinds: Tensor
    """uint8 [T]"""
    generated: Generated

    @classmethod
    def of(cls, sequences: Sequences, index: int) -> Columns:
        """Copies: the table's own arrays may be read-only."""
        tokens, kinds = torch.tensor(sequences.tokens[index]), torch.tensor(sequences.kinds[index])
        return cls(tokens, kinds, Generated.of(tokens, kinds))


def predict_generated(
    head: TargetHead, computed: Sequence[TargetStates], columns: Sequence[Columns], sampling: Sampling
) -> list[Predictions]:
    """What the head says where a generated token follows, for a whole batch at a time: its matrix is large."""
    device = head.lm_head.device
    generated = [each.generated for each in columns]
    last = [
        states.last[each.before.to(states.last.device)].to(device)
        for states, each in zip(computed, generated, strict=True)
    ]
    following = torch.cat([each.following for each in generated]).to(device)
    predicted = predict(head, torch.cat(last), following, sampling).cpu()
    return predicted.split([len(each.before) for each in generated])


def sequence_states(
    sequences: Sequences, index: int, columns: Columns, states: TargetStates, predicted: Predictions
) -> SequenceStates:
    """What is kept of a sequence: aux states everywhere, last states and predictions only where a label needs them."""
    generated = columns.kinds != PROMPT  # [T]
    positions = label_positions(generated)  # [L]
    labelled = generated[columns.generated.before]  # [G], L of them true
    return SequenceStates(
        sequence_id=sequences.sequence_ids[index],
        token_ids=columns.tokens,
        kinds=columns.kinds,
        weight=float(sequences.weights[index]),
        aux=states.aux,
        label_positions=positions,
        last=states.last[positions.to(states.last.device)],
        argmax=predicted.argmax[labelled],
        logsumexp=predicted.logsumexp[labelled],
    )
