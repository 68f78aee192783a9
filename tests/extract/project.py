"""A repository before the extract stage: a tiny target, its profile, sequence tables and params."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import yaml

from eyas.extract.table import Sequences
from tests.extract.drawing import answered
from tests.extract.greedy import write_table
from tests.tiny_target import profile_of, write_target

ROOT = Path(__file__).parents[2]
TOKENS_PER_SHARD = 2000
"""About what the smallest shard of 1 MiB holds of the tiny target's states."""


def write_project(directory: Path, shards: dict[str, int], **extract: Any) -> dict[str, Sequences]:
    """Random sequences enough for about so many shards of the smallest size in each split.

    They are no answers of the target, so its gate is switched off unless `extract` says otherwise.
    """
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["extract"] |= {"min_agreement": 0.0, "shard_bytes": 1 << 20, "batch_tokens": 500, **extract}
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "params.yaml").write_text(yaml.safe_dump(params))
    profile_of(write_target(directory / "models/target")).write(directory / "models/profile.json")
    splits = {split: sequences_for(count, seed) for seed, (split, count) in enumerate(shards.items())}
    for split, sequences in splits.items():
        write_table(sequences, directory / "data/sequences" / f"{split}.parquet")
    return splits


def sequences_for(shards: int, seed: int = 0) -> Sequences:
    """Random sequences for about so many shards."""
    random = np.random.default_rng(seed)
    rows: list[list[int]] = []
    prompts: list[int] = []
    while sum(len(row) for row in rows) < shards * TOKENS_PER_SHARD:
        length = int(random.integers(20, 120))
        rows.append(random.integers(3, 290, length).tolist())
        prompts.append(length // 2)
    return answered(rows, prompts)


def store_bytes(directory: Path) -> dict[str, bytes]:
    """Every file of the stores and the report, by name."""
    files = [directory / "reports/extraction.json"]
    files += [path for path in sorted((directory / "data/hidden").rglob("*")) if path.is_file()]
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}
