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
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.train_reference import PlainDrafter, PlainTrainer, padded
from torch import Tensor

from eyas import gemm
from eyas.drafter.batch import DraftBatch, pack
from eyas.drafter.config import DrafterConfig
from eyas.drafter.loss import DraftTargets, score_steps, total_loss
from eyas.drafter.model import Drafter
from eyas.drafter.objective import Objective
from eyas.drafter.vocab import VocabMap
from eyas.shards import SequenceStates, label_positions
from eyas.tokenkinds import ANSWER
from eyas.train.optim import build_optimizers
from eyas.train.params import TrainParams

HIDDEN, VOCAB, DRAFT_VOCAB, AUX = 576, 49152, 4096, 3
BATCH, STEPS, ROUNDS = 8, 3, 3
REFERENCE_LONGEST = 2048
"""The reference's score matrices of longer sequences take tens of GB."""
DEFAULT_LENGTHS = (
    (50, 3), (55, 6), (63, 7), (65, 24), (70, 9), (73, 2), (74, 21), (78, 14), (81, 24), (86, 13), (90, 11), (92, 17),
    (95, 46), (98, 31), (101, 54), (106, 55), (111, 33), (118, 53), (121, 55), (123, 72), (129, 78), (133, 43),
    (137, 13), (142, 18), (150, 90), (157, 66), (167, 59), (179, 140), (190, 97), (197, 159), (199, 159), (201, 159),
    (201, 159), (202, 159), (203, 159), (204, 159), (205, 159), (207, 159), (210, 155), (210, 159), (211, 159),
    (214, 159), (218, 159), (225, 159), (234, 159), (254, 159), (290, 159), (303, 159),
)  # fmt: skip
"""(tokens, labelled positions) of sequences spread evenly over the default run's training set, sorted by tokens."""


@dataclass(frozen=True)
class Shape:
    """A sequence's size."""

    tokens: int
    labels: int

    @classmethod
    def of_share(cls, tokens: int, prompt_share: float) -> Shape:
        return cls(tokens, tokens - 1 - round(tokens * prompt_share))


@dataclass(frozen=True)
class Work:
    """The same sequences for both."""

    sequences: list[SequenceStates]
    last: list[Tensor]
    """[T, H] of each, at every position: what the reference stores."""

    @property
    def tokens(self) -> int:
        return sum(len(states.token_ids) for states in self.sequences)

    @classmethod
    def of(cls, shapes: Sequence[Shape]) -> Work:
        """Random states."""
        last = [torch.randn(shape.tokens, HIDDEN) for shape in shapes]
        return cls([_states(shape, own) for shape, own in zip(shapes, last, strict=True)], last)


def _states(shape: Shape, last: Tensor) -> SequenceStates:
    kinds = (torch.arange(shape.tokens) >= shape.tokens - 1 - shape.labels).to(torch.uint8) * ANSWER
    labels = label_positions(kinds != 0)
    return SequenceStates(
        sequence_id="benchmark",
        token_ids=torch.randint(0, VOCAB, (shape.tokens,), dtype=torch.int32),
        kinds=kinds,
        weight=1.0,
        aux=torch.randn(shape.tokens, AUX, HIDDEN),
        label_positions=labels,
        last=last[labels.long()],
        argmax=torch.randint(0, DRAFT_VOCAB, (len(labels),), dtype=torch.int32),
        logsumexp=torch.full((len(labels),), 12.0),
    )


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
    """Run once."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


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


def default_works(count: int, prompt_share: float | None = None) -> list[Work]:
    """Random batches with the default run's lengths; with a share, that of each sequence's tokens is prompt."""
    generator = random.Random(0)
    shapes = [Shape(*pair) for pair in DEFAULT_LENGTHS]
    if prompt_share is not None:
        shapes = [Shape.of_share(shape.tokens, prompt_share) for shape in shapes]
    return [Work.of(generator.sample(shapes, BATCH)) for _ in range(count)]


def describe(works: Sequence[Work]) -> str:
    """Prompt share and how full the padded batches are."""
    tokens = sum(work.tokens for work in works)
    prompt = sum(int((states.kinds == 0).sum()) for work in works for states in work.sequences)
    padded_size = sum(max(len(s.token_ids) for s in work.sequences) * len(work.sequences) for work in works)
    return f"{prompt / tokens:.0%} prompt, padded batches {tokens / padded_size:.0%} full"


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
