from __future__ import annotations

import zlib
from pathlib import Path

import pytest

from eyas.checkpoint import Checkpoint


def test_it_grows_line_by_line_to_the_checksum_of_all_bytes(tmp_path: Path) -> None:
    lines = [b"a\n", "ü\n".encode(), b"x" * 100_000 + b"\n"]
    checkpoint = Checkpoint()
    for line in lines:
        checkpoint = checkpoint.extended(line)
    content = b"".join(lines)
    assert checkpoint == Checkpoint(len(content), zlib.crc32(content))
    checkpoint.write(tmp_path / "c")
    assert Checkpoint.read(tmp_path / "c", len(content)) == checkpoint
    Checkpoint(3, 7).write(tmp_path / "c")  # in place, all of it
    assert Checkpoint.read(tmp_path / "c", 3) == Checkpoint(3, 7)


@pytest.mark.parametrize(
    "content",
    [b"", b"x", b"0000000000000005 0000000", b"0000000000000005 00000007", b"0000000000000011 00000007\n"],
)
def test_torn_and_impossible_ones_cover_nothing(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "c").write_bytes(content)
    assert Checkpoint.read(tmp_path / "c", 10) == Checkpoint()
    assert Checkpoint.read(tmp_path / "none", 10) == Checkpoint()


def test_a_full_disk_is_no_error(tmp_path: Path) -> None:
    Checkpoint(1, 1).write(tmp_path / "no directory" / "c")
