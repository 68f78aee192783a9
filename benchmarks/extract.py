"""Extraction speed against the bare forward pass and against a padded loop that returns all layers, in the same run.

Reads the outputs of the default run (models/target, data/sequences/val.parquet); run `dvc repro extract` first.

    python benchmarks/extract.py
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from eyas import paths
from eyas.config import load_section
from eyas.extract.batches import plan_batches
from eyas.extract.params import ExtractParams
from eyas.extract.run import Extractor
from eyas.extract.table import Sequences
from eyas.target.spec import TargetProfile

ROUNDS = 3
PADDED_BATCH = 8


def padded(sequences: Sequences, batch: list[int]) -> torch.Tensor:
    """Token ids [B, T], zeros on the right."""
    rows = [torch.tensor(sequences.token_ids[index]) for index in batch]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def main() -> None:
    params = load_section("extract", ExtractParams)
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    sequences = Sequences.read(paths.sequences("val"), profile.vocab_size)
    extractor = Extractor.load(paths.TARGET, profile, params)
    model = extractor.backend.model
    tokens = sum(sequences.lengths)

    def bare() -> None:
        for batch in plan_batches(sequences.lengths, range(len(sequences)), params.batch_tokens):
            model(input_ids=padded(sequences, batch), use_cache=False)

    def all_layers() -> None:
        for start in range(0, len(sequences), PADDED_BATCH):
            batch = list(range(start, min(start + PADDED_BATCH, len(sequences))))
            ids = padded(sequences, batch)
            lengths = torch.tensor([sequences.lengths[index] for index in batch])
            mask = (torch.arange(ids.shape[1]) < lengths.unsqueeze(1)).long()
            model(input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True)

    def extract() -> None:
        with tempfile.TemporaryDirectory() as directory:
            extractor.extract("val", sequences, Path(directory) / "store")

    works: dict[str, Callable[[], None]] = {
        "extract": extract,
        "bare forward": bare,
        "padded loop": all_layers,
    }
    times: dict[str, list[float]] = {name: [] for name in works}
    with torch.inference_mode():
        bare()  # warm-up
        for _ in range(ROUNDS):
            for name, work in works.items():
                started = time.perf_counter()
                work()
                times[name].append(time.perf_counter() - started)
    print(f"{len(sequences)} sequences, {tokens} tokens, {torch.get_num_threads()} threads")
    for name, seconds in times.items():
        ratio = statistics.median(other / own for own, other in zip(times["extract"], seconds, strict=True))
        print(
            f"{name:14} {tokens / statistics.median(seconds):6.0f} tokens/s, extract is {ratio:.2f} times as fast"
        )


if __name__ == "__main__":
    main()
