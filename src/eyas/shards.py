"""The hidden-state store: a directory of safetensors shards and a manifest that is written last.

Each shard holds one tensor per kind, the rows of its sequences one after another, so that a sequence is a slice. The
reader maps the files into memory and copies nothing. DVC can deliver a part of a directory, so the reader refuses
anything but exactly the files of the manifest, and says which one is wrong.

Letters in shape comments: T tokens of a sequence, A aux layers, H hidden size, L labelled positions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from eyas.files import atomic_file
from eyas.hashing import file_digest
from eyas.manifest import DTYPE_BYTES, MANIFEST, Manifest, SequenceIndex, ShardRecord, StoreMeta, store_error

if TYPE_CHECKING:  # whoever reads a manifest alone does without torch
    from torch import Tensor

__all__ = ["HiddenStore", "SequenceStates", "ShardWriter", "StoreMeta", "label_positions", "sequence_bytes"]

METADATA_KEY = "eyas"
KINDS = ("token_ids", "loss_mask", "aux", "label_positions", "last", "argmax", "logsumexp")
LABEL_KINDS = ("label_positions", "last", "argmax", "logsumexp")


@dataclass(frozen=True)
class SequenceStates:
    """The states of one sequence. Labelled positions q are those with loss_mask[q] and loss_mask[q+1]."""

    sequence_id: str
    token_ids: Tensor
    """int32 [T]"""
    loss_mask: Tensor
    """bool [T], true on generated tokens."""
    aux: Tensor
    """[T, A, H]"""
    label_positions: Tensor
    """int32 [L], ascending."""
    last: Tensor
    """[L, H] before the final norm, at the labelled positions."""
    argmax: Tensor
    """int32 [L], of the target's logits over the full vocabulary."""
    logsumexp: Tensor
    """float32 [L], of the same logits."""


def label_positions(loss_mask: Tensor) -> Tensor:
    """int32 [L]: positions whose distribution is a label, from a bool [T] loss mask.

    The distribution at q predicts token q+1; it is needed where both are generated.
    """
    import torch

    return torch.nonzero(loss_mask[:-1] & loss_mask[1:]).flatten().to(torch.int32)


def sequence_bytes(tokens: int, labels: int, aux_layers: int, hidden_size: int, dtype: str) -> int:
    """Bytes that a sequence takes in the store."""
    vector = hidden_size * DTYPE_BYTES[dtype]
    return tokens * (aux_layers * vector + 4 + 1) + labels * (vector + 3 * 4)


class TargetIdentity(Protocol):
    """What identifies a target: part of its profile."""

    @property
    def name(self) -> str: ...
    @property
    def digest(self) -> str: ...
    @property
    def aux_layer_ids(self) -> list[int]: ...


class ShardWriter:
    """Writes a store in the order of `add`. A directory without manifest is an unfinished store.

    A shard is closed before it would exceed `shard_bytes`; a longer sequence gets a shard of its own.
    """

    def __init__(self, directory: Path, meta: StoreMeta, shard_bytes: int) -> None:
        self.directory = directory
        self.meta = meta
        self.shard_bytes = shard_bytes
        self._index = SequenceIndex()
        self._seen: set[str] = set()
        self._shards: list[ShardRecord] = []
        self._pending: list[SequenceStates] = []
        self._pending_bytes = self._pending_rows = self._pending_labels = 0
        directory.mkdir(parents=True, exist_ok=True)

    def add(self, states: SequenceStates) -> None:
        """Append a sequence; aux and last are cast to the storage type.

        Raises:
            ValueError: shapes do not fit each other or the id was added before.
        """
        self._check(states)
        states = self._cast(states)
        tokens, labels = len(states.token_ids), len(states.label_positions)
        size = sequence_bytes(tokens, labels, states.aux.shape[1], states.aux.shape[2], self.meta.dtype)
        if self._pending and self._pending_bytes + size > self.shard_bytes:
            self._flush()
        self._index.sequence_id.append(states.sequence_id)
        self._index.shard.append(len(self._shards))
        self._index.row.append(self._pending_rows)
        self._index.tokens.append(tokens)
        self._index.label.append(self._pending_labels)
        self._index.labels.append(labels)
        self._seen.add(states.sequence_id)
        self._pending.append(states)
        self._pending_bytes += size
        self._pending_rows += tokens
        self._pending_labels += labels

    def close(self) -> int:
        """Write the last shard and the manifest; returns the bytes of all shards."""
        if self._pending:
            self._flush()
        Manifest(self.meta, self._shards, self._index).write(self.directory)
        return sum(shard.bytes for shard in self._shards)

    def _check(self, states: SequenceStates) -> None:
        tokens, labels = len(states.token_ids), len(states.label_positions)
        wrong = [kind for kind in ("loss_mask", "aux") if len(getattr(states, kind)) != tokens]
        wrong += [kind for kind in ("last", "argmax", "logsumexp") if len(getattr(states, kind)) != labels]
        if wrong or states.aux.dim() != 3 or states.aux.shape[1] != len(self.meta.aux_layer_ids):
            raise ValueError(
                f"{states.sequence_id}: {wrong or 'aux'} does not fit {tokens} tokens, {labels} labels, "
                f"{len(self.meta.aux_layer_ids)} aux layers"
            )
        if states.sequence_id in self._seen:
            raise ValueError(f"{states.sequence_id} was added before")

    def _cast(self, states: SequenceStates) -> SequenceStates:
        import torch

        dtype = getattr(torch, self.meta.dtype)
        return SequenceStates(
            sequence_id=states.sequence_id,
            token_ids=states.token_ids.to("cpu", torch.int32),
            loss_mask=states.loss_mask.to("cpu", torch.bool),
            aux=states.aux.to("cpu", dtype),
            label_positions=states.label_positions.to("cpu", torch.int32),
            last=states.last.to("cpu", dtype),
            argmax=states.argmax.to("cpu", torch.int32),
            logsumexp=states.logsumexp.to("cpu", torch.float32),
        )

    def _flush(self) -> None:
        import torch
        from safetensors.torch import save_file

        tensors = {kind: torch.cat([getattr(states, kind) for states in self._pending]) for kind in KINDS}
        path = self.directory / f"shard-{len(self._shards):05d}.safetensors"
        with atomic_file(path) as temporary:
            # One key: safetensors does not keep the order of several, and a shard's bytes must not vary.
            save_file(tensors, temporary, metadata={METADATA_KEY: self.meta.canonical()})
            temporary.chmod(0o644)
        self._shards.append(
            ShardRecord(
                name=path.name,
                bytes=path.stat().st_size,
                sha256=file_digest(path),
                rows=self._pending_rows,
                labels=self._pending_labels,
            )
        )
        self._pending = []
        self._pending_bytes = self._pending_rows = self._pending_labels = 0


class HiddenStore:
    """A finished store, mapped into memory. `store[i]` gives views; nothing is read before it is used."""

    def __init__(self, directory: Path) -> None:
        """Open a store.

        Raises:
            ArtifactError: the set is unfinished, partial, foreign or damaged; names the file.
        """
        self.directory = Path(directory)
        self._manifest = Manifest.read(self.directory)
        self._open: dict[int, dict[str, Tensor]] = {}

    def __len__(self) -> int:
        return len(self.sequence_ids)

    def __iter__(self) -> Iterator[SequenceStates]:
        return (self[index] for index in range(len(self)))

    def __getitem__(self, index: int) -> SequenceStates:
        if not -len(self) <= index < len(self):
            raise IndexError(f"sequence {index} of a store with {len(self)}")
        at = self._manifest.sequences
        tensors = self._tensors(at.shard[index])
        rows = slice(at.row[index], at.row[index] + at.tokens[index])
        labels = slice(at.label[index], at.label[index] + at.labels[index])
        parts = {kind: tensors[kind][labels if kind in LABEL_KINDS else rows] for kind in KINDS}
        return SequenceStates(sequence_id=at.sequence_id[index], **parts)

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}  # a worker process maps the files itself

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

    def verify(self) -> None:
        """Read every shard and compare its checksum.

        Raises:
            ArtifactError: names the first damaged shard.
        """
        for shard in self._manifest.shards:
            path = self.directory / shard.name
            if file_digest(path) != shard.sha256:
                raise store_error("a shard's content differs from its checksum", path)

    def _tensors(self, shard: int) -> dict[str, Tensor]:
        """The tensors of a shard, mapped on first use."""
        if shard not in self._open:
            self._open[shard] = self._map(self._manifest.shards[shard])
        return self._open[shard]

    def _map(self, record: ShardRecord) -> dict[str, Tensor]:
        from safetensors import SafetensorError, safe_open

        path = self.directory / record.name
        try:
            with safe_open(path, framework="pt") as file:
                metadata = file.metadata() or {}
                tensors = {kind: file.get_tensor(kind) for kind in KINDS}
        except (SafetensorError, OSError) as error:
            raise store_error(f"a shard can't be read: {error}", path) from error
        if metadata.get(METADATA_KEY) != self.meta.canonical():
            raise store_error("a shard was made from another target or with other settings", path)
        for kind in KINDS:
            if len(tensors[kind]) != (record.labels if kind in LABEL_KINDS else record.rows):
                raise store_error(f"`{kind}` has not as many rows as the manifest says", path)
        return tensors
