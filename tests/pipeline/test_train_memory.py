"""Training from a store three times larger than the memory that it may take."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.tiny_target import write_target

pytestmark = pytest.mark.pipeline

ROOT = Path(__file__).parents[2]
LIMIT_BYTES = 24 << 20
MAPPED_BYTES = 2 << 20

PROGRAM = f"""
import json, resource, sys
from dataclasses import replace
from pathlib import Path
from eyas.shards import HiddenStore
from tests.train.example import COMPUTE, PARAMS, Language, make_inputs, train, write_store

def memory():
    with open("/proc/self/status") as status:
        lines = dict(line.split(":", 1) for line in status)
    return {{name: int(lines[name].split()[0]) * 1024 for name in ("VmData", "RssAnon", "RssFile")}}

if __name__ == "__main__":
    target, scratch, mapped_bytes = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3])
    small = make_inputs(target, scratch / "small")
    language = Language.of(small.head)
    width = small.head.embedding.shape[1]
    rows = 3 * {LIMIT_BYTES} // (300 * 3 * width * 4) + 2
    large = write_store(
        scratch / "large", small.profile, [language.sequence(f"l:{{n}}", 292, 8, n) for n in range(rows)]
    )
    params = replace(PARAMS, epochs=1, batch_tokens=1200)
    alike = write_store(
        scratch / "alike", small.profile, [language.sequence(f"a:{{n}}", 292, 8, n) for n in range(40)]
    )
    train(replace(small, train=alike), params, scratch / "warm")  # what every training takes
    before = memory()
    resource.setrlimit(resource.RLIMIT_DATA, (before["VmData"] + {LIMIT_BYTES},) * 2)
    store = HiddenStore(large.directory, mapped_bytes=mapped_bytes)
    train(replace(small, train=store), params, scratch / "journals")
    after = memory()
    print(json.dumps({{"bytes": store.bytes, **{{name: after[name] - before[name] for name in before}}}}))
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_target(tmp_path_factory.mktemp("memory") / "target")


def run(target: Path, scratch: Path, mapped_bytes: int) -> subprocess.CompletedProcess[str]:
    (scratch / "life.py").write_text(PROGRAM)
    at_once = {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "65536",
    }  # what is freed goes back to the system
    environment = {**os.environ, **at_once, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT}:{ROOT / 'src'}"}
    command = [sys.executable, str(scratch / "life.py"), str(target), str(scratch), str(mapped_bytes)]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, env=environment, cwd=scratch, timeout=100
    )


def test_memory_does_not_grow(target: Path, tmp_path: Path) -> None:
    done = run(target, tmp_path, MAPPED_BYTES)
    assert done.returncode == 0, done.stderr
    used = json.loads(done.stdout.splitlines()[-1])
    assert used["bytes"] > 3 * LIMIT_BYTES
    assert used["RssAnon"] < LIMIT_BYTES // 2
    assert used["RssFile"] < 4 * MAPPED_BYTES


def test_the_limit_stops_what_keeps_everything_mapped(target: Path, tmp_path: Path) -> None:
    done = run(target, tmp_path, 1 << 40)
    assert done.returncode != 0
    assert (
        "Cannot allocate memory" in done.stderr or "could not create a primitive" in done.stderr
    )  # oneDNN's words
