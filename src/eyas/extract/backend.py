"""The target's forward pass with transformers, in this process.

Letters in shape comments: B batch, T tokens, H hidden size, A aux layers, V target vocab, G generated tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from eyas.target.model import TargetHead, TargetStates, capture

Capture = Callable[[Any, Tensor, Tensor | None, Sequence[int]], TargetStates]

LOGITS_BYTES = 64 << 20
"""Float32 logits held at a time."""


@dataclass(frozen=True)
class Predictions:
    """What the head says at some positions, computed in float32."""

    argmax: Tensor
    """int64 [G]"""
    logsumexp: Tensor
    """float32 [G]"""
    margin: Tensor
    """float32 [G]: how far the logit of the token that really follows lies below the largest; 0 where it is that."""

    def cpu(self) -> Predictions:
        """The same in main memory."""
        return Predictions(self.argmax.cpu(), self.logsumexp.cpu(), self.margin.cpu())

    def split(self, counts: Sequence[int]) -> list[Predictions]:
        """Cut into runs of these lengths."""
        parts = (values.split(list(counts)) for values in (self.argmax, self.logsumexp, self.margin))
        return [Predictions(*part) for part in zip(*parts, strict=True)]


@dataclass(frozen=True)
class TransformersBackend:
    """Gives the states of token sequences, each without padding."""

    model: Any
    aux_layer_ids: Sequence[int]
    device: torch.device
    capture: Capture = capture

    @torch.inference_mode()
    def states(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        """Aux [T, A, H] and last [T, H] of each sequence, computed as one batch.

        Padding is on the right and no mask is passed: causal attention never lets a token see what follows it.
        """
        longest = max(map(len, sequences))
        ids = torch.zeros(len(sequences), longest, dtype=torch.long)  # [B, T]
        for row, tokens in enumerate(sequences):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        batch = self.capture(self.model, ids.to(self.device), None, self.aux_layer_ids)
        return [
            TargetStates(aux=batch.aux[row, : len(tokens)], last=batch.last[row, : len(tokens)])
            for row, tokens in enumerate(sequences)
        ]


@torch.inference_mode()
def predict(head: TargetHead, last: Tensor, following: Tensor) -> Predictions:
    """Apply the head to last states [G, H] in chunks, so that G x V logits are never held.

    Args:
        head: the target's.
        last: before the final norm.
        following: int64 [G], the tokens that really follow.
    """
    vocab_size = head.lm_head.shape[0]
    rows = max(1, LOGITS_BYTES // (4 * vocab_size))
    argmax, logsumexp, margin = [], [], []
    for part, tokens in zip(last.split(rows), following.split(rows), strict=True):
        logits = head.logits(part).float()  # [rows, V]
        top, index = logits.max(dim=-1)
        argmax.append(index)
        logsumexp.append(logits.logsumexp(dim=-1))
        margin.append(top - logits.gather(1, tokens[:, None]).squeeze(1))
    return Predictions(torch.cat(argmax), torch.cat(logsumexp), torch.cat(margin))
