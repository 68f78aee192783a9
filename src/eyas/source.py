"""What identifies the sequences that hidden states belong to: ids, tokens, kinds, weights, and their order."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import polars as pl

from eyas.ragged import Ragged

VERSION = b"eyas.sequences.1\n"


def source_digest(
    sequence_ids: Sequence[str], tokens: Ragged, kinds: Ragged, weights: npt.NDArray[np.float32]
) -> str:
    """SHA-256 (hex) of sequences in their order.

    Each column goes in as its length and its little-endian bytes, so that no two different sets give the same bytes.

    Args:
        sequence_ids: [N]
        tokens: N lists of token ids.
        kinds: N lists of eyas.tokenkinds, as long as the tokens'.
        weights: [N]
    """
    names = [name.encode() for name in sequence_ids]
    digest = hashlib.sha256(VERSION)
    for column in (
        np.array([len(name) for name in names], dtype="<i8"),
        np.frombuffer(b"".join(names), dtype=np.uint8),
        tokens.lengths.astype("<i8"),
        tokens.values.astype("<i4", copy=False),
        kinds.values.astype(np.uint8, copy=False),
        weights.astype("<f4", copy=False),
    ):
        digest.update(len(column).to_bytes(8, "little"))
        digest.update(np.ascontiguousarray(column).data)
    return digest.hexdigest()


def table_digest(table: pl.DataFrame) -> str:
    """source_digest of a sequences table: its columns sequence_id, token_ids, kinds and weight."""
    return source_digest(
        table["sequence_id"].to_list(),
        Ragged.of_column(table["token_ids"], np.int32),
        Ragged.of_column(table["kinds"], np.uint8),
        table["weight"].cast(pl.Float32).to_numpy(),
    )
