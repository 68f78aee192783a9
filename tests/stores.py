"""Small hidden-state stores."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from eyas.shards import SequenceStates, ShardWriter, StoreMeta
from eyas.states import TENSORS

LAYERS, HIDDEN = 3, 4
META = StoreMeta(
    target_digest="d1",
    target_name="tiny",
    target_revision="r1",
    source_digest="s1",
    dtype="float32",
    aux_layer_ids=[2, 4, 5],
    backend="transformers",
    versions={"torch": "2", "transformers": "5"},
)


def make_states(name: str, mask: list[bool], seed: int = 0, hidden_size: int = HIDDEN) -> SequenceStates:
    random = torch.Generator().manual_seed(seed)
    tokens = len(mask)
    positions = [q for q in range(tokens - 1) if mask[q] and mask[q + 1]]
    return SequenceStates(
        sequence_id=name,
        token_ids=torch.randint(0, 1000, (tokens,), generator=random, dtype=torch.int32),
        kinds=torch.tensor(mask, dtype=torch.uint8) * 3,
        weight=1.0 + seed / 2,
        aux=torch.randn(tokens, LAYERS, hidden_size, generator=random),
        label_positions=torch.tensor(positions, dtype=torch.int32),
        last=torch.randn(len(positions), hidden_size, generator=random),
        argmax=torch.randint(0, 1000, (len(positions),), generator=random, dtype=torch.int32),
        logsumexp=torch.randn(len(positions), generator=random),
    )


def write_store(
    directory: Path, sequences: list[SequenceStates], shard_bytes: int = 500, meta: StoreMeta = META
) -> Path:
    writer = ShardWriter(directory, meta, shard_bytes)
    for states in sequences:
        writer.add(states)
    writer.close()
    return directory


def assert_equal(ours: SequenceStates, theirs: SequenceStates) -> None:
    assert (ours.sequence_id, ours.weight) == (theirs.sequence_id, theirs.weight)
    for name in TENSORS:
        mine, other = getattr(ours, name), getattr(theirs, name)
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other), name


def flip(path: Path, offset: int, bit: int = 0) -> None:
    content = bytearray(path.read_bytes())
    content[offset] ^= 1 << bit
    path.write_bytes(content)


def edit_manifest(directory: Path, **changes: Callable[[Any], Any]) -> None:
    """Change top-level entries of a manifest."""
    path = directory / "manifest.json"
    values = json.loads(path.read_text())
    for key, change in changes.items():
        values[key] = change(values[key])
    path.write_text(json.dumps(values))
