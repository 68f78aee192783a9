"""Lists of token ids in lines of JSON, cut out and read all at once: a JSON parser spends most of its time on them.

Only what is written plainly is cut: digits with single commas between them, as eyas writes it. A mark stands in its place
while the rest of the line is decoded, so that a list counts only where the mark comes out as the value of its field:
a text or another object may well hold the same characters.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import polars as pl

MARK = -(1 << 31)
"""No list that is cut holds it: it has a sign."""
MAX_DIGITS = 8
"""Of an id: they are read as one 64-bit word."""
ROWS = 64
"""Lists read at a time: what is made of them stays in the processor's cache."""
IntArray = npt.NDArray[Any]

_MARK = str(MARK).encode()
_COMMA, _ZERO, _NINE = b",09"
_U64 = np.uint64
_DIGITS_OF = np.array(
    [(0x0F0F0F0F0F0F0F0F << 8 * (8 - length)) & (2**64 - 1) for length in range(MAX_DIGITS + 1)], dtype=_U64
)
"""By the length of a number: what is left of eight bytes that end with it, so that its digits are values of bytes."""


@dataclass(frozen=True)
class CutLines:
    """Lines without lists of ids."""

    lines: list[bytes]
    lists: dict[str, list[bytes]]
    """By field what stood between the brackets; empty where nothing was cut."""


def cut(lines: Sequence[bytes], fields: Sequence[str]) -> CutLines:
    """Put MARK into the first list that seems to be each field's; fields in the order in which they stand in a line."""
    keys = [f'"{field}":['.encode() for field in fields]
    lists: list[list[bytes]] = [[] for _ in fields]
    short = []
    for line in lines:
        parts: list[bytes] = []
        behind = 0
        for key, found in zip(keys, lists, strict=True):
            start = line.find(key, behind) + len(key)
            end = line.find(b"]", start)
            if start < len(key) or end <= start:
                found.append(b"")
                continue
            found.append(line[start:end])
            parts += (line[behind:start], _MARK)
            behind = end
        short.append(b"".join([*parts, line[behind:]]))
    return CutLines(short, dict(zip(fields, lists, strict=True)))


def ids_of(lists: Sequence[bytes]) -> pl.Series | None:
    """The ids of each list, TOKEN_IDS; null for empty ones. None if one of them is not written plainly."""
    ids: list[IntArray] = [np.empty(0, np.int32)]
    counts = np.zeros(len(lists), np.int64)
    places = np.flatnonzero(np.fromiter(map(len, lists), np.int64, len(lists)))
    for part in np.split(places, range(ROWS, len(places), ROWS)):
        texts = [lists[place] for place in part]
        if texts:
            numbers = _numbers_of(texts)
            if numbers is None:
                return None
            ids.append(numbers.ids)
            counts[part] = numbers.counts
    table = pl.DataFrame({"start": np.cumsum(counts) - counts, "count": counts})
    whole = pl.lit(pl.Series(np.concatenate(ids)).implode())
    return table.select(
        pl.when(pl.col("count") > 0).then(whole.list.slice(pl.col("start"), pl.col("count")))
    ).to_series()


@dataclass(frozen=True)
class _Numbers:
    """The ids of some lists one behind the other, and how many each has."""

    ids: IntArray
    counts: IntArray


def _numbers_of(texts: Sequence[bytes]) -> _Numbers | None:
    text = np.frombuffer(b"0" * MAX_DIGITS + b",".join(texts) + b",", np.uint8)
    commas = np.flatnonzero(text == _COMMA)
    starts = np.concatenate([[MAX_DIGITS], commas[:-1] + 1])
    if not _plain(text, commas, starts):
        return None
    ends = MAX_DIGITS - 1 + np.cumsum([len(text) + 1 for text in texts])  # the comma behind each list
    counts = np.diff(np.searchsorted(commas, ends), prepend=-1)
    return _Numbers(_values(text, commas, commas - starts), counts)


def _plain(text: IntArray, commas: IntArray, starts: IntArray) -> bool:
    """Digits and commas only, no number too long, missing, or with a zero in front."""
    lengths = commas - starts
    zeros = text[starts] == _ZERO
    return bool(
        text.max() <= _NINE
        and np.count_nonzero(text < _ZERO) == len(commas)
        and lengths.min() > 0
        and lengths.max() <= MAX_DIGITS
        and not (zeros & (lengths > 1)).any()
    )


def _values(text: IntArray, commas: IntArray, lengths: IntArray) -> IntArray:
    """Int32 of the digits before each comma: neighbours are added up in pairs, fours and eights within a word."""
    words = np.ndarray((len(text) - MAX_DIGITS + 1,), dtype="<u8", buffer=text, strides=(1,))
    found = words[commas - MAX_DIGITS]
    found &= _DIGITS_OF[lengths]
    for bits, mask in ((8, 0x00FF00FF00FF00FF), (16, 0x0000FFFF0000FFFF), (32, 0x00000000FFFFFFFF)):
        found *= _U64((10 ** (bits // 8) << bits) + 1)
        found >>= _U64(bits)
        found &= _U64(mask)
    return np.asarray(found, dtype=np.int32)
