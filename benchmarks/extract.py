"""Extraction against the bare forward pass and against a padded loop that returns all layers, in the same run.

Reads the outputs of the default run (models/target, data/sequences/val.parquet); run `dvc repro extract` first.
Extraction is the whole of it: forward passes with capture, the head's predictions, checks, labels, and shards on disk.
The bare forward computes the same sequences and stores nothing, in the better of two ways to call the model itself:
sequences of nearly equal length together, and each alone, without any padding; it profits from what extraction
does for its process, and is shown also with extraction's matrix products. The padded loop has a process of its own. Works alternate, so that the machine's mood hits all of
them alike; a ratio is the median over the rounds.

    python benchmarks/extract.py
    python benchmarks/extract.py --split train --sequences 100 --rounds 5
    python benchmarks/extract.py --turns 4  # made-up conversations of four turns
    python benchmarks/extract.py --cpu      # on a machine with other work: processor time of one thread
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from eyas import paths
from eyas.compute import ComputeParams
from eyas.config import load_section
from eyas.extract import extractor as extractor_module
from eyas.extract import parts as parts_module
from eyas.extract.backend import TransformersBackend
from eyas.extract.batches import plan_batches
from eyas.extract.extractor import Extractor
from eyas.extract.params import ExtractParams
from eyas.extract.prefixes import pack
from eyas.extract.table import Sequences
from eyas.gemm import FastLinear
from eyas.target.spec import TargetProfile
from eyas.tokenkinds import PROMPT

MAX_PADDING = 0.05
"""Share of padding in an ideal batch."""
UNSHARED = sys.maxsize
PADDED_LOOP = """
import json, sys, time
import torch, transformers
torch.set_num_threads(int(sys.argv[2]))
model = transformers.AutoModelForCausalLM.from_pretrained(sys.argv[1], dtype="auto").eval()
sequences = [torch.tensor(tokens) for tokens in json.loads(sys.stdin.readline())]

@torch.inference_mode()
def run(sequences):
    for start in range(0, len(sequences), 8):
        rows = sequences[start : start + 8]
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        mask = torch.nn.utils.rnn.pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
        model(input_ids=ids, attention_mask=mask, use_cache=False, output_hidden_states=True)

run(sequences[:1])
print("ready", flush=True)
for line in sys.stdin:
    now = getattr(time, line.strip())
    started = now()
    run(sequences)
    print(now() - started, flush=True)
"""


@dataclass(frozen=True)
class Bench:
    """What is measured."""

    extractor: Extractor
    unshared: Extractor
    """Computes every token of every sequence."""
    sequences: Sequences
    ids: list[list[int]]

    @classmethod
    def load(cls, split: str, count: int | None, turns: int) -> Bench:
        params = load_section("extract", ExtractParams)
        compute = load_section("compute", ComputeParams)
        profile = TargetProfile.read(paths.TARGET_PROFILE)
        sequences = Sequences.read(paths.sequences(split), profile.vocab_size)
        extractor = Extractor.load(paths.TARGET, profile, params, compute)
        if count is not None:
            sequences = first(sequences, count)
        if turns > 1:  # answers to other questions
            sequences = conversations(sequences, turns)
            extractor = replace(extractor, rules=replace(extractor.rules, min_agreement=0.0))
        backend = extractor.backend
        assert isinstance(backend, TransformersBackend)
        apart = TransformersBackend(backend.model, backend.aux_layer_ids, min_shared=UNSHARED)
        if backend.unpackable or apart.unpackable:
            raise SystemExit(f"sequences are padded: {backend.unpackable}")
        ids = [sequences.ids(index) for index in range(len(sequences))]
        return cls(extractor, replace(extractor, backend=apart), sequences, ids)

    @property
    def model(self) -> Any:
        backend = self.extractor.backend
        assert isinstance(backend, TransformersBackend)
        return backend.model

    def extract(self) -> None:
        extract(self.extractor, self.sequences)

    def extract_unshared(self) -> None:
        extract(self.unshared, self.sequences)

    def bare_batches(self) -> None:
        for batch in ideal_batches(self.ids, self.extractor.params.batch_tokens):
            self.model(input_ids=padded(self.ids, batch), use_cache=False)

    def bare_singles(self) -> None:
        for tokens in self.ids:
            self.model(input_ids=torch.tensor([tokens]), use_cache=False)

    def decoder_singles(self) -> None:
        for tokens in self.ids:
            self.model.model(input_ids=torch.tensor([tokens]), use_cache=False)

    def bare_singles_by_our_products(self) -> None:
        with FastLinear():
            self.bare_singles()

    def computed_tokens(self) -> int:
        """Tokens left when shared ones count once."""
        batches = plan_batches(self.ids, self.extractor.params.batch_tokens)
        return sum(len(pack([self.ids[index] for index in batch]).token_ids) for batch in batches)


def extract(extractor: Extractor, sequences: Sequences) -> None:
    with tempfile.TemporaryDirectory() as directory:
        extractor.extract("benchmark", sequences, Path(directory) / "store")


def first(sequences: Sequences, count: int) -> Sequences:
    """Some sequences, evenly from all of a table."""
    chosen = range(0, len(sequences), max(1, len(sequences) // count))[:count]
    return Sequences.of(
        [sequences.sequence_ids[index] for index in chosen],
        [sequences.datasets[index] for index in chosen],
        [sequences.ids(index) for index in chosen],
        [sequences.kinds[index].tolist() for index in chosen],
        [float(sequences.weights[index]) for index in chosen],
    )


def conversations(sequences: Sequences, turns: int) -> Sequences:
    """Made-up conversations: each sequence continues those before it, up to so many turns."""
    names, ids, kinds = [], [], []
    history: list[int] = []
    for index, name in enumerate(sequences.sequence_ids):
        if index % turns == 0:
            history = []
        own = sequences.kinds[index].tolist()
        names.append(name)
        ids.append([*history, *sequences.ids(index)])
        kinds.append([PROMPT] * len(history) + own)
        history = ids[-1]
    return Sequences.of(names, sequences.datasets, ids, kinds)


def ideal_batches(ids: Sequence[Sequence[int]], batch_tokens: int) -> list[list[int]]:
    """Sequences of nearly equal length, at most so many tokens."""
    batches: list[list[int]] = []
    longest = 0
    for index in sorted(range(len(ids)), key=lambda index: -len(ids[index])):
        fits = batches and (len(batches[-1]) + 1) * longest <= batch_tokens
        if fits and len(ids[index]) >= (1 - MAX_PADDING) * longest:
            batches[-1].append(index)
        else:
            batches.append([index])
            longest = len(ids[index])
    return batches


def padded(ids: Sequence[Sequence[int]], batch: Sequence[int]) -> torch.Tensor:
    """Token ids [B, T], zeros on the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(ids[index]) for index in batch], batch_first=True)


class PaddedLoop:
    """A loop as one writes it first, in a plain process of its own: 8 sequences at a time, all layers, nothing stored.

    Its process does nothing else; it runs the loop when a line comes in and answers with a line.
    """

    def __init__(self, ids: Sequence[Sequence[int]], threads: int) -> None:
        command = [sys.executable, "-c", PADDED_LOOP, str(paths.TARGET), str(threads)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._ask(json.dumps(ids))

    def _ask(self, line: str) -> str:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(line + "\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            raise SystemExit("the padded loop failed")
        return answer

    def seconds(self, clock: str) -> float:
        """Of one run over all sequences, by a clock of module time."""
        return float(self._ask(clock))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()


class Clock:
    """Seconds spent in parts of a run."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.now = now
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            started = self.now()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[name] = self.seconds.get(name, 0.0) + self.now() - started

        return run

    @contextmanager
    def watching(self) -> Iterator[None]:
        """The parts of extraction; writing happens beside the others."""
        places: list[tuple[str, Any, str]] = [
            ("forward passes with capture", TransformersBackend, "states"),
            ("head predictions", extractor_module, "predict_generated"),
            ("checks", extractor_module, "check_states"),
            ("encoding for the store", extractor_module, "to_stored"),
            ("writing, in its thread", parts_module, "write_shard"),
        ]
        with ExitStack() as stack:
            for name, owner, attribute in places:
                found = getattr(owner, attribute)
                stack.enter_context(mock.patch.object(owner, attribute, self.timed(name, found)))
            yield


def measure(
    works: dict[str, Callable[[], None]], loop: PaddedLoop, rounds: int, now: Callable[[], float]
) -> dict[str, list[float]]:
    """Seconds of each work in each round."""
    times: dict[str, list[float]] = {name: [] for name in (*works, "padded loop")}
    with torch.inference_mode():
        for _ in range(rounds):
            for name, work in works.items():
                started = now()
                work()
                times[name].append(now() - started)
            times["padded loop"].append(loop.seconds(now.__name__))
    return times


def show(times: dict[str, list[float]], tokens: int) -> None:
    """Rates, and how they compare."""
    for name, seconds in times.items():
        ratios = [
            statistics.median(other / own for own, other in zip(times[ours], seconds, strict=True))
            for ours in ("extract", "extract, nothing shared")
        ]
        print(
            f"{name:40} {tokens / statistics.median(seconds):6.0f} tokens/s; extract is {ratios[0]:.2f} times as fast, "
            f"{ratios[1]:.2f} with nothing shared"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--split", default="val")
    parser.add_argument("--sequences", type=int, help="only so many")
    parser.add_argument("--turns", type=int, default=1, help="of made-up conversations")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cpu", action="store_true", help="processor time of one thread, not the clock's")
    arguments = parser.parse_args()
    now = time.process_time if arguments.cpu else time.perf_counter
    bench = Bench.load(arguments.split, arguments.sequences, arguments.turns)
    if arguments.cpu:
        torch.set_num_threads(1)
    tokens = sum(map(len, bench.ids))
    works: dict[str, Callable[[], None]] = {
        "extract": bench.extract,
        "extract, nothing shared": bench.extract_unshared,
        "bare forward, equal lengths": bench.bare_batches,
        "bare forward, one by one": bench.bare_singles,
        "bare forward without head, one by one": bench.decoder_singles,
        "bare forward, extraction's products": bench.bare_singles_by_our_products,
    }
    bench.extract()  # warm-up
    loop = PaddedLoop(bench.ids, torch.get_num_threads())
    try:
        times = measure(works, loop, arguments.rounds, now)
    finally:
        loop.close()
    print(
        f"{len(bench.ids)} sequences, {tokens} tokens, of which {bench.computed_tokens()} are computed, "
        f"{sum(bench.sequences.checked_counts)} predicted; {torch.get_num_threads()} threads"
    )
    show(times, tokens)
    clock = Clock(now)
    with clock.watching():
        started = now()
        bench.extract()
        whole = now() - started
    for name, seconds in clock.seconds.items():
        print(f"{name:30} {seconds / whole:6.1%} of extraction's time")


if __name__ == "__main__":
    main()
