"""Sequences that a tiny target answered greedily, token by token with the whole model."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import torch

from eyas.extract.backend import TransformersBackend
from eyas.extract.run import Extractor
from eyas.extract.table import Sequences
from eyas.shards import StoreMeta
from eyas.target.model import TargetHead, load_target
from tests.tiny_target import profile_of

PROMPTS = [5, 12, 3, 9, 20, 4]
ANSWERS = [7, 30, 1, 16, 11, 25]


@torch.inference_mode()
def greedy_sequences(folder: Path) -> Sequences:
    """Six sequences of two datasets."""
    model = load_target(folder, "float32")
    random = torch.Generator().manual_seed(5)
    rows, masks = [], []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        ids = torch.randint(0, 290, (prompt,), generator=random).tolist()
        for _ in range(answer):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        rows.append(ids)
        masks.append([False] * prompt + [True] * answer)
    names = [f"{'ab'[number % 2]}:{number}" for number in range(len(rows))]
    return Sequences(names, [name[0] for name in names], rows, masks)


def write_table(sequences: Sequences, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pl.DataFrame(
        {
            "sequence_id": sequences.sequence_ids,
            "dataset": sequences.datasets,
            "token_ids": pl.Series(sequences.token_ids, dtype=pl.List(pl.Int32)),
            "loss_mask": pl.Series(sequences.loss_masks, dtype=pl.List(pl.Boolean)),
        }
    ).write_parquet(path)


def make_extractor(
    folder: Path,
    *,
    batch_tokens: int = 90,
    shard_bytes: int = 1 << 20,
    min_agreement: float = 1.0,
    dtype: str = "float32",
) -> Extractor:
    profile = profile_of(folder)
    meta = StoreMeta(
        profile.digest, profile.name, dtype, profile.aux_layer_ids, "transformers", {"torch": "x"}
    )
    return Extractor(
        backend=TransformersBackend(
            load_target(folder, "float32"), profile.aux_layer_ids, torch.device("cpu")
        ),
        head=TargetHead.read(folder, profile, "float32"),
        meta=meta,
        batch_tokens=batch_tokens,
        shard_bytes=shard_bytes,
        min_agreement=min_agreement,
    )
