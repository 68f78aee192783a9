"""An append-only, keyed, locked record of finished work that survives kill -9 and every DVC command.

DVC deletes a stage's outs before each run; work that took hours is kept here instead, outside all outs, and the
outs are made from it at the end (see `paths.journal`). One directory per name and fingerprint:

    rows.jsonl          one entry per line: {"key": ..., ...}
    lock                flock(2) of the writer, with its pid inside
    fingerprint.json    in clear text, what all entries have in common

An entry with a value under "error" records a failed attempt: it never counts as done and never replaces an answer.
Otherwise the last entry of a key counts.
"""

from __future__ import annotations

import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eyas import jsonl
from eyas.errors import InputError, JournalError
from eyas.files import write_json

SYNC_INTERVAL_S = 5.0
"""A power loss may take entries younger than this; a killed process loses none that `append` returned from."""


class Journal:
    """The only writer of a journal directory while open. A context manager.

    `key in journal` tells whether a key has an answer.
    """

    def __init__(self, directory: Path, fingerprint: Mapping[str, Any]) -> None:
        """Lock the directory (made if needed), repair a torn tail, and index all entries.

        Raises:
            JournalError: another process writes here, a line is broken, or the fingerprint is another one.
        """
        self.directory = directory
        self.rows_path = directory / "rows.jsonl"
        self._answers: dict[bytes, int] = {}
        self._errors: dict[bytes, int] = {}
        self._synced_at = time.monotonic()
        self._dirty = False
        directory.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(directory / "lock")
        try:
            _check_fingerprint(directory / "fingerprint.json", dict(fingerprint))
            self._rows = os.open(self.rows_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        except BaseException:
            os.close(self._lock)
            raise
        try:
            self._size = _repair_tail(self._rows, self.rows_path)
            self._index()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __contains__(self, key: object) -> bool:
        return isinstance(key, str) and key.encode() in self._answers

    def __len__(self) -> int:
        """How many keys have an answer."""
        return len(self._answers)

    def append(self, entry: Mapping[str, Any]) -> None:
        """Record an entry; once this returns, killing the process can't lose it.

        Raises:
            JournalError: it can't be written (disk full, for example); the journal is as before.
        """
        key: str = entry["key"]
        line = jsonl.encode({"key": key, **entry})
        offset = self._size
        self._write(line)
        (self._errors if entry.get("error") is not None else self._answers)[key.encode()] = offset
        self._dirty = True
        self.sync_if_due()

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer of a key, None if it has none."""
        return self._read_at(self._answers.get(key.encode()))

    def error(self, key: str) -> dict[str, Any] | None:
        """The last failed attempt of a key that has no answer, None otherwise."""
        return None if key in self else self._read_at(self._errors.get(key.encode()))

    def sync_if_due(self) -> None:
        """Force entries to the disk if the last time was long enough ago."""
        if time.monotonic() - self._synced_at >= SYNC_INTERVAL_S:
            self.sync()

    def sync(self) -> None:
        """Force all entries to the disk."""
        if self._dirty:
            try:
                os.fsync(self._rows)
            except OSError as error:
                raise self._unwritable(error) from error
        self._dirty = False
        self._synced_at = time.monotonic()

    def close(self) -> None:
        """Sync and give the lock back."""
        if self._lock < 0:
            return
        try:
            self.sync()
        finally:
            os.close(self._rows)
            os.close(self._lock)
            self._lock = -1

    def _write(self, line: bytes) -> None:
        try:
            written = os.write(self._rows, line)
            while written < len(line):  # a full disk writes a part, then fails
                written += os.write(self._rows, line[written:])
        except OSError as error:
            os.ftruncate(self._rows, self._size)
            raise self._unwritable(error) from error
        self._size += len(line)

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"the journal can't be written: {error.strerror}",
            where=str(self.rows_path),
            hint="make space and run again; the entries before are intact",
        )

    def _index(self) -> None:
        for line in _lines(self.rows_path):
            entry = line.value
            if not _is_entry(entry):
                raise _damaged(f"{self.rows_path}:{line.number}", "an entry without a key")
            index = self._errors if entry.get("error") is not None else self._answers
            index[entry["key"].encode()] = line.offset

    def _read_at(self, offset: int | None) -> dict[str, Any] | None:
        if offset is None:
            return None
        with self.rows_path.open("rb") as file:
            file.seek(offset)
            entry: dict[str, Any] = jsonl.parse(file.readline(), f"{self.rows_path} at byte {offset}")
        return entry


def _lock(path: Path) -> int:
    """Take the lock for this process and write its pid into the file; returns the descriptor that holds it."""
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        holder = os.read(descriptor, 32).decode().strip() or "unknown"
        os.close(descriptor)
        raise JournalError(
            f"another process (pid {holder}) is writing this journal",
            where=str(path.parent),
            hint="wait for it, or stop it, then run again; its answers are kept",
        ) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def _check_fingerprint(path: Path, fingerprint: dict[str, Any]) -> None:
    if not path.exists():
        write_json(path, fingerprint)
        return
    try:
        recorded = json.loads(path.read_bytes())
    except ValueError as error:
        raise _damaged(str(path), "not JSON") from error
    if recorded != fingerprint:
        raise _damaged(str(path), "the fingerprint of this directory is another one")


def _repair_tail(descriptor: int, path: Path) -> int:
    """Make the file end with a newline: complete a whole last entry, cut off a torn one. Returns the size."""
    size = os.fstat(descriptor).st_size
    start = _last_line_start(descriptor, size)
    if start == size:
        return size
    try:
        whole = _is_entry(jsonl.parse(os.pread(descriptor, size - start, start), str(path)))
    except InputError:
        whole = False
    if not whole:
        os.ftruncate(descriptor, start)
        return start
    os.write(descriptor, b"\n")
    return size + 1


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict) and isinstance(value.get("key"), str)


def _last_line_start(descriptor: int, size: int, block: int = 1 << 16) -> int:
    """Offset behind the last newline, 0 if there is none."""
    end = size
    while end > 0:
        begin = max(0, end - block)
        newline = os.pread(descriptor, end - begin, begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        end = begin
    return 0


def _lines(path: Path) -> Iterator[jsonl.Line]:
    try:
        yield from jsonl.read(path)
    except InputError as error:
        raise _damaged(error.where or str(path), error.what) from error


def _damaged(where: str, what: str) -> JournalError:
    return JournalError(
        f"the journal is damaged: {what}",
        where=where,
        hint="repair or remove that line; the other rows are kept, and a removed one is made again",
    )
