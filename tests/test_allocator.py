from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from eyas.allocator import keep_freed_memory

ROOT = Path(__file__).resolve().parents[1]
ROUNDS = 5
SCRIPT = """
import ctypes, resource
from eyas.allocator import keep_freed_memory
if {keep}:
    keep_freed_memory()
library = ctypes.CDLL(None)
library.malloc.restype, library.malloc.argtypes = ctypes.c_void_p, [ctypes.c_size_t]
library.free.argtypes = [ctypes.c_void_p]
library.memset.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t]
def touch():
    blocks = [library.malloc(20 << 20) for _ in range(4)]
    for block in blocks:
        library.memset(block, 1, 20 << 20)
    for block in reversed(blocks):
        library.free(block)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt
before = [touch() for _ in range(4)][-1]
print([touch() for _ in range({rounds})][-1] - before)
"""
PAGES = ROUNDS * 4 * 20 * 2**20 // 4096


def faults(*, keep: bool) -> int:
    """Page faults of blocks that are written and freed, in a process of its own, after the first ones."""
    script = SCRIPT.format(keep=keep, rounds=ROUNDS)
    run = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True)
    return int(run.stdout)


@pytest.mark.skipif(not keep_freed_memory(), reason="this C library has no mallopt")
def test_freed_memory_is_used_again() -> None:
    assert faults(keep=True) < PAGES / 20
    assert faults(keep=False) > PAGES / 2


@pytest.mark.parametrize("stage", ["validate", "reassemble"])
def test_stages_that_pass_much_through_polars_tell_it_before_it_is_loaded(stage: str) -> None:
    code = (
        "import builtins, os, runpy\n"
        "load, seen = builtins.__import__, []\n"
        "def look(name, *rest, **more):\n"
        "    if name.split('.')[0] == 'polars':\n"
        "        seen.append('_RJEM_MALLOC_CONF' in os.environ)\n"
        "    return load(name, *rest, **more)\n"
        "builtins.__import__ = look\n"
        f"runpy.run_path('stages/{stage}.py', run_name='stage')\n"
        "print(seen[0])\n"
    )
    environment = {name: value for name, value in os.environ.items() if name != "_RJEM_MALLOC_CONF"}
    finished = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, env=environment, check=True
    )
    assert finished.stdout == "True\n"
