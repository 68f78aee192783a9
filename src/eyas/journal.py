r"""An append-only, keyed, locked record of finished work that survives kill -9 and every DVC command.

DVC deletes a stage's outs before each run; work that took hours is kept here instead, outside all outs, and the
outs are made from it at the end (see `paths.journal`). One directory per name and fingerprint:

    rows.jsonl          one entry per line: {"key": ..., "error"?: ..., ...}
    lock                flock(2) of the writer, with its pid inside
    fingerprint.json    in clear text, what all entries have in common
    checkpoint          how many bytes of rows.jsonl are known to be sound, and their CRC-32

An entry with a value under "error" records a failed attempt: it never counts as done and never replaces an answer.
Otherwise the last entry of a key counts.

Opening reads every byte and notices every damaged line, yet parses little: as long as the bytes before the checkpoint
have its CRC-32, they are what was written and synced, and the start of a line tells its key. Lines behind the
checkpoint are parsed in full, and all lines are if the CRC-32 differs.
"""

from __future__ import annotations

import errno
import json
import os
import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eyas import filelock, jsonl
from eyas.checkpoint import Checkpoint
from eyas.errors import InputError, JournalError
from eyas.files import write_json
from eyas.keyindex import KeyIndex, Place
from eyas.linehead import Head, is_entry, parsed_head, plain_head

_REMEDIES = dict.fromkeys((errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "make space") | dict.fromkeys(
    (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR), "make its folder writable"
)
"""What to do about errors of the system."""
SYNC_INTERVAL_S = 5.0
"""A power loss may take entries younger than this; a killed process loses none that `append` returned from."""


class Journal:
    """The only writer of a journal directory while open. A context manager, for one thread.

    `key in journal` tells whether a key has an answer.
    """

    def __init__(self, directory: Path, fingerprint: Mapping[str, Any]) -> None:
        """Lock the directory (made if needed), repair a torn tail, and index all entries.

        Raises:
            JournalError: another process writes here, a line is broken, or the fingerprint is another one.
        """
        self.directory = directory
        self.rows_path = directory / "rows.jsonl"
        self._checkpoint_path = directory / "checkpoint"
        self._lock = self._rows = -1
        self._size = 0
        self._index = KeyIndex()
        self._sound: Checkpoint | None = Checkpoint()
        self._synced_size = 0
        self._synced_at = time.monotonic()
        self._syncer = ThreadPoolExecutor(1, "journal-sync")
        self._syncing: Future[None] | None = None
        self._broken = False
        try:
            directory.mkdir(parents=True, exist_ok=True)
            self._lock = filelock.take(directory / "lock")
            self._open(dict(fingerprint))
        except OSError as error:
            raise self._unwritable(error) from error

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
        place = self._index.get(key) if isinstance(key, str) else None
        return place is not None and not place.is_error

    def __len__(self) -> int:
        """How many keys have an answer."""
        return len(self._index)

    @property
    def size(self) -> int:
        """Bytes of rows.jsonl."""
        return self._size

    def append(self, entry: Mapping[str, Any]) -> None:
        """Record an entry; once this returns, killing the process can't lose it.

        Raises:
            JournalError: it can't be written (disk full, for example) and the journal is as before, or what was
                written earlier can't be forced to the disk.
            InputError: the key holds a lone surrogate.
        """
        key: str = entry["key"]
        if jsonl.replace_surrogates(key) != key:
            raise InputError("a key with half a character can't be written", where=ascii(key))
        error = entry.get("error")
        first = {"key": key} if error is None else {"key": key, "error": error}
        line = jsonl.encode({**first, **entry})
        offset = self._size
        self._write(line)
        self._index.put(key, Place(offset, error is not None))
        if self._sound is not None:
            self._sound = self._sound.extended(line)
        self.sync_if_due()

    def get(self, key: str) -> dict[str, Any] | None:
        """The answer of a key, None if it has none.

        Raises:
            JournalError: the line was damaged after it was written.
        """
        place = self._index.get(key)
        return None if place is None or place.is_error else self._read_at(place.offset)

    def error(self, key: str) -> dict[str, Any] | None:
        """The last failed attempt of a key that has no answer, None otherwise."""
        place = self._index.get(key)
        return self._read_at(place.offset) if place is not None and place.is_error else None

    def sync_if_due(self) -> None:
        """Start to force entries to the disk if the last time was long enough ago; does not wait for it.

        Raises:
            JournalError: it failed the last time.
        """
        if time.monotonic() - self._synced_at < SYNC_INTERVAL_S:
            return
        if self._syncing is None or self._syncing.done():
            self._collect()
            self._synced_at = time.monotonic()
            if self._size > self._synced_size:
                self._syncing = self._syncer.submit(self._force, self._size, self._sound)

    def sync(self) -> None:
        """Force all entries to the disk and wait for it."""
        self._collect()
        if self._size > self._synced_size:
            self._syncing = self._syncer.submit(self._force, self._size, self._sound)
            self._collect()
        self._synced_at = time.monotonic()

    def close(self) -> None:
        """Sync and give the lock back."""
        if self._lock < 0:
            return
        try:
            self.sync()
        finally:
            self._release()

    def _open(self, fingerprint: dict[str, Any]) -> None:
        try:
            _check_fingerprint(self.directory / "fingerprint.json", fingerprint)
            self._rows = os.open(self.rows_path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
            self._size = jsonl.repair_tail(self._rows, is_entry)
            self._read_lines()
        except BaseException:
            self._release()
            raise

    def _release(self) -> None:
        self._syncer.shutdown()
        for descriptor in (self._rows, self._lock):
            if descriptor >= 0:
                os.close(descriptor)
        self._rows = self._lock = -1

    def _collect(self) -> None:
        """Wait for the running sync and raise what it met."""
        syncing, self._syncing = self._syncing, None
        if syncing is None:
            return
        try:
            syncing.result()
        except OSError as error:
            raise self._unwritable(error) from error

    def _force(self, size: int, sound: Checkpoint | None) -> None:
        """In the syncing thread: the event loop of a run must not wait for a slow disk."""
        os.fsync(self._rows)
        self._synced_size = size
        if sound is not None:
            sound.write(self._checkpoint_path)

    def _write(self, line: bytes) -> None:
        if self._broken:
            raise self._unwritable(OSError(0, "an earlier write failed half-way"))
        try:
            written = os.write(self._rows, line)
            while written < len(line):  # a full disk writes a part, then fails
                written += os.write(self._rows, line[written:])
        except OSError as error:
            self._undo()
            raise self._unwritable(error) from error
        self._size += len(line)

    def _undo(self) -> None:
        """Cut off a line that was written in part; if even that fails, nothing may be appended to it."""
        try:
            os.ftruncate(self._rows, self._size)
        except OSError:
            self._broken = True

    def _unwritable(self, error: OSError) -> JournalError:
        return JournalError(
            f"the journal can't be written: {error.strerror or error}",
            where=str(self.rows_path),
            hint=f"{_REMEDIES.get(error.errno or 0, 'look at the disk')} and run again; the entries before are intact",
        )

    def _read_lines(self) -> None:
        """Index every line; start over with full parsing where the checkpoint turns out not to hold."""
        known = Checkpoint.read(self._checkpoint_path, self._size)
        if not self._index_until(known):
            self._index, self._sound, known = KeyIndex(), Checkpoint(), Checkpoint()
            self._index_until(known)
        self._synced_size = known.size

    def _index_until(self, known: Checkpoint) -> bool:
        """Index all lines, by their start up to the checkpoint; False if the bytes before it have changed."""
        sound = Checkpoint()
        regular = True
        with self.rows_path.open("rb") as file:
            for number, line in enumerate(file, 1):
                offset = sound.size
                sound = sound.extended(line)
                head = plain_head(line)
                if head is None or offset >= known.size:
                    plain, head = head, self._parse(line, number)
                    regular &= plain in (None, head)
                self._index.put(head.key, Place(offset, head.is_error))
                if sound.size >= known.size > offset and sound != known:
                    return False
        self._sound = sound if regular else None
        return True

    def _parse(self, line: bytes, number: int) -> Head:
        where = f"{self.rows_path}:{number}"
        try:
            return parsed_head(line, where)
        except InputError as error:
            raise _damaged(where, error.what) from error

    def _read_at(self, offset: int) -> dict[str, Any]:
        with self.rows_path.open("rb") as file:
            file.seek(offset)
            try:
                entry: dict[str, Any] = jsonl.parse(file.readline(), f"{self.rows_path} at byte {offset}")
            except InputError as error:
                raise _damaged(str(error.where), error.what) from error
        return entry


def _check_fingerprint(path: Path, fingerprint: dict[str, Any]) -> None:
    if not path.exists():
        write_json(path, fingerprint)
        return
    try:
        recorded = json.loads(path.read_bytes())
    except ValueError as error:
        raise _foreign(path, "its fingerprint is not JSON") from error
    if recorded != fingerprint:
        raise _foreign(path, "its fingerprint is another one")


def _foreign(path: Path, what: str) -> JournalError:
    return JournalError(
        f"this is not the journal of these params: {what}",
        where=str(path),
        hint="put the file back as it was, or move the folder away: everything is then asked anew",
    )


def _damaged(where: str, what: str) -> JournalError:
    return JournalError(
        f"the journal is damaged: {what}",
        where=where,
        hint="repair or remove that line; the other rows are kept, and a removed one is made again",
    )
