"""The hidden-state store: a directory of safetensors shards and a manifest that is written last.

The reader maps the files into memory. DVC can deliver a part of a directory, so it refuses anything but exactly the
files of the manifest, and says which one is wrong.

What is checked when: the set of files, their sizes and the index when a store is opened; a shard's header when it is
mapped; the bytes of a sequence when it is read first, by its own checksum. So opening a store of terabytes costs nothing,
nothing is read only to be checked, and nothing damaged is used. `verify` reads everything.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eyas.manifest import MANIFEST, Manifest, ShardPart, StoreMeta, shard_name, store_error
from eyas.shardfile import checksum, map_shard, verify_shard, write_shard
from eyas.states import (
    PER_LABEL,
    SequenceStates,
    StoredStates,
    from_stored,
    label_positions,
    sequence_bytes,
    to_stored,
)

if TYPE_CHECKING:  # whoever reads a manifest alone does without torch
    from torch import Tensor

__all__ = [
    "HiddenStore",
    "SequenceStates",
    "ShardPart",
    "ShardWriter",
    "StoreMeta",
    "StoredStates",
    "finish_store",
    "label_positions",
    "sequence_bytes",
    "shard_name",
    "to_stored",
    "verify_shard",
    "write_shard",
]

MAPPED_BYTES = 4 << 30
"""Shards stay mapped up to so many bytes; the least recently used ones are closed."""


class TargetIdentity(Protocol):
    """What identifies a target: part of its profile."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def aux_layer_ids(self) -> list[int]: ...


def finish_store(directory: Path, meta: StoreMeta, parts: Sequence[ShardPart]) -> int:
    """Write the manifest of a directory's shards, last; returns the bytes of all shards.

    Raises:
        ValueError: the parts are not numbered 0, 1, 2, ..., or a sequence is in two of them.
        ArtifactError: a shard is missing, has another size, or a foreign file lies beside it.
    """
    ids = [sequence_id for part in parts for sequence_id in part.sequence_id]
    if [part.number for part in parts] != list(range(len(parts))) or len(set(ids)) != len(ids):
        raise ValueError(f"{directory}: a shard or sequence is missing or there twice")
    directory.mkdir(parents=True, exist_ok=True)
    manifest = Manifest.of_parts(meta, parts)
    manifest.check_files(directory)
    manifest.write(directory)
    return sum(part.bytes for part in parts)


class ShardWriter:
    """Writes a store in the order of `add`. A directory without manifest is an unfinished store.

    A shard is closed before it would exceed `shard_bytes`; a longer sequence gets a shard of its own.
    """

    def __init__(self, directory: Path, meta: StoreMeta, shard_bytes: int) -> None:
        self.directory = directory
        self.meta = meta
        self.shard_bytes = shard_bytes
        self._seen: set[str] = set()
        self._parts: list[ShardPart] = []
        self._pending: list[StoredStates] = []
        self._pending_bytes = 0

    def add(self, states: SequenceStates | StoredStates) -> None:
        """Append a sequence; aux and last are cast to the storage type.

        Raises:
            ValueError: shapes do not fit each other or the id was added before.
        """
        if states.sequence_id in self._seen:
            raise ValueError(f"{states.sequence_id} was added before")
        stored = states if isinstance(states, StoredStates) else to_stored(states, self.meta)
        size = sum(tensor.nbytes for tensor in stored.tensors.values())
        if self._pending and self._pending_bytes + size > self.shard_bytes:
            self._flush()
        self._seen.add(states.sequence_id)
        self._pending.append(stored)
        self._pending_bytes += size

    def close(self) -> int:
        """Write the last shard and the manifest; returns the bytes of all shards."""
        if self._pending:
            self._flush()
        return finish_store(self.directory, self.meta, self._parts)

    def _flush(self) -> None:
        number = len(self._parts)
        path = self.directory / shard_name(number)
        self._parts.append(write_shard(path, self.meta, number, self._pending))
        self._pending, self._pending_bytes = [], 0


class HiddenStore:
    """A finished store, mapped into memory. `store[i]` gives views, or decoded copies from an 8-bit store.

    Views stay valid as long as they are held, whatever the store closes meanwhile.
    """

    def __init__(self, directory: Path, *, checksums: bool = True, mapped_bytes: int = MAPPED_BYTES) -> None:
        """Open a store.

        Args:
            directory: where its manifest is.
            checksums: compare a sequence's checksum when it is read first.
            mapped_bytes: shards stay mapped up to so many bytes, but at least one.

        Raises:
            ArtifactError: the set is unfinished, partial, foreign or damaged; names the file.
        """
        self.directory = Path(directory)
        self.mapped_bytes = mapped_bytes
        self._manifest = Manifest.read(self.directory)
        self._checked = bytearray(len(self)) if checksums else bytearray(b"\1") * len(self)
        self._lock = threading.Lock()
        self._open: OrderedDict[int, dict[str, Tensor]] = OrderedDict()

    def __len__(self) -> int:
        return len(self.sequence_ids)

    def __iter__(self) -> Iterator[SequenceStates]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> SequenceStates:
        return from_stored(self.stored(index))

    def stored(self, index: int) -> StoredStates:
        """A sequence in its storage type, as views.

        Raises:
            ArtifactError: a shard or the sequence is damaged or foreign; names it.
        """
        at = self._manifest.sequences
        shard = self._shard(index)
        tensors = {name: self._slice(name, tensor, index) for name, tensor in self._tensors(shard).items()}
        if not self._checked[index]:
            if checksum(tensors) != at.crc32[index]:
                path = self.directory / self._manifest.shards[shard].name
                raise store_error(
                    f"{at.sequence_id[index]}: the stored bytes differ from their checksum", path
                )
            self._checked[index] = 1
        return StoredStates(at.sequence_id[index], at.weight[index], tensors)

    def kinds(self, index: int) -> Tensor:
        """Kinds of the tokens of a sequence, uint8 [T], without reading or checking its states."""
        return self._slice("kinds", self._tensors(self._shard(index))["kinds"], index)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": None, "_lock": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        # a worker process maps the files itself
        self.__dict__.update(state, _open=OrderedDict(), _lock=threading.Lock())

    @property
    def meta(self) -> StoreMeta:
        return self._manifest.meta

    @property
    def sequence_ids(self) -> list[str]:
        return self._manifest.sequences.sequence_id

    @property
    def lengths(self) -> list[int]:
        """Tokens per sequence."""
        return self._manifest.sequences.tokens

    @property
    def label_counts(self) -> list[int]:
        """Labelled positions per sequence."""
        return self._manifest.sequences.labels

    @property
    def weights(self) -> list[float]:
        """How much each sequence counts in training."""
        return self._manifest.sequences.weight

    @property
    def bytes(self) -> int:
        """Size of all shards."""
        return sum(shard.bytes for shard in self._manifest.shards)

    def check_target(self, profile: TargetIdentity) -> None:
        """Refuse a store that was made from another target or other layers.

        Raises:
            ArtifactError: says what differs.
        """
        for name, ours, theirs in (
            ("target", self.meta.target_digest, profile.digest),
            ("aux layers", self.meta.aux_layer_ids, profile.aux_layer_ids),
        ):
            if ours != theirs:
                raise store_error(
                    f"the hidden states were made from {name} {ours} ({self.meta.target_name}), "
                    f"but the profile says {theirs} ({profile.name})",
                    self.directory / MANIFEST,
                    hint="dvc repro extract",
                )

    def check_source(self, digest: str) -> None:
        """Refuse a store of other sequences than those with this digest.

        Raises:
            ArtifactError: they differ.
        """
        if self.meta.source_digest != digest:
            raise store_error(
                f"the hidden states are of other sequences (digest {self.meta.source_digest}, now {digest})",
                self.directory / MANIFEST,
                hint="dvc repro extract",
            )

    def verify(self) -> None:
        """Read every shard and compare header and checksum.

        Raises:
            ArtifactError: names the first damaged shard.
        """
        for number, record in enumerate(self._manifest.shards):
            verify_shard(self.directory / record.name, self.meta, self._manifest.part(number))

    def _shard(self, index: int) -> int:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of a store with {len(self)}")
        return self._manifest.sequences.shard[index]

    def _slice(self, name: str, tensor: Tensor, index: int) -> Tensor:
        """The rows of a sequence in a tensor of its shard."""
        at = self._manifest.sequences
        if name in PER_LABEL:
            return tensor[at.label[index] : at.label[index] + at.labels[index]]
        return tensor[at.row[index] : at.row[index] + at.tokens[index]]

    def _tensors(self, shard: int) -> dict[str, Tensor]:
        """The tensors of a shard, mapped if they are not."""
        with self._lock:
            if shard not in self._open:
                record = self._manifest.shards[shard]
                part = self._manifest.part(shard)
                self._open[shard] = map_shard(self.directory / record.name, self.meta, part)
            self._open.move_to_end(shard)
            mapped = sum(self._manifest.shards[number].bytes for number in self._open)
            while len(self._open) > 1 and mapped > self.mapped_bytes:
                closed, _ = self._open.popitem(last=False)
                mapped -= self._manifest.shards[closed].bytes
            return self._open[shard]
