"""One shard: a safetensors file that holds one tensor per name, the rows of its sequences one after another.

A sequence is a slice. The file's metadata repeats what the store is and which sequences the shard has, so that a shard
that got into another store, or into another place of its own, is recognised.
"""

from __future__ import annotations

import hashlib
import json
import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eyas.files import atomic_file
from eyas.hashing import canonical_json, file_digest
from eyas.manifest import ShardPart, StoreMeta, store_error
from eyas.states import PER_LABEL, SequenceStates, StoredStates, tensor_dtypes, to_stored

if TYPE_CHECKING:  # whoever reads a manifest alone does without torch
    from torch import Tensor

METADATA_KEY = "eyas"
ALIGNMENT = 8
SAFETENSORS_NAMES = {
    "float32": "F32",
    "bfloat16": "BF16",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}
"""By the name of the torch dtype."""
MAP_HINT = "look at ulimit -v, ulimit -d and vm.overcommit_memory, or use a smaller extract.shard_bytes"


def write_shard(
    path: Path, meta: StoreMeta, number: int, sequences: Sequence[SequenceStates | StoredStates]
) -> ShardPart:
    """Write a shard whole or not at all, synced to the disk. Equal sequences give equal bytes.

    The format is safetensors'; written here, because its library wants whole tensors, which would hold the shard in
    memory twice.

    Raises:
        ValueError: shapes do not fit each other, an id occurs twice, or there is no sequence.
    """
    stored = [each if isinstance(each, StoredStates) else to_stored(each, meta) for each in sequences]
    ids = [each.sequence_id for each in stored]
    if not ids or len(set(ids)) != len(ids):
        raise ValueError(f"{path.name}: there is no sequence, or one twice")
    _check_alike(path, meta, stored)
    part = ShardPart(
        number=number,
        bytes=0,
        sha256="",
        sequence_id=ids,
        tokens=[each.tokens for each in stored],
        labels=[each.labels for each in stored],
        weight=[each.weight for each in stored],
        crc32=[checksum(each.tensors) for each in stored],
    )
    sha256 = hashlib.sha256()
    with atomic_file(path) as temporary:
        with temporary.open("wb") as file:
            for chunk in _chunks(meta, part, stored):
                sha256.update(chunk)
                file.write(chunk)
        temporary.chmod(0o644)
    return replace(part, bytes=path.stat().st_size, sha256=sha256.hexdigest())


def checksum(tensors: Mapping[str, Tensor]) -> int:
    """CRC-32 of a sequence's tensors as a shard holds them, one after another in the order of their names."""
    crc = 0
    for name in sorted(tensors):
        crc = zlib.crc32(_bytes(tensors[name]), crc)
    return crc


def _file_order(meta: StoreMeta) -> list[str]:
    """Names of a shard's tensors as they lie in the file: wide types first, so that each one is aligned."""
    dtypes = tensor_dtypes(meta.dtype)
    return sorted(dtypes, key=lambda name: (-dtypes[name].itemsize, name))


def _header(meta: StoreMeta, part: ShardPart, first: StoredStates) -> bytes:
    """Length and JSON of a safetensors header; `first` gives the shapes behind the rows."""
    entries: dict[str, Any] = {"__metadata__": {METADATA_KEY: _metadata(meta, part)}}
    end = 0
    for name in _file_order(meta):
        tensor = first.tensors[name]
        shape = [sum(part.labels if name in PER_LABEL else part.tokens), *tensor.shape[1:]]
        start, end = end, end + math.prod(shape) * tensor.itemsize
        kind = SAFETENSORS_NAMES[str(tensor.dtype).removeprefix("torch.")]
        entries[name] = {"dtype": kind, "shape": shape, "data_offsets": [start, end]}
    text = canonical_json(entries)
    text += b" " * (-len(text) % ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _chunks(meta: StoreMeta, part: ShardPart, stored: Sequence[StoredStates]) -> Iterator[bytes | memoryview]:
    """The bytes of a file, without copying contiguous tensors."""
    yield _header(meta, part, stored[0])
    for name in _file_order(meta):
        for states in stored:
            yield _bytes(states.tensors[name])


def _bytes(tensor: Tensor) -> memoryview:
    """A contiguous tensor's own bytes."""
    import torch

    content: memoryview = tensor.detach().contiguous().flatten().view(torch.uint8).numpy().data
    return content


def _check_alike(path: Path, meta: StoreMeta, stored: Sequence[StoredStates]) -> None:
    for name, dtype in tensor_dtypes(meta.dtype).items():
        width = stored[0].tensors[name].shape[1:]
        for each in stored:
            tensor = each.tensors[name]
            if tensor.dtype != dtype or tensor.shape[1:] != width:
                raise ValueError(
                    f"{path.name}: {each.sequence_id}: {name} is {tensor.dtype} {list(tensor.shape)}, "
                    f"not {dtype} [..., {', '.join(map(str, width))}]"
                )


def _metadata(meta: StoreMeta, part: ShardPart) -> str:
    """What a shard says of itself. One key: the library does not keep the order of several."""
    return canonical_json({"store": asdict(meta), "shard": part.contents()}).decode()


def map_shard(path: Path, meta: StoreMeta, part: ShardPart) -> dict[str, Tensor]:
    """The tensors of a shard, mapped into memory; their bytes are read when they are used.

    Raises:
        ArtifactError: the file is no safetensors file, belongs to another store or another place of it, or its tensors are
            not those of the manifest; names the file.
    """
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            _check_metadata(path, (file.metadata() or {}).get(METADATA_KEY), meta, part)
            tensors = {name: file.get_tensor(name) for name in tensor_dtypes(meta.dtype)}
    except (SafetensorError, OSError) as error:
        raise store_error(f"a shard can't be read: {error}", path) from error
    except RuntimeError as error:  # torch's, for a map that the system refuses
        raise store_error(f"a shard can't be mapped: {error}", path, hint=MAP_HINT) from error
    _check_tensors(path, tensors, meta, part)
    return tensors


def verify_shard(path: Path, meta: StoreMeta, part: ShardPart) -> None:
    """Everything that `map_shard` checks, size and checksum of the whole file.

    Raises:
        ArtifactError: names the file.
    """
    if not path.exists():
        raise store_error("a shard is missing", path)
    if path.stat().st_size != part.bytes:
        raise store_error(f"a shard has {path.stat().st_size} bytes instead of {part.bytes}", path)
    map_shard(path, meta, part)
    if file_digest(path) != part.sha256:
        raise store_error("a shard's content differs from its checksum", path)


def _check_metadata(path: Path, found: str | None, meta: StoreMeta, part: ShardPart) -> None:
    if found == _metadata(meta, part):
        return
    try:
        values = json.loads(found or "{}")
        same_store, same_place = values["store"] == asdict(meta), values["shard"]["number"] == part.number
    except (KeyError, TypeError, ValueError) as error:
        raise store_error("a file is no shard of hidden states", path) from error
    if not same_store:
        differing = sorted(key for key, value in asdict(meta).items() if values["store"].get(key) != value)
        raise store_error(f"a shard was made from another target or with other settings: {differing}", path)
    if not same_place:
        raise store_error(f"a shard is number {values['shard']['number']} of its store", path)
    raise store_error("the manifest and a shard name different sequences, lengths or weights", path)


def _check_tensors(path: Path, tensors: dict[str, Tensor], meta: StoreMeta, part: ShardPart) -> None:
    dtypes = tensor_dtypes(meta.dtype)
    rows, labels = sum(part.tokens), sum(part.labels)
    for name, tensor in tensors.items():
        if len(tensor) != (labels if name in PER_LABEL else rows):
            raise store_error(f"`{name}` has not as many rows as the manifest says", path)
        if tensor.dtype != dtypes[name]:
            raise store_error(f"`{name}` is {tensor.dtype}, not {dtypes[name]}", path)
    if tensors["aux"].shape[1:] != (len(meta.aux_layer_ids), tensors["last"].shape[1]):
        raise store_error("`aux` has not the layers of the manifest or not the width of `last`", path)
