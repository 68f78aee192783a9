"""`eyas status` and the journal itself at a gigabyte: how long a look, an opening and an entry take.

Writes journals of the given size below a temporary directory, as runs leave them: answers of about 10 kB, half of it
token ids. A look in a process of its own is timed with its start: with the summary, without it, and while 1,000 rows
follow the summary. An opening is timed with the checkpoint that every run leaves, and without.

    python -m benchmarks.status
    python -m benchmarks.status --megabytes 100
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.generate.counted import THINK, answer, journal_entry, outcome

from eyas import jsonl, paths
from eyas.generate.progress import Counts, Display
from eyas.generate.summary import NAME
from eyas.journal import Journal

ROUNDS = 3
APPENDED = 5000
TOKENS = 1000


def entries(count: int) -> Iterator[dict[str, Any]]:
    """Entries of 10 kB, every fourth cut inside its thinking."""
    chance = random.Random(7)
    pool = [str(chance.randrange(100)) for _ in range(TOKENS)]
    for number in range(count):
        cut = number % 4 == 0
        ids = [901, *(chance.randrange(100_000, 150_000) for _ in range(TOKENS))]
        ids += [] if cut else [902, 2]
        given = answer(
            ids,
            reasoning=" ".join(pool),
            content=None if cut else "é\u2028" + " ".join(pool[:200]),
            finish_reason="length" if cut else "stop",
        )
        yield journal_entry(f"{number:064x}", given, at=1.7e9 + number)


def fill(directory: Path, size: int) -> int:
    """A journal of at least so many bytes, without checkpoint and summary; returns its rows."""
    directory.mkdir(parents=True)
    lines = list(map(jsonl.encode, entries(200)))
    count = 0
    with (directory / "rows.jsonl").open("wb") as file:
        while file.tell() < size:
            line = lines[count % len(lines)]
            file.write(line.replace(line[8:72], f"{count:064x}".encode(), 1))  # a key of its own
            count += 1
    return count


@contextmanager
def timed(what: str) -> Iterator[None]:
    started = time.perf_counter()
    yield
    print(f"{what:48} {time.perf_counter() - started:8.3f} s", flush=True)


def look(what: str) -> None:
    """`eyas status` in a process of its own, the best of several."""
    root = Path(__file__).parents[1]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(root / "src"), str(root)])}
    times = []
    for _ in range(ROUNDS):
        started = time.perf_counter()
        subprocess.run(
            [sys.executable, "-m", "eyas.cli.main", "status"],
            check=True,
            capture_output=True,
            env=environment,
        )
        times.append(time.perf_counter() - started)
    print(f"{what:48} {min(times):8.3f} s", flush=True)


def measure_journal(directory: Path) -> None:
    """Openings, and entries per second."""
    with timed("opening without checkpoint, all lines parsed"):
        journal = Journal(directory, {})
    ready = list(entries(500))
    started, size = time.perf_counter(), journal.size
    for number in range(APPENDED):
        journal.append(ready[number % len(ready)] | {"key": f"new {number}"})
    seconds = time.perf_counter() - started
    rate, megabytes = APPENDED / seconds, (journal.size - size) / seconds / 1e6
    print(f"{'entries of 10 kB appended':48} {rate:8,.0f} /s ({megabytes:,.0f} MB/s)")
    journal.close()
    with timed("opening with the checkpoint"):
        Journal(directory, {}).close()


def measure_status(directory: Path, rows: int) -> None:
    """Looks with and without what makes them fast."""
    look("status, no summary: all rows counted")
    with timed("counting all rows when a run is resumed"):
        counts = Counts.resumed(2 * rows, rows, directory, THINK)
    with Journal(directory, {}) as journal:
        with Display("a", counts, journal):
            counts.add(outcome(answer()))
        look("status, with the summary")
        for entry in entries(1000):
            journal.append(entry)
        look("status, 1,000 rows behind the summary")
    (directory / NAME).unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--megabytes", type=int, default=1000)
    megabytes = parser.parse_args().megabytes
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as scratch:
        os.chdir(scratch)
        directory = paths.journal("generate") / "a" / "f"
        rows = fill(directory, megabytes * 1_000_000)
        print(f"{rows:,} rows, {(directory / 'rows.jsonl').stat().st_size / 1e9:.2f} GB")
        measure_journal(directory)
        measure_status(directory, rows)
        os.chdir("/")


if __name__ == "__main__":
    main()
