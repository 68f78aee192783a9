"""The manifest of a hidden-state store: what its states are, which files it has, where each sequence lies."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

from eyas.errors import ArtifactError
from eyas.files import write_bytes
from eyas.hashing import canonical_json
from eyas.storage import STORAGE_TYPES

FORMAT_VERSION = 2
MANIFEST = "manifest.json"


@dataclass(frozen=True)
class StoreMeta:
    """What the states are. Stored in the manifest and in each shard."""

    target_digest: str
    target_name: str
    target_revision: str | None
    """Of the target's profile; null for a folder."""
    source_digest: str
    """Digest of the sequences that the store is of: ids, tokens, kinds and weights, in order."""
    dtype: str
    """Storage type of aux and last: a key of `eyas.storage.STORAGE_TYPES`."""
    aux_layer_ids: list[int]
    backend: str
    """What ran the target, e.g. transformers."""
    versions: dict[str, str]
    """Versions of the packages that decide the values."""
    layer_id_convention: str = "hf_hidden_states_index"
    """Id i is the input of decoder layer i, counted from 0; the embeddings are 0."""
    last_state: str = "pre_final_norm"
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.dtype not in STORAGE_TYPES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(STORAGE_TYPES)}")

    def canonical(self) -> str:
        """Its one spelling as JSON."""
        return canonical_json(asdict(self)).decode()


@dataclass(frozen=True)
class ShardPart:
    """A finished shard: its file, and what the manifest's index says of its sequences, column by column."""

    number: int
    """Place among the shards of the store, from 0."""
    bytes: int
    sha256: str
    sequence_id: list[str]
    tokens: list[int]
    labels: list[int]
    weight: list[float]
    crc32: list[int]
    """Of each sequence's bytes: see `eyas.shardfile.checksum`."""

    @property
    def name(self) -> str:
        return shard_name(self.number)

    def contents(self) -> dict[str, Any]:
        """What the shard says of itself: the part without its file's size and checksum."""
        return {
            "number": self.number,
            "sequence_id": self.sequence_id,
            "tokens": self.tokens,
            "labels": self.labels,
            "weight": self.weight,
            "crc32": self.crc32,
        }

    def to_json(self) -> dict[str, Any]:
        """A JSON object, for a journal."""
        return asdict(self)

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> ShardPart:
        """The inverse of `to_json`.

        Raises:
            TypeError: other fields than a part's.
        """
        return cls(**values)


@dataclass(frozen=True)
class ShardRecord:
    """A shard as the manifest knows it."""

    name: str
    bytes: int
    sha256: str
    rows: int
    labels: int


@dataclass
class SequenceIndex:
    """Where each sequence lies, column by column, in the order of the store."""

    sequence_id: list[str] = field(default_factory=list)
    shard: list[int] = field(default_factory=list)
    row: list[int] = field(default_factory=list)
    """First row within the shard."""
    tokens: list[int] = field(default_factory=list)
    label: list[int] = field(default_factory=list)
    """First labelled position within the shard."""
    labels: list[int] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)
    crc32: list[int] = field(default_factory=list)

    def append(self, part: ShardPart) -> None:
        """Add the sequences of the next shard."""
        row = label = 0
        for tokens, labels in zip(part.tokens, part.labels, strict=True):
            self.shard.append(part.number)
            self.row.append(row)
            self.label.append(label)
            row += tokens
            label += labels
        self.sequence_id += part.sequence_id
        self.tokens += part.tokens
        self.labels += part.labels
        self.weight += part.weight
        self.crc32 += part.crc32


@dataclass(frozen=True)
class Manifest:
    """Contents of manifest.json."""

    meta: StoreMeta
    shards: list[ShardRecord]
    sequences: SequenceIndex

    @classmethod
    def of_parts(cls, meta: StoreMeta, parts: Sequence[ShardPart]) -> Manifest:
        """The manifest of finished shards, in the order of their numbers."""
        index = SequenceIndex()
        for part in parts:
            index.append(part)
        records = [
            ShardRecord(part.name, part.bytes, part.sha256, sum(part.tokens), sum(part.labels))
            for part in parts
        ]
        return cls(meta, records, index)

    def part(self, number: int) -> ShardPart:
        """What the manifest says of a shard."""
        index, record = self.sequences, self.shards[number]
        first = bisect_left(index.shard, number)
        end = bisect_right(index.shard, number)
        return ShardPart(
            number=number,
            bytes=record.bytes,
            sha256=record.sha256,
            sequence_id=index.sequence_id[first:end],
            tokens=index.tokens[first:end],
            labels=index.labels[first:end],
            weight=index.weight[first:end],
            crc32=index.crc32[first:end],
        )

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read it and compare it with the files beside it.

        Raises:
            ArtifactError: no manifest, another format, it contradicts itself, or a shard is missing, foreign or of
                another size; names the file.
        """
        try:
            manifest = cls._parse(directory)
            manifest.check_index(directory)
        except (KeyError, TypeError, ValueError) as error:
            raise store_error(f"the manifest is damaged: {error!r}", directory / MANIFEST) from error
        manifest.check_files(directory)
        return manifest

    def write(self, directory: Path) -> None:
        """Write it atomically; that finishes a store."""
        write_bytes(directory / MANIFEST, canonical_json(asdict(self)) + b"\n")

    @classmethod
    def _parse(cls, directory: Path) -> Manifest:
        try:
            values = json.loads((directory / MANIFEST).read_bytes())
            version = values["meta"]["format_version"]
            if version != FORMAT_VERSION:
                raise store_error(
                    f"the store has format version {version}, this program reads {FORMAT_VERSION}",
                    directory / MANIFEST,
                    hint="dvc repro extract",
                )
            return cls(
                meta=StoreMeta(**values["meta"]),
                shards=[ShardRecord(**shard) for shard in values["shards"]],
                sequences=SequenceIndex(**values["sequences"]),
            )
        except FileNotFoundError as error:
            raise store_error(
                "the hidden states are missing or unfinished: there is no manifest", directory / MANIFEST
            ) from error

    def check_files(self, directory: Path) -> None:
        """Exactly the shards must be there, each of its size."""
        expected = {shard.name: shard.bytes for shard in self.shards}
        present = {path.name: path.stat().st_size for path in directory.iterdir()}
        for name, size in expected.items():
            if name not in present:
                raise store_error("a shard is missing", directory / name)
            if present[name] != size:
                raise store_error(f"a shard has {present[name]} bytes instead of {size}", directory / name)
        foreign = sorted(set(present) - set(expected) - {MANIFEST})
        if foreign:
            raise store_error("a file does not belong to this store", directory / foreign[0])

    def check_index(self, directory: Path) -> None:
        """Sequences must cover every shard's rows and labels, one after another, and be named once.

        Raises:
            ArtifactError: they do not.
            TypeError: a value has not its type.
        """
        index = self.sequences
        columns = [getattr(index, column.name) for column in fields(index)]
        damaged = directory / MANIFEST
        if len({len(column) for column in columns}) != 1:
            raise store_error("the manifest is damaged: its columns differ in length", damaged)
        if len(set(index.sequence_id)) != len(index.sequence_id):
            raise store_error("the manifest is damaged: a sequence is in it twice", damaged)
        rows, labels = [0] * len(self.shards), [0] * len(self.shards)
        before = 0
        for sequence_id, shard, row, tokens, label, count in zip(*columns[:6], strict=True):
            counted = before <= shard < len(rows) and tokens >= 0 and count >= 0
            if not counted or (row, label) != (rows[shard], labels[shard]):
                raise store_error(f"the manifest is damaged at {sequence_id}", damaged)
            rows[shard] += tokens
            labels[shard] += count
            before = shard
        for number, (record, row, label) in enumerate(zip(self.shards, rows, labels, strict=True)):
            if record.name != shard_name(number):
                raise store_error(f"the manifest is damaged: shard {number} is called {record.name}", damaged)
            if (row, label) != (record.rows, record.labels):
                raise store_error(
                    "the manifest does not account for all rows of a shard", directory / record.name
                )


def shard_name(number: int) -> str:
    """File name of a shard."""
    return f"shard-{number:05d}.safetensors"


def store_error(what: str, path: Path, hint: str | None = None) -> ArtifactError:
    """An error about a file of a store; without a hint, how to get the whole store again."""
    pull = f"dvc pull {path.parent.as_posix()} (the whole directory), or dvc repro extract"
    return ArtifactError(what, where=str(path), hint=hint or pull)
