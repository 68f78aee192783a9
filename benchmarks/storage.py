"""Storage types of hidden states on a run's own states: size, error, speed, and the acceptance of its drafter.

    PYTHONPATH=src python benchmarks/storage.py

Reads data/hidden/eval (float32), models/target and models/drafter of a finished run in the working directory.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch

from eyas import paths
from eyas.drafter.checkpoint import load_drafter
from eyas.drafter.model import Drafter
from eyas.drafter.vocab import VocabMap
from eyas.evaluate.replay import replay
from eyas.fidelity import StorageError, storage_error
from eyas.shards import HiddenStore, SequenceStates, ShardWriter
from eyas.storage import STORAGE_TYPES
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile

DRAFT_TOKENS = 3
SHARD_BYTES = 64 << 20


def rewritten(
    exact: Sequence[SequenceStates], store: HiddenStore, directory: Path, dtype: str
) -> HiddenStore:
    """The same states in another storage type."""
    writer = ShardWriter(directory, replace(store.meta, dtype=dtype), SHARD_BYTES)
    for states in exact:
        writer.add(states)
    writer.close()
    return HiddenStore(directory)


def read_rate(store: HiddenStore) -> float:
    """Tokens per second of reading and decoding; the second pass, which finds its files in memory."""
    for _ in range(2):
        started = time.perf_counter()
        for states in store:
            states.aux.sum(), states.last.sum()
    return sum(store.lengths) / (time.perf_counter() - started)


def errors(found: dict[str, StorageError]) -> str:
    return " ".join(
        f"{100 * (error.mean or 0):.2f}/{100 * (error.worst or 0):.2f}" for error in found.values()
    )


def acceptance(drafter: Drafter, vocab: VocabMap, store: HiddenStore, embedding: torch.Tensor) -> float:
    rounds = replay(drafter, vocab, store, embedding, DRAFT_TOKENS).rounds.filter(draft_tokens=DRAFT_TOKENS)
    accepted = rounds["accepted"].to_numpy()
    return 1 + float(accepted.mean())


def main() -> None:
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    drafter, vocab = load_drafter(paths.DRAFTER)
    embedding = TargetHead.read(paths.TARGET, profile, "float32").embedding
    store = HiddenStore(paths.hidden("eval"))
    exact = list(store)
    tokens = sum(store.lengths)
    share = sum(store.label_counts) / tokens
    print(f"{len(store)} sequences, {tokens} tokens, {100 * share:.0f} % labelled, H = {profile.hidden_size}")
    print(
        "type       bytes/token  of 4H*2  error, mean/worst in %, by layer  tokens/s read  acceptance length"
    )
    for dtype in STORAGE_TYPES:
        with tempfile.TemporaryDirectory() as scratch:
            kept = rewritten(exact, store, Path(scratch) / "store", dtype)
            found = storage_error(exact, kept, store.meta.aux_layer_ids)
            length = acceptance(drafter, vocab, kept, embedding)
            size = kept.bytes / tokens
            print(
                f"{dtype:10} {size:8.0f} {size / (8 * profile.hidden_size):10.3f}   {errors(found)}"
                f"  {read_rate(kept):12.0f}  {length:.4f}"
            )


if __name__ == "__main__":
    main()
