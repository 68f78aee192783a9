"""Small stored sequences and their shards, made by hand."""

from __future__ import annotations

from pathlib import Path

import torch

from eyas.extract.agreement import Agreement
from eyas.extract.facts import Facts
from eyas.extract.parts import Parts
from eyas.extract.rules import Rules
from eyas.sampling import GREEDY
from eyas.shards import SequenceStates, StoreMeta, to_stored
from eyas.states import StoredStates

LAYERS, HIDDEN = 2, 4


def meta(dtype: str = "float32") -> StoreMeta:
    return StoreMeta(
        target_digest="t", target_name="tiny", target_revision=None, source_digest="s", dtype=dtype,
        aux_layer_ids=[2, 4], backend="transformers", versions={},
    )  # fmt: skip


def states(name: str, tokens: int = 5, seed: int = 0) -> SequenceStates:
    random = torch.Generator().manual_seed(seed)
    return SequenceStates(
        sequence_id=name,
        token_ids=torch.arange(tokens, dtype=torch.int32),
        kinds=torch.tensor([0] + [3] * (tokens - 1), dtype=torch.uint8),
        weight=1.0,
        aux=torch.randn(tokens, LAYERS, HIDDEN, generator=random),
        label_positions=torch.arange(1, tokens - 1, dtype=torch.int32),
        last=torch.randn(tokens - 2, HIDDEN, generator=random),
        argmax=torch.arange(2, tokens, dtype=torch.int32),
        logsumexp=torch.randn(tokens - 2, generator=random),
    )


def stored(*names: str) -> list[StoredStates]:
    return [to_stored(states(name, seed=number), meta()) for number, name in enumerate(names)]


def agreement() -> Agreement:
    return Agreement(Rules(GREEDY, "float32", 1.0, 6.0), {"x": 100})


def facts(largest: float = 1.0) -> Facts:
    return Facts(agreement(), [largest, 2.0, 0.5], [4, 4, 1], [0.0, 0.04, 0.01], [0.0, 0.02, 0.01])


def parts_in(folder: Path) -> Parts:
    return Parts(folder, meta())
