"""flock(2) on a file that holds the pid of its owner; and who holds it, found out without touching it."""

from __future__ import annotations

import fcntl
import os
from dataclasses import dataclass
from pathlib import Path

from eyas.errors import JournalInUse

_PROC_LOCKS = Path("/proc/locks")


@dataclass(frozen=True)
class Holder:
    """The last process that took a lock."""

    pid: int | None
    """None if the file does not say."""
    holds: bool
    """Whether it holds the lock now."""


def take(path: Path) -> int:
    """Take the lock for this process and write its pid into the file; returns the descriptor that holds it.

    Raises:
        JournalInUse: another process holds it; names its pid.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        pid = _recorded_pid(os.read(descriptor, 32))
        os.close(descriptor)
        raise JournalInUse(
            f"another process (pid {'unknown' if pid is None else pid}) is writing this journal",
            where=str(path.parent),
            hint="wait for it, or stop it, then run again; its answers are kept",
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def holder(path: Path) -> Holder | None:
    """Who took the lock last and whether it still holds it; None if nobody ever did.

    Only looks: trying the lock, even for an instant, could make a writer that starts just then believe in another one.
    """
    try:
        pid = _recorded_pid(path.read_bytes())
        status = path.stat()
    except FileNotFoundError:
        return None
    try:
        table = _PROC_LOCKS.read_text()
    except OSError:  # not Linux
        return Holder(pid, pid is not None and _lives(pid))
    return Holder(pid, _is_locked(table, status, pid))


def _is_locked(table: str, status: os.stat_result, pid: int | None) -> bool:
    """Whether a table like /proc/locks has a flock of this file.

    A line: "1: FLOCK  ADVISORY  WRITE 4321 fe:00:2163078 0 EOF" (pid, device and inode). Some file systems show another
    device there than in stat; then the pid must be the recorded one.
    """
    device = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}"
    for line in table.splitlines():
        fields = line.split()
        if len(fields) < 6 or fields[1] != "FLOCK":  # "->" there: it waits for the lock
            continue
        where, _, inode = fields[5].rpartition(":")
        if inode == str(status.st_ino) and (where == device or fields[4] == str(pid)):
            return True
    return False


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def _recorded_pid(content: bytes) -> int | None:
    text = content.strip()
    return int(text) if text.isdigit() else None
