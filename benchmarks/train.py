"""Training speed and memory of the drafter core beside a plain trainer (train_reference.py), in the same run.

A measurement is a whole training step without the optimiser, which is the same for both: collate, forward, backward.
Both see the same sequences; runs alternate, and the fastest of each counts: what else the machine does only adds.
Tokens are those of the sequences, prompt included, padding not.

    PYTHONPATH=src:. python benchmarks/train.py                        all tables
    PYTHONPATH=src:. python benchmarks/train.py --only default share   some of: default, share, length, steps, memory, parts
    PYTHONPATH=src:. python benchmarks/train.py --full-head            the reference uses the target's whole head, as EAGLE does
    PYTHONPATH=src:. python benchmarks/train.py --torch-products       ours without eyas.gemm: what the algorithm alone is worth

`growth` is a row's time per token and its memory over those of the table's first row. `parts` is what a whole step of ours
spends where, optimisers included.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.train_reference import PlainDrafter, PlainTrainer, padded
from benchmarks.train_work import AUX, BATCH, DRAFT_VOCAB, HIDDEN, VOCAB, Shape, Work, default_works, describe
from torch import Tensor

from eyas import gemm
from eyas.drafter.batch import DraftBatch, pack
from eyas.drafter.config import DrafterConfig
from eyas.drafter.loss import DraftTargets, score_steps, total_loss
from eyas.drafter.model import Drafter
from eyas.drafter.objective import Objective
from eyas.drafter.vocab import VocabMap
from eyas.train.optim import build_optimizers
from eyas.train.params import TrainParams

STEPS, ROUNDS = 3, 3
REFERENCE_LONGEST = 2048
"""The reference's score matrices of longer sequences take tens of GB."""


class Trainers:
    """Ours and the reference: a drafter of the default run's size each, random weights."""

    def __init__(self, *, full_head: bool) -> None:
        torch.manual_seed(0)
        config = DrafterConfig(
            hidden_size=HIDDEN,
            target_hidden_size=HIDDEN,
            num_aux_layers=AUX,
            intermediate_size=1536,
            num_attention_heads=9,
            num_key_value_heads=3,
            head_dim=64,
            vocab_size=VOCAB,
            draft_vocab_size=DRAFT_VOCAB,
            rms_norm_eps=1e-5,
            rope_theta=1e5,
            rope_scaling=None,
            max_position_embeddings=8192,
            aux_layer_ids=[2, 15, 27],
        )
        self.drafter = Drafter(config)
        self.vocab = VocabMap.of_ids(torch.arange(DRAFT_VOCAB), VOCAB)
        self.embedding = torch.randn(VOCAB, HIDDEN) * 0.1
        self.head = torch.randn(VOCAB, HIDDEN) * 0.1
        rows = self.head if full_head else self.head[:DRAFT_VOCAB]
        self.plain = PlainTrainer(PlainDrafter(config), self.embedding, rows, torch.arange(DRAFT_VOCAB))

    def ours(self, work: Work, steps: int) -> None:
        """One training step."""
        self.loss(pack(work.sequences, steps)).backward()
        self.drafter.zero_grad()

    def loss(self, batch: DraftBatch) -> Tensor:
        """Of ours, scalar."""
        rows = self.head[:DRAFT_VOCAB]
        targets = DraftTargets.of(batch.last, rows, batch.argmax, self.vocab, batch.logsumexp)
        scores = score_steps(self.drafter, batch, targets, self.embedding, Objective())
        return total_loss(scores, torch.stack([score.weight_sum for score in scores]), Objective())

    def reference(self, work: Work, steps: int) -> None:
        """One training step."""
        self.plain.loss(padded(work.sequences, work.last), steps).backward()
        self.plain.drafter.zero_grad()


def seconds_of(step: Callable[[], None]) -> float:
    """Run once. With one thread CPU seconds, which other programs do not lengthen much."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    started = clock()
    step()
    return clock() - started


def peak_bytes_of(step: Callable[[], None]) -> int:
    """Run once; memory that it took beyond what the process had before."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # peak memory starts again from here
    before = _status_bytes("VmRSS")
    step()
    return _status_bytes("VmHWM") - before


def _status_bytes(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(name + ":"))) * 1024


class Table:
    """Prints measurements of both, alternating, their ratio, and how ours grows from the first row on."""

    def __init__(self, trainers: Trainers, rounds: int) -> None:
        self.trainers = trainers
        self.rounds = rounds
        self.first: tuple[float, float] | None = None
        """Of the table's first row: seconds per token and MiB of ours."""

    def head(self, title: str) -> None:
        """Begin a table."""
        print(f"\n{title}")
        self.first = None

    def row(self, name: str, works: Sequence[Work], steps: int) -> None:
        """Time all `works`, one training step each; the fastest round of each."""
        longest = max(len(states.token_ids) for work in works for states in work.sequences)
        runs = [self.trainers.ours, self.trainers.reference][: 1 + (longest <= REFERENCE_LONGEST)]
        peaks = [peak_bytes_of(partial(run, works[0], steps)) / 2**20 for run in runs]  # warm-up too
        seconds = [
            [sum(seconds_of(partial(run, work, steps)) for work in works) for run in runs]
            for _ in range(self.rounds)
        ]  # [rounds][runs]
        tokens = sum(work.tokens for work in works)
        best = [min(times) for times in zip(*seconds, strict=True)]
        cells = [
            f"{tokens / own:7.0f} tokens/s {peak:6.0f} MiB" for own, peak in zip(best, peaks, strict=True)
        ]
        ratio = f"ratio {best[1] / best[0]:5.2f}" if len(runs) == 2 else " " * 11
        self.first = self.first or (best[0] / tokens, peaks[0])
        growth = f"growth {best[0] / tokens / self.first[0]:5.2f} {peaks[0] / self.first[1]:5.2f}"
        print(
            f"{name:46s} {cells[0]}   {cells[1] if len(runs) == 2 else ' ' * 28}   {ratio}   {growth}",
            flush=True,
        )


def show_default(table: Table) -> None:
    works = default_works(4)
    table.head(f"default run's lengths, batches of {BATCH}, {STEPS} draft steps: {describe(works)}")
    table.row("default", works, STEPS)


def show_share(table: Table) -> None:
    table.head(f"by prompt share, default run's lengths, {STEPS} draft steps")
    for share in (0.0, 0.5, 0.8):
        works = default_works(3, share)
        table.row(f"{share:.0%} asked: {describe(works)}", works, STEPS)


def show_length(table: Table) -> None:
    table.head(f"by length, 50 % prompt, {STEPS} draft steps, no padding, about 2048 tokens or one sequence")
    for length in (256, 512, 1024, 2048, 4096, 8192):
        work = Work.of([Shape.of_share(length, 0.5)] * max(1, 2048 // length))
        table.row(f"{len(work.sequences)} x {length}", [work], STEPS)


def show_steps(table: Table) -> None:
    table.head("by draft steps, 50 % prompt, 4 x 256 tokens, no padding")
    work = Work.of([Shape.of_share(256, 0.5)] * 4)
    for steps in (1, 3, 7):
        table.row(f"{steps} steps", [work], steps)


def show_memory(table: Table) -> None:
    """Peak memory of one generated sequence, and how well a line fits it."""
    print(f"\nmemory of ours by length, no prompt, {STEPS} draft steps")
    lengths = (1024, 2048, 3072, 4096, 6144, 8192)
    works = [Work.of([Shape.of_share(length, 0.0)]) for length in lengths]
    peaks = np.array([peak_bytes_of(partial(table.trainers.ours, work, STEPS)) / 2**20 for work in works])
    slope, start = np.polyfit(lengths, peaks, 1)
    rest = peaks - (slope * np.array(lengths) + start)
    fit = 1 - float((rest**2).sum() / ((peaks - peaks.mean()) ** 2).sum())
    for length, peak, off in zip(lengths, peaks, rest, strict=True):
        print(f"{length:6d} tokens {peak:7.0f} MiB, off the line by {off:+6.0f} MiB")
    print(f"line: {slope * 1024:.0f} KiB a token + {start:.0f} MiB, R^2 {fit:.4f}")


def show_parts(table: Table) -> None:
    """CPU milliseconds of all threads that a whole step spends in its parts, as the default run takes it."""
    trainers, works = table.trainers, default_works(4)
    params = TrainParams(
        STEPS, 1, 1024, "muon", 1e-3, "constant", warmup_share=0.0, weight_decay=0.0, betas=[0.9, 0.999],
        clip_norm=1.0, freeze_lm_head=False, seed=0,
    )  # fmt: skip
    optimizers = build_optimizers(trainers.drafter, params)
    spent: dict[str, float] = {}
    for count, work in enumerate([works[0], *works * table.rounds]):
        if count == 1:
            spent.clear()  # the first one warms up
        _step_by_parts(trainers, work, optimizers, spent)
    total, tokens = sum(spent.values()), sum(work.tokens for work in works) * table.rounds
    print(f"\nparts of a step, default run's lengths: {tokens / total:.0f} tokens per CPU second")
    for name, seconds in spent.items():
        print(f"{name:20s} {seconds / table.rounds / len(works) * 1e3:7.1f} ms {seconds / total:6.1%}")


def _step_by_parts(
    trainers: Trainers, work: Work, optimizers: Sequence[torch.optim.Optimizer], spent: dict[str, float]
) -> None:
    def timed(name: str, run: Callable[[], Any]) -> Any:
        started = time.process_time()
        result = run()
        spent[name] = spent.get(name, 0.0) + time.process_time() - started
        return result

    batch = timed("pack", lambda: pack(work.sequences, STEPS))
    loss = timed("forward", lambda: trainers.loss(batch))
    timed("backward", loss.backward)
    timed("clip", lambda: torch.nn.utils.clip_grad_norm_(trainers.drafter.parameters(), 1.0))
    for optimizer in optimizers:
        timed(type(optimizer).__name__, optimizer.step)
    trainers.drafter.zero_grad()


SHOWS = {
    "default": show_default,
    "share": show_share,
    "length": show_length,
    "steps": show_steps,
    "memory": show_memory,
    "parts": show_parts,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=SHOWS, default=list(SHOWS))
    parser.add_argument("--full-head", action="store_true")
    parser.add_argument("--torch-products", action="store_true")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if arguments.torch_products:
        gemm._available = lambda: False  # type: ignore[assignment]  # noqa: SLF001
    table = Table(Trainers(full_head=arguments.full_head), arguments.rounds)
    print(f"{torch.get_num_threads()} threads, {os.cpu_count()} cores, torch {torch.__version__}")
    for name, show in SHOWS.items():
        if name in arguments.only:
            show(table)


if __name__ == "__main__":
    main()
