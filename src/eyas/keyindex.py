"""Where the lines of a journal's keys are, in little memory: about 30 bytes a key, whatever the key's length.

A dict of a million 64-character keys takes some 200 MB. Here a key is its 128-bit digest (a collision among 10^9 keys
has probability 10^-21), and the records of all keys with the same first 16 bits lie in one bytearray.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

_DIGEST_BYTES = 16
_BUCKET_BYTES = 2
_REST_BYTES = _DIGEST_BYTES - _BUCKET_BYTES
_PLACE_BYTES = 6  # 140 TB of journal
_RECORD_BYTES = _REST_BYTES + _PLACE_BYTES


@dataclass(frozen=True)
class Place:
    """The line that counts for a key."""

    offset: int
    """Byte offset in the file."""
    is_error: bool


class KeyIndex:
    """Key -> place of its last answer, or of its last error as long as it has no answer."""

    def __init__(self) -> None:
        self._buckets: list[bytearray | None] = [None] * (1 << 8 * _BUCKET_BYTES)
        self._answers = 0

    def __len__(self) -> int:
        """How many keys have an answer."""
        return self._answers

    def get(self, key: str) -> Place | None:
        digest = _digest(key)
        bucket = self._buckets[int.from_bytes(digest[:_BUCKET_BYTES])]
        at = -1 if bucket is None else _find(bucket, digest[_BUCKET_BYTES:])
        if bucket is None or at < 0:
            return None
        return _place(bucket[at + _REST_BYTES : at + _RECORD_BYTES])

    def put(self, key: str, place: Place) -> None:
        """Note a later line of a key. An error never takes the place of an answer."""
        digest = _digest(key)
        number, rest = int.from_bytes(digest[:_BUCKET_BYTES]), digest[_BUCKET_BYTES:]
        bucket = self._buckets[number]
        if bucket is None:
            bucket = self._buckets[number] = bytearray()
        packed = (place.offset << 1 | place.is_error).to_bytes(_PLACE_BYTES)
        at = _find(bucket, rest)
        if at < 0:
            bucket += rest + packed
            self._answers += not place.is_error
            return
        was_error = bool(bucket[at + _RECORD_BYTES - 1] & 1)
        if was_error or not place.is_error:
            bucket[at + _REST_BYTES : at + _RECORD_BYTES] = packed
            self._answers += was_error and not place.is_error


def _digest(key: str) -> bytes:
    return hashlib.blake2b(key.encode(errors="surrogatepass"), digest_size=_DIGEST_BYTES).digest()


def _find(bucket: bytearray, rest: bytes) -> int:
    """Where the record of a digest starts, -1 if there is none."""
    at = bucket.find(rest)
    while at >= 0 and at % _RECORD_BYTES:  # the same bytes across two records
        at = bucket.find(rest, at + 1)
    return at


def _place(packed: bytes | bytearray) -> Place:
    value = int.from_bytes(packed)
    return Place(value >> 1, bool(value & 1))
