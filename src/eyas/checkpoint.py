"""How far a growing file is known to be sound: a number of bytes and their CRC-32, in a small file beside it."""

from __future__ import annotations

import os
import re
import zlib
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

_FORMAT = re.compile(rb"(\d{16}) ([0-9a-f]{8})\n")


@dataclass(frozen=True)
class Checkpoint:
    """So many bytes at the start of a file have this checksum."""

    size: int = 0
    crc: int = 0

    def extended(self, line: bytes) -> Checkpoint:
        """The checkpoint behind one more line."""
        return Checkpoint(self.size + len(line), zlib.crc32(line, self.crc))

    @classmethod
    def read(cls, path: Path, size: int) -> Self:
        """The checkpoint of a file of `size` bytes; of no bytes if there is none or it makes no sense."""
        try:
            match = _FORMAT.fullmatch(path.read_bytes())
        except FileNotFoundError:
            return cls()
        if match is None or int(match[1]) > size:
            return cls()
        return cls(int(match[1]), int(match[2], 16))

    def write(self, path: Path) -> None:
        """Write in place: a torn checkpoint does not have the checksum of its bytes, so it is never believed.

        A failure is no error: only the speed of the next opening depends on it.
        """
        with suppress(OSError):
            descriptor = os.open(path, os.O_WRONLY | os.O_CREAT, 0o644)
            try:
                os.pwrite(descriptor, f"{self.size:016} {self.crc:08x}\n".encode(), 0)
            finally:
                os.close(descriptor)
