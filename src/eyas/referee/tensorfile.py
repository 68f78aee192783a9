"""Safetensors files read with NumPy alone, bfloat16 included, row by row where a tensor is large.

The format: eight bytes with the length of a JSON header, the header, then the tensors' bytes
(huggingface/safetensors, "Format"). NumPy has no bfloat16: its 16 bits are the upper half of a float32.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from eyas.errors import ArtifactError

Floats = NDArray[np.float32]
Integers = NDArray[np.int64]

DTYPES = {
    "F64": "<f8",
    "F32": "<f4",
    "F16": "<f2",
    "BF16": "<u2",
    "I64": "<i8",
    "I32": "<i4",
    "I16": "<i2",
    "I8": "i1",
    "U8": "u1",
    "BOOL": "?",
}
FLOATS = ("F64", "F32", "F16", "BF16")
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"


class Table(Protocol):
    """Rows of floats by number: an array, or a tensor of a file."""

    @property
    def shape(self) -> tuple[int, ...]: ...

    def __getitem__(self, rows: Any) -> Any: ...


@dataclass(frozen=True)
class StoredTensor:
    """A tensor of a file, mapped into memory; `tensor[rows]` converts these rows alone."""

    name: str
    dtype: str
    """As the file names it: F32, BF16, I64, ..."""
    raw: NDArray[Any]
    """In the stored shape; bfloat16 as 16 unsigned bits."""

    @property
    def shape(self) -> tuple[int, ...]:
        return self.raw.shape

    def __getitem__(self, rows: Any) -> NDArray[Any]:
        return _converted(self.raw[rows], self.dtype)

    def array(self) -> NDArray[Any]:
        """All of it: float32 for floats, int64 for integers, bool for booleans."""
        return _converted(self.raw, self.dtype)


def read_tensors(directory: Path) -> dict[str, StoredTensor]:
    """The tensors of a folder, in one file or in those of an index; nothing is read but the headers.

    Raises:
        ArtifactError: a file is missing, damaged, or holds a type that is not known here.
    """
    index = directory / INDEX
    if not index.exists():
        return read_file(directory / WEIGHTS)
    try:
        weight_map: dict[str, str] = json.loads(index.read_bytes())["weight_map"]
    except (OSError, ValueError, KeyError) as error:
        raise ArtifactError(f"the index of the weights can't be read: {error}", where=str(index)) from error
    files = {name: read_file(directory / name) for name in sorted(set(weight_map.values()))}
    missing = [name for name, file in weight_map.items() if name not in files[file]]
    if missing:
        raise ArtifactError(f"the index names {missing[0]}, which its file does not hold", where=str(index))
    return {name: files[file][name] for name, file in weight_map.items()}


def read_file(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file.

    Raises:
        ArtifactError: it is missing, damaged, or holds a type that is not known here.
    """
    try:
        data = np.memmap(path, dtype=np.uint8, mode="r")
        start = 8 + int(data[:8].view("<u8")[0])
        header = json.loads(data[8:start].tobytes())
        return {
            name: _tensor(name, entry, data, start)
            for name, entry in header.items()
            if name != "__metadata__"
        }
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise ArtifactError(
            f"the weights can't be read: {error}", where=str(path), hint="export or fetch the folder again"
        ) from error


def _tensor(name: str, entry: dict[str, Any], data: NDArray[np.uint8], start: int) -> StoredTensor:
    first, last = entry["data_offsets"]
    if entry["dtype"] not in DTYPES:
        raise ValueError(f"{name} is of type {entry['dtype']}")
    if start + last > len(data):
        raise ValueError(f"{name} ends behind the end of the file")
    flat = data[start + first : start + last].view(DTYPES[entry["dtype"]])
    return StoredTensor(name, entry["dtype"], flat.reshape(entry["shape"]))


def _converted(raw: NDArray[Any], dtype: str) -> NDArray[Any]:
    if dtype == "BF16":
        return (raw.astype(np.uint32) << 16).view(np.float32)
    if dtype in FLOATS:
        return raw.astype(np.float32)
    return raw.astype(bool) if dtype == "BOOL" else raw.astype(np.int64)
