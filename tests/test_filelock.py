"""Who holds a lock, seen from outside."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from eyas import filelock
from eyas.errors import JournalError
from eyas.filelock import Holder, holder, take

PROGRAM = """
import sys
from pathlib import Path
from eyas import filelock
filelock.take(Path(sys.argv[1]))
print("taken", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that holds tmp_path/lock."""
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"taken\n"
    yield process
    process.kill()
    process.communicate()


def test_the_holder_is_seen_and_not_disturbed(tmp_path: Path, other: subprocess.Popen[bytes]) -> None:
    lock = tmp_path / "lock"
    before = lock.stat()
    assert holder(lock) == Holder(other.pid, holds=True)
    assert lock.stat() == before
    with pytest.raises(JournalError, match=f"pid {other.pid}"):
        take(lock)
    other.kill()
    other.wait()
    assert holder(lock) == Holder(other.pid, holds=False)
    descriptor = take(lock)
    assert holder(lock) == Holder(os.getpid(), holds=True)
    os.close(descriptor)
    assert holder(lock) == Holder(os.getpid(), holds=False)


def test_nobody_ever_held_it(tmp_path: Path) -> None:
    assert holder(tmp_path / "lock") is None


def test_looking_never_takes_the_lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "lock").write_text("12\n")

    def refuse(*arguments: object) -> None:
        raise AssertionError("locked")

    monkeypatch.setattr(fcntl, "flock", refuse)
    assert holder(tmp_path / "lock") == Holder(12, holds=False)


def test_a_file_system_that_shows_another_device_is_matched_by_pid(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    lock.write_text("77\n")
    status = lock.stat()
    table = (
        f"1: FLOCK  ADVISORY  WRITE 77 ff:ee:{status.st_ino} 0 EOF\n2: POSIX  ADVISORY  WRITE 5 fe:00:1 0 0\n"
    )
    assert filelock._is_locked(table, status, 77)
    assert not filelock._is_locked(table, status, 78)
    assert not filelock._is_locked(table.replace("FLOCK", "POSIX"), status, 77)
    waiting = table.replace("1: FLOCK", "1: -> FLOCK")
    assert not filelock._is_locked(waiting, status, 77)
    assert not filelock._is_locked(f"1: FLOCK  ADVISORY  WRITE 77 ff:ee:1{status.st_ino} 0 EOF", status, 77)


def test_without_the_kernels_table_the_pid_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filelock, "_PROC_LOCKS", tmp_path / "none")
    (tmp_path / "lock").write_text(f"{os.getpid()}\n")
    assert holder(tmp_path / "lock") == Holder(os.getpid(), holds=True)
    gone = subprocess.Popen([sys.executable, "-c", ""])
    gone.wait()
    (tmp_path / "lock").write_text(f"{gone.pid}\n")
    assert holder(tmp_path / "lock") == Holder(gone.pid, holds=False)
    (tmp_path / "lock").write_text("garbage")
    assert holder(tmp_path / "lock") == Holder(None, holds=False)
