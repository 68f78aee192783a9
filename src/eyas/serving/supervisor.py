"""A small parent for a server, so that the server's whole process tree ends when it must.

Run as `python -m eyas.serving.supervisor GRACE_S COMMAND...` with a pipe as standard input. It ends the tree when the pipe
closes: because its owner closed it, or because the owner is gone, SIGKILL included. It also ends what is left of
the tree when the server itself exits. An inference server has children of its own (engine, workers) that survive
the death of their parent; as a child subreaper (prctl(2)) this process inherits and finds them all.

Standard library only: it starts in milliseconds.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import select
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path

_POLL_S = 0.1
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_PR_SET_CHILD_SUBREAPER = 36


def supervise(command: Sequence[str], grace_s: float) -> int:
    """Run a command until it exits or standard input closes; return its exit code once no descendant is left."""
    stop = threading.Event()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, lambda *_: stop.set())
    server = _start(command)
    while server.poll() is None and not stop.is_set() and not _stdin_closed():
        pass
    end_tree(server, grace_s)
    return server.returncode


def _start(command: Sequence[str]) -> subprocess.Popen[bytes]:
    """Start the server in its own session; on Linux it gets SIGTERM should this process be killed."""
    prctl = ctypes.CDLL(None).prctl if sys.platform.startswith("linux") else None
    if prctl is not None:
        prctl(_PR_SET_CHILD_SUBREAPER, 1)
    return subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
        preexec_fn=None if prctl is None else lambda: prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),  # noqa: PLW1509 - no threads here
    )


def end_tree(server: subprocess.Popen[bytes], grace_s: float) -> None:
    """SIGTERM to the server, a grace period, then SIGKILL to its group and every descendant until none is left."""
    if server.poll() is None:
        server.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.wait(grace_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(server.pid, signal.SIGKILL)
    server.wait()
    while left := children():
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, 0)


def children() -> list[int]:
    """Process ids whose parent is this process: orphans of the tree included (Linux only, else empty)."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()  # state, ppid, ...: proc_pid_stat(5)
            if int(fields[1]) == os.getpid():
                found.append(int(stat.parent.name))
    return found


def _stdin_closed() -> bool:
    """Wait a moment; whether standard input has come to its end."""
    readable, _, _ = select.select([0], [], [], _POLL_S)
    return bool(readable) and not os.read(0, 4096)


if __name__ == "__main__":
    sys.exit(supervise(sys.argv[2:], grace_s=float(sys.argv[1])))
