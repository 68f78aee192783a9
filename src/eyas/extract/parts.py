"""Finished shards in the journal: written while the next one is computed, found again by the next run.

A shard is written and synced before the record beside it, so that a record speaks of a whole shard whenever the process
is killed. What a crash of the machine leaves of files that were synced is not taken on trust: a record names the boot
under which it was written, and after another one the shard's checksum is compared.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from eyas.errors import ArtifactError
from eyas.extract.facts import Facts
from eyas.files import write_bytes
from eyas.hashing import canonical_json
from eyas.manifest import ShardPart, StoreMeta, shard_name
from eyas.shardfile import map_shard, verify_shard, write_shard
from eyas.states import StoredStates

logger = logging.getLogger("eyas.extract")

_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class Part:
    """A finished shard."""

    shard: ShardPart
    facts: dict[str, Any]
    """Facts.to_json() of its sequences."""
    boot: str | None
    """Of the machine that wrote it; None if it does not say."""


@dataclass(frozen=True)
class Parts:
    """The shards of one split in a journal folder."""

    folder: Path
    meta: StoreMeta

    def path(self, number: int) -> Path:
        """Of a shard, finished or not."""
        return self.folder / shard_name(number)

    def record(self, number: int) -> Path:
        """Of what is known of a finished shard."""
        return self.path(number).with_suffix(".json")

    def write(self, number: int, sequences: Sequence[StoredStates], facts: Facts) -> Part:
        """Write a shard, then its record.

        Raises:
            OSError: the disk is full, for example.
        """
        shard = write_shard(self.path(number), self.meta, number, sequences)
        part = Part(shard, facts.to_json(), boot_id())
        values = {"shard": shard.to_json(), "facts": part.facts, "boot": part.boot}
        write_bytes(self.record(number), canonical_json(values) + b"\n")
        return part

    def read(self, number: int) -> Part | None:
        """A shard that has a record and the size that it names; None if there is none."""
        try:
            values = json.loads(self.record(number).read_bytes())
            part = Part(ShardPart.from_json(values["shard"]), values["facts"], values["boot"])
            return part if self.path(number).stat().st_size == part.shard.bytes else None
        except FileNotFoundError:
            return None
        except (KeyError, TypeError, ValueError) as error:
            logger.warning("%s is damaged (%s): this shard is computed again", self.record(number), error)
            return None

    def verified(self, number: int, sequence_ids: Sequence[str]) -> Part | None:
        """A shard that is whole and holds these sequences; None if it has to be computed."""
        part = self.read(number)
        if part is None:
            return None
        same_boot = part.boot is not None and part.boot == boot_id()
        try:
            if part.shard.sequence_id != list(sequence_ids):
                raise ArtifactError("the shard holds other sequences", where=str(self.path(number)))
            (map_shard if same_boot else verify_shard)(self.path(number), self.meta, part.shard)
        except ArtifactError as error:
            logger.warning("%s (%s): this shard is computed again", error.what, error.where)
            return None
        return part


class Writer:
    """Writes one shard in a thread of its own while the next one is computed; none is waiting."""

    def __init__(self, written: Callable[[int], None]) -> None:
        """`written` is told the bytes of each shard, in the caller's thread."""
        self._written = written
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="shard-writer")
        self._running: Future[Part] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait for the shard that is being written: it is work done, also when the run stops."""
        self._pool.shutdown(wait=True)

    def submit(self, parts: Parts, number: int, sequences: Sequence[StoredStates], facts: Facts) -> None:
        """Wait for the shard before, then start to write this one.

        Raises:
            OSError: the shard before could not be written.
        """
        self.wait()
        self._running = self._pool.submit(parts.write, number, sequences, facts)

    def wait(self) -> None:
        """Wait for the shard that is being written.

        Raises:
            OSError: it could not be written.
        """
        if self._running is not None:
            running, self._running = self._running, None
            self._written(running.result().shard.bytes)


def boot_id() -> str | None:
    """Identifies the running system since it started; None where it has no such id (not Linux)."""
    try:
        return _BOOT_ID.read_text().strip()
    except OSError:
        return None
