"""Validation and reassembly of many answers against tokenising the same answers again, in the same run.

Answers are made of paragraphs of this repository, documentation and code, in the tokens of the default target (models/target;
run `dvc repro target` first). The two stages run as DVC runs them, whole processes, reading and writing their files;
the other side is nothing but the fast tokenizer over the texts, all of them in memory, in large batches on all cores: its
Rust part with ids alone, and for a tenth of the rows what a trainer that tokenises again calls, the transformers tokenizer
with the offsets by which it finds the answer and so the loss mask. Rendering and masks are left out on that side.

    python benchmarks/reassemble.py [rows]
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from eyas import jsonl, paths
from eyas.config import read_section
from eyas.schema import Prompts, columns_of
from eyas.target.spec import TargetProfile
from eyas.target.template import load_tokenizer

ROWS = 200_000
EVALUATION_ROWS = 100
GENERATED_TOKENS = 950
BATCH = 2000
MIN_CHARACTERS = 200
"""Of a paragraph."""
ROOT = Path(__file__).resolve().parents[1]
DATASETS = {
    "many": {"source": "jsonl", "role": "train", "path": "many.jsonl", "column": "prompt"},
    "few": {"source": "jsonl", "role": "eval", "path": "few.jsonl", "column": "prompt"},
}


@dataclass(frozen=True)
class Piece:
    """A paragraph."""

    text: str
    ids: list[int]


@dataclass(frozen=True)
class Measured:
    """A finished process."""

    seconds: float
    core_seconds: float
    peak_bytes: int


@dataclass(frozen=True)
class Tokenised:
    """What the tokenizer alone did."""

    seconds: float
    tokens: int


class Scratch:
    """A directory in which the stages run."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.tokenizer = load_tokenizer(paths.TARGET.resolve())
        profile = TargetProfile.read(paths.TARGET_PROFILE)
        self.end = profile.end_of_turn_ids[0]
        (directory / "models").mkdir()
        (directory / "models/target").symlink_to(paths.TARGET.resolve())
        shutil.copy(paths.TARGET_PROFILE, directory / "models/profile.json")
        files = [*sorted(ROOT.glob("docs/*.md")), *sorted(ROOT.glob("src/**/*.py"))]
        parts = [part + "\n\n" for path in files for part in path.read_text().split("\n\n")]
        paragraphs = [part for part in parts if len(part) > MIN_CHARACTERS]
        self.pieces = [
            Piece(text, self.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in paragraphs
        ]

    def write(self, rows: int) -> int:
        """Params, prompts and responses; returns the tokens of all rows."""
        params = {"datasets": DATASETS} | {name: read_section(name) for name in ("validate", "reassemble")}
        (self.directory / "params.yaml").write_text(json.dumps(params))  # JSON is YAML
        return self._write("many", rows) + self._write("few", EVALUATION_ROWS)

    def _write(self, dataset: str, rows: int) -> int:
        folder = self.directory / paths.responses(dataset)
        folder.mkdir(parents=True)
        made, tokens = [], 0
        with (self.directory / paths.raw_responses(dataset)).open("wb") as file:
            for row in self._rows(dataset, rows):
                file.write(jsonl.encode(row))
                tokens += row["usage"]["prompt_tokens"] + row["usage"]["completion_tokens"]
                made.append({name: row.get(name) for name in columns_of(Prompts).names()})
        (folder / "errors.jsonl").write_text("")
        notes = {"chat_template_kwargs": {}, "dialect": "vllm"}
        (self.directory / paths.server_profile(dataset)).write_text(json.dumps(notes))
        (self.directory / paths.PROMPTS).mkdir(parents=True, exist_ok=True)
        table = pl.DataFrame(made, schema=columns_of(Prompts)).sort("sample_id")
        table.write_parquet(self.directory / paths.prompts(dataset))
        return tokens

    def _rows(self, dataset: str, rows: int) -> Iterator[dict[str, Any]]:
        generator = random.Random(dataset)
        for start in range(0, rows, BATCH):
            numbers = range(start, min(start + BATCH, rows))
            asked = [
                [
                    {
                        "role": "user",
                        "content": f"Explain point {number} of the {dataset} points, with an example.",
                    }
                ]
                for number in numbers
            ]
            texts = self.tokenizer.apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
            prompts = self.tokenizer(texts, add_special_tokens=False)["input_ids"]
            for number, messages, prompt_ids in zip(numbers, asked, prompts, strict=True):
                yield self._row(f"{dataset}:{number:06d}", messages, prompt_ids, self._answer(generator))

    def _answer(self, generator: random.Random) -> list[Piece]:
        chosen: list[Piece] = []
        length = generator.randint(GENERATED_TOKENS // 2, GENERATED_TOKENS * 3 // 2)
        while sum(len(piece.ids) for piece in chosen) < length:
            chosen.append(generator.choice(self.pieces))
        return chosen

    def _row(
        self, sample_id: str, messages: list[dict[str, str]], prompt_ids: list[int], answer: list[Piece]
    ) -> dict[str, Any]:
        ids = [token for piece in answer for token in piece.ids] + [self.end]
        digest = hashlib.sha256(sample_id.encode()).hexdigest()
        usage = {"prompt_tokens": len(prompt_ids), "completion_tokens": len(ids), "reasoning_tokens": None}
        return {
            "sample_id": sample_id,
            "turn": 0,
            "dataset": sample_id.split(":", maxsplit=1)[0],
            "prompt_hash": digest,
            "messages": messages,
            "tools": None,
            "reasoning": None,
            "content": "".join(piece.text for piece in answer),
            "tool_calls": None,
            "finish_reason": "stop",
            "stop_reason": None,
            "usage": usage,
            "prompt_token_ids": prompt_ids,
            "token_ids": ids,
            "flags": [],
            "model": "benchmark",
            "request_key": digest,
        }

    def run(self, stage: str, *arguments: str) -> Measured:
        """A stage script as a process."""
        command = [sys.executable, str(ROOT / "stages" / f"{stage}.py"), *arguments]
        started = time.perf_counter()
        process = subprocess.Popen(command, cwd=self.directory)
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{stage} failed")
        seconds = time.perf_counter() - started
        return Measured(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024)

    def _ids_alone(self, texts: list[str]) -> list[list[int]]:
        encoded = self.tokenizer.backend_tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in encoded]

    def _with_offsets(self, texts: list[str]) -> list[list[int]]:
        encoded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        ids: list[list[int]] = encoded["input_ids"]
        return ids

    def tokenise_again(self, rows: int, *, offsets: bool = False) -> Tokenised:
        """Tokenise prompts and answers of the first rows."""
        seconds, tokens = 0.0, 0
        encode = self._with_offsets if offsets else self._ids_alone
        table = pl.scan_parquet(self.directory / paths.validated("many")).select("messages", "content")
        for piece in table.head(rows).collect_batches(chunk_size=BATCH):
            asked = self.tokenizer.apply_chat_template(
                piece["messages"].to_list(), tokenize=False, add_generation_prompt=True
            )
            texts = [prompt + answer for prompt, answer in zip(asked, piece["content"], strict=True)]
            started = time.perf_counter()
            encoded = encode(texts)
            seconds += time.perf_counter() - started
            tokens += sum(map(len, encoded))
        return Tokenised(seconds, tokens)


def main() -> None:
    rows = int(sys.argv[1]) if len(sys.argv) > 1 else ROWS
    with tempfile.TemporaryDirectory() as directory:
        place = Scratch(Path(directory))
        tokens = place.write(rows)
        size = (place.directory / paths.raw_responses("many")).stat().st_size
        print(f"{rows} answers, {tokens / rows:.0f} tokens each, {size / 1e9:.2f} GB of raw_responses.jsonl")
        place.run("validate", "few")
        stages = {"validate": place.run("validate", "many"), "reassemble": place.run("reassemble")}
        again = place.tokenise_again(rows)
        offsets = place.tokenise_again(max(rows // 10, 1), offsets=True)
    print(f"{os.cpu_count()} cores; {again.tokens / 1e6:.0f} million tokens")
    for name, measured in stages.items():
        print(
            f"{name:10} {measured.seconds:6.1f} s, {measured.core_seconds:.1f} core-s, "
            f"at most {measured.peak_bytes / 2**30:.2f} GiB"
        )
    total = sum(measured.seconds for measured in stages.values())
    with_offsets = offsets.seconds * again.tokens / offsets.tokens
    print(f"both       {total:6.1f} s")
    for name, seconds in (
        ("transformers' fast tokenizer with offsets", with_offsets),
        ("tokenizers.encode_batch_fast, ids alone", again.seconds),
    ):
        print(f"{name}: {seconds:.1f} s, {seconds / total:.1f} times as long")


if __name__ == "__main__":
    main()
