"""Generation against a bare httpx2 loop: requests per second against a server that answers after 20 ms.

Both ask the same server, which runs in a process of its own, for the same bodies in the same run. The loop posts and
parses JSON; generation also builds requests from the table, reads and checks the replies, judges the first ones, and
has every answer in the journal before the next request. With `--prompts N` generation alone asks N prompts, and what
matters is the memory at the end.

    python -m benchmarks.generate
    python -m benchmarks.generate --prompts 1000000
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import httpx2
import psutil
from tests.generate.example import generate_params, profile, write_prompts
from tests.generate.scripted_process import server_process
from tests.serving.example import server_params

from eyas import jsonl, paths
from eyas.generate.dialects.choice import dialect
from eyas.generate.request import build
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable

DELAY_S = 0.02
TOKENS = 256
REQUESTS = 4000
ROUNDS = 3
CONCURRENCY = (128, 1024)


def prompts(count: int) -> list[str]:
    return [f"prompt {number} " + "word " * 50 for number in range(count)]


def bare_loop(base_url: str, concurrency: int) -> float:
    """Seconds of a loop that posts every body and parses every reply, and does nothing else."""
    speaker = dialect(generate_params(), profile(), Path("none"))
    requests = [
        build(str(number), [{"role": "user", "content": prompt}], generate_params(), "0" * 64)
        for number, prompt in enumerate(prompts(REQUESTS))
    ]
    bodies = iter([jsonl.encode(speaker.body(request)) for request in requests])
    limits = httpx2.Limits(max_connections=concurrency, max_keepalive_connections=concurrency)

    async def ask() -> None:
        headers = {"Content-Type": "application/json"}
        async with httpx2.AsyncClient(
            timeout=None, limits=limits, trust_env=False, headers=headers
        ) as client:

            async def worker() -> None:
                for body in bodies:
                    (await client.post(f"{base_url}/chat/completions", content=body)).json()

            await asyncio.gather(*(worker() for _ in range(concurrency)))

    started = time.perf_counter()
    asyncio.run(ask())
    return time.perf_counter() - started


def generation(base_url: str, concurrency: int) -> float:
    """Seconds of a whole run, from the table to the last answer in the journal."""
    os.environ["OPENAI_BASE_URL"] = base_url
    params, target = generate_params(), profile()
    started = time.perf_counter()
    table = PromptTable.read(paths.prompts("a"), "a")
    with (
        open_journal("a", target, params) as journal,
        Session("a", target, params, server_params(concurrency=concurrency)) as session,
    ):
        session.answer(table, journal)
    seconds = time.perf_counter() - started
    (rows,) = paths.journal("generate").glob("a/*/rows.jsonl")
    rows.rename(rows.with_suffix(".done"))  # the next round starts anew
    for name in ("checkpoint", "summary.json"):
        (rows.parent / name).unlink(missing_ok=True)
    return seconds


def compare(base_url: str) -> None:
    write_prompts("a", prompts(REQUESTS))
    works: dict[str, Callable[[str, int], float]] = {"generate": generation, "bare httpx2": bare_loop}
    print(f"{REQUESTS} requests, {TOKENS} tokens each, after {DELAY_S * 1000:.0f} ms; median of {ROUNDS}")
    for concurrency in CONCURRENCY:
        seconds: dict[str, list[float]] = {name: [] for name in works}
        for _ in range(ROUNDS):
            for name, work in works.items():
                seconds[name].append(work(base_url, concurrency))
        for name, times in seconds.items():
            ratio = statistics.median(b / own for b, own in zip(seconds["bare httpx2"], times, strict=True))
            print(
                f"C {concurrency:5}  {name:12} {REQUESTS / statistics.median(times):6.0f} requests/s, "
                f"{ratio:.2f} of the bare loop"
            )


def measure_memory(base_url: str, count: int, concurrency: int) -> None:
    """A fresh run over many prompts; another process writes them, so that the making of them does not count."""
    writer = multiprocessing.get_context("spawn").Process(target=write_many, args=(count,))
    writer.start()
    writer.join()
    before = psutil.Process().memory_info().rss
    seconds = generation(base_url, concurrency)
    peak = _peak_rss()
    print(f"{count} prompts in {seconds:.0f} s: {before / 1e6:.0f} MB before, {peak / 1e6:.0f} MB at most")


def write_many(count: int) -> None:
    write_prompts("a", prompts(count))


def _peak_rss() -> int:
    """Bytes. Not ru_maxrss: exec leaves the size of the process before it in there."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:")) * 1024


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, help="measure the memory of a run over so many")
    count = parser.parse_args().prompts
    logging.basicConfig(level=logging.WARNING)
    delay, tokens = (0.001, 16) if count else (DELAY_S, TOKENS)
    with (
        server_process("--delay-s", str(delay), "--tokens", str(tokens)) as server,
        tempfile.TemporaryDirectory() as directory,
    ):
        os.chdir(directory)
        Path("params.yaml").write_text("datasets: {}\nprompts: {}\n")
        if count:
            measure_memory(server.base_url, count, CONCURRENCY[0])
        else:
            compare(server.base_url)


if __name__ == "__main__":
    main()
