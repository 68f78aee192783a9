"""Freed memory is kept for the next batch: that of the C library for large tensors on a CPU, and that of Polars.

glibc gives freed blocks of a few megabytes back to the system at once, and every pass over new ones begins with a page
fault for every 4 KiB. A forward pass allocates and frees such tensors all the time: kept, they save about a tenth of
its time.
"""

from __future__ import annotations

import ctypes
import gc
import os

# The same for Polars' own allocator (jemalloc): ten seconds instead of half a second. It is read once, when Polars is
# loaded, so stages that want it import this module first.
os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:10000,muzzy_decay_ms:10000")

M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
"""Names of malloc.h."""
LARGEST_KEPT = 32 << 20
"""Bytes of a block; glibc takes no higher threshold."""
KEPT_BYTES = (1 << 31) - 1
"""Free memory at the end of the heap; the parameter is a C int."""


COLLECT_AFTER = 100_000
"""New containers between two garbage collections: Python's 700 cost some tenths of a second in the stages of tables, where
little is in cycles."""


def collect_rarely() -> None:
    """Look for garbage in cycles each COLLECT_AFTER new containers only."""
    gc.set_threshold(COLLECT_AFTER)


def keep_freed_memory() -> bool:
    """Let this process keep freed blocks of up to LARGEST_KEPT for the next ones; False where that can't be told.

    The process holds what it needed at most, until it ends.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # musl, macOS, Windows
        return False
    mallopt.argtypes, mallopt.restype = (ctypes.c_int, ctypes.c_int), ctypes.c_int
    kept = (mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT), mallopt(M_TRIM_THRESHOLD, KEPT_BYTES))
    return all(result == 1 for result in kept)
