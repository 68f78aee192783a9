"""The manifest of a hidden-state store: what its states are, which files it has, where each sequence lies."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path

from eyas.errors import ArtifactError
from eyas.files import write_bytes
from eyas.hashing import canonical_json

FORMAT_VERSION = 1
MANIFEST = "manifest.json"
DTYPE_BYTES = {"float32": 4, "bfloat16": 2}
"""Storage types of the states."""


@dataclass(frozen=True)
class StoreMeta:
    """What the states are. Stored in the manifest and in each shard."""

    target_digest: str
    target_name: str
    dtype: str
    """Storage type of aux and last: float32 or bfloat16."""
    aux_layer_ids: list[int]
    backend: str
    """What ran the target, e.g. transformers."""
    versions: dict[str, str]
    """Versions of the packages that decide the values."""
    layer_id_convention: str = "hf_hidden_states_index"
    last_state: str = "pre_final_norm"
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        if self.dtype not in DTYPE_BYTES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(DTYPE_BYTES)}")

    def canonical(self) -> str:
        """Its one spelling as JSON."""
        return canonical_json(asdict(self)).decode()


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


@dataclass(frozen=True)
class Manifest:
    """Contents of manifest.json."""

    meta: StoreMeta
    shards: list[ShardRecord]
    sequences: SequenceIndex

    @classmethod
    def read(cls, directory: Path) -> Manifest:
        """Read it and compare it with the files beside it.

        Raises:
            ArtifactError: no manifest, another format, it contradicts itself, or a shard is missing, foreign or of
                another size; names the file.
        """
        manifest = cls._parse(directory)
        manifest.check_files(directory)
        manifest.check_index(directory)
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
        except (KeyError, TypeError, ValueError) as error:
            raise store_error(f"the manifest is damaged: {error}", directory / MANIFEST) from error

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
        """Sequences must cover every shard's rows and labels, one after another."""
        index = self.sequences
        columns = [getattr(index, column.name) for column in fields(index)]
        if len({len(column) for column in columns}) != 1:
            raise store_error("the manifest is damaged: its columns differ in length", directory / MANIFEST)
        rows, labels = [0] * len(self.shards), [0] * len(self.shards)
        for sequence_id, shard, row, tokens, label, count in zip(*columns, strict=True):
            if not 0 <= shard < len(rows) or (row, label) != (rows[shard], labels[shard]):
                raise store_error(f"the manifest is damaged at {sequence_id}", directory / MANIFEST)
            rows[shard] += tokens
            labels[shard] += count
        for record, row, label in zip(self.shards, rows, labels, strict=True):
            if (row, label) != (record.rows, record.labels):
                raise store_error(
                    "the manifest does not account for all rows of a shard", directory / record.name
                )


def store_error(what: str, path: Path, hint: str | None = None) -> ArtifactError:
    """An error about a file of a store; without a hint, how to get the whole store again."""
    pull = f"dvc pull {path.parent.as_posix()} (the whole directory), or dvc repro extract"
    return ArtifactError(what, where=str(path), hint=hint or pull)
