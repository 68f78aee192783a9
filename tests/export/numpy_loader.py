"""The referee as a drafter that is run one pass at a time, the whole prefix again at each: the slow way, and sure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.referee.drafting import Answered, Drafting
from eyas.referee.folder import read_folder
from eyas.referee.rope import Rope
from eyas.referee.target import TargetSide

Array = NDArray[Any]
LAYERS = 8


@dataclass
class Step:
    logits: Array
    """[N, V], -inf outside the draft vocabulary."""
    fed_back: Array
    """[N, H], the hidden states of the next draft step."""


class NumpyDrafter:
    def __init__(self, folder: Path, target_embedding: Array, engine: str = "vllm") -> None:
        vocab, hidden = target_embedding.shape
        table = target_embedding.astype(np.float32)
        target = TargetSide(LAYERS, hidden, vocab, 512, Rope(5000.0), "float32", table, table)
        self.reading = read_folder(folder, target, engine)

    def fuse(self, aux: Array) -> Array:
        """[N, A * H] -> [N, H]."""
        layers = aux.reshape(len(aux), self.reading.shape.aux_layers, -1)
        return self._pass(np.zeros(1, np.int64), np.zeros((1, self.reading.shape.hidden_size))).fused(layers)

    def run(self, token_ids: Array, features: Array) -> Step:
        """One causal pass over slots 0..N-1, at positions 0..N-1: every slot sees itself and those before it."""
        done = self._pass(token_ids, features)
        logits = np.full((len(token_ids), self.reading.shape.vocab_size), -np.inf)
        logits[:, self.reading.target_ids] = done.logits
        return Step(logits=logits, fed_back=done.fed_back)

    def _pass(self, token_ids: Array, features: Array) -> Drafting:
        count = len(token_ids)
        tokens = np.concatenate([[0], token_ids, [0]]).astype(
            np.int64
        )  # slot i reads token i + 1; one slot more
        nothing = np.zeros((count + 2, 1, 1), np.float32)
        answer = Answered("", tokens, 1, nothing, tokens)
        return Drafting(self.reading, [answer], np.pad(features.astype(np.float32), ((0, 1), (0, 0))))
