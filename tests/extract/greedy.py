"""Sequences that a tiny target answered, token by token with the whole model."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import torch

from eyas.extract.backend import TransformersBackend
from eyas.extract.params import ExtractParams
from eyas.extract.rules import Rules
from eyas.extract.run import Extractor
from eyas.extract.table import Sequences
from eyas.sampling import GREEDY, Sampling
from eyas.shards import StoreMeta
from eyas.target.model import TargetHead, load_target
from tests.extract.drawing import answered
from tests.tiny_target import profile_of

PROMPTS = [5, 12, 3, 9, 20, 4]
ANSWERS = [7, 30, 1, 16, 11, 25]


@torch.inference_mode()
def greedy_sequences(folder: Path) -> Sequences:
    """Six sequences of two datasets."""
    model = load_target(folder, "float32")
    random = torch.Generator().manual_seed(5)
    rows = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        ids = torch.randint(0, 290, (prompt,), generator=random).tolist()
        for _ in range(answer):
            ids.append(int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
        rows.append(ids)
    return answered(rows, PROMPTS)


def write_table(sequences: Sequences, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    count = range(len(sequences))
    pl.DataFrame(
        {
            "sequence_id": list(sequences.sequence_ids),
            "dataset": list(sequences.datasets),
            "token_ids": pl.Series([sequences.ids(i) for i in count], dtype=pl.List(pl.Int32)),
            "kinds": pl.Series([sequences.kinds[i].tolist() for i in count], dtype=pl.List(pl.UInt8)),
            "weight": pl.Series(sequences.weights, dtype=pl.Float32),
        }
    ).write_parquet(path)


def make_extractor(
    folder: Path,
    *,
    batch_tokens: int = 90,
    shard_bytes: int = 1 << 20,
    min_agreement: float = 1.0,
    dtype: str = "float32",
    sampling: Sampling = GREEDY,
) -> Extractor:
    profile = profile_of(folder)
    meta = StoreMeta(
        target_digest=profile.digest,
        target_name=profile.name,
        target_revision=profile.revision,
        source_digest="sequences",
        dtype=dtype,
        aux_layer_ids=profile.aux_layer_ids,
        backend="transformers",
        versions={"torch": "x"},
    )
    params = ExtractParams(dtype=dtype, batch_tokens=batch_tokens, min_agreement=min_agreement)
    object.__setattr__(params, "shard_bytes", shard_bytes)  # smaller than users may set
    return Extractor(
        backend=TransformersBackend(
            load_target(folder, "float32"), profile.aux_layer_ids, torch.device("cpu")
        ),
        head=TargetHead.read(folder, profile, "float32"),
        meta=meta,
        params=params,
        rules=Rules(sampling, "float32", min_agreement, params.max_sampling_z),
    )
