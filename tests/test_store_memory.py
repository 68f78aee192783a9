"""A store several times larger than the memory that a process may take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eyas.shards import HiddenStore
from tests.stores import META, make_states, write_store

HIDDEN = 256
TOKENS = 300
LIMIT_BYTES = 16 << 20
SHARD_BYTES = 2 << 20

PROGRAM = """
import json, resource, sys
from pathlib import Path
import torch
from eyas.shards import HiddenStore

def memory():
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return {name: int(lines[name].split()[0]) * 1024 for name in ("VmData", "RssAnon", "RssFile")}

directory, mapped_bytes, limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
store = HiddenStore(directory, mapped_bytes=mapped_bytes)
order = torch.randperm(len(store), generator=torch.Generator().manual_seed(0)).tolist()
float(store[order[0]].aux.float().sum())  # whatever torch and safetensors allocate once
before = memory()
# private maps and allocations both count; a decoded sequence and its copy are what a batch takes
resource.setrlimit(resource.RLIMIT_DATA, (before["VmData"] + limit,) * 2)
read, epochs = 0, []
for _ in range(2):
    most = dict(before)
    for index in order:
        states = store[index]
        states.aux.float().sum(), states.last.float().sum()
        read += states.aux.nbytes + states.last.nbytes
        most = {name: max(value, most[name]) for name, value in memory().items()}
    epochs.append({name: most[name] - before[name] for name in before})
print(json.dumps({"read": read, "epochs": epochs}))
"""


def kept(directory: Path, dtype: str) -> Path:
    """A store of some 50 MB."""
    base = make_states("s", [False] * (TOKENS // 2) + [True] * (TOKENS // 2), 0, HIDDEN)
    count = {"bfloat16": 98, "int8": 192}[dtype]
    sequences = [replace(base, sequence_id=f"s:{place}") for place in range(count)]
    return write_store(directory, sequences, SHARD_BYTES, replace(META, dtype=dtype))


def run(directory: Path, mapped_bytes: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", PROGRAM, str(directory), str(mapped_bytes), str(LIMIT_BYTES)]
    at_once = {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }  # what is freed goes back to the system
    environment = {**os.environ, **at_once, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return kept(tmp_path_factory.mktemp("memory") / "store", "bfloat16")


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_reading_a_store_three_times_larger_than_memory(tmp_path: Path, halves: Path, dtype: str) -> None:
    directory = halves if dtype == "bfloat16" else kept(tmp_path / "store", dtype)
    assert HiddenStore(directory).bytes > 3 * LIMIT_BYTES
    done = run(directory, mapped_bytes=2 * SHARD_BYTES)
    assert done.returncode == 0, done.stderr
    used: dict[str, Any] = json.loads(done.stdout)
    assert used["read"] > 6 * LIMIT_BYTES
    first, second = used["epochs"]
    assert second["RssAnon"] < first["RssAnon"] + (1 << 20)
    assert (
        max(first["RssFile"], second["RssFile"]) < 4 * SHARD_BYTES
    )  # what is mapped, and what is still held


def test_the_limit_would_stop_a_reader_that_keeps_everything(halves: Path) -> None:
    done = run(halves, mapped_bytes=1 << 40)
    assert done.returncode != 0
    assert "Cannot allocate memory" in done.stderr
