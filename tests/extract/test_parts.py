from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from eyas.extract import parts as parts_module
from eyas.extract.parts import Part, Parts, Writer
from eyas.hashing import file_digest
from eyas.shardfile import write_shard
from tests.extract.stored import facts, meta, parts_in, stored

NAMES = ["a:0", "a:1"]


@pytest.fixture
def parts(tmp_path: Path) -> Parts:
    """With shard 3 finished."""
    made = parts_in(tmp_path / "train")
    made.write(3, stored(*NAMES), facts())
    return made


def test_a_finished_shard_is_found(parts: Parts) -> None:
    part = parts.verified(3, NAMES)
    assert part is not None
    assert part.shard.sha256 == file_digest(parts.path(3))
    assert part.facts["largest"] == [1.0, 2.0, 0.5]
    assert parts.verified(2, NAMES) is None
    assert sorted(path.name for path in parts.folder.iterdir()) == [
        "shard-00003.json",
        "shard-00003.safetensors",
    ]


def no_record(parts: Parts) -> None:
    """Killed between the shard and its record."""
    parts.record(3).unlink()


def torn_record(parts: Parts) -> None:
    content = parts.record(3).read_bytes()
    parts.record(3).write_bytes(content[: len(content) // 2])


def other_record(parts: Parts) -> None:
    parts.record(3).write_text('{"shard": {"number": 3}, "facts": {}, "boot": null}')


def empty_record(parts: Parts) -> None:
    parts.record(3).write_bytes(b"")


def no_shard(parts: Parts) -> None:
    parts.path(3).unlink()


def truncated(parts: Parts) -> None:
    content = parts.path(3).read_bytes()
    parts.path(3).write_bytes(content[:-1])


def broken_header(parts: Parts) -> None:
    content = bytearray(parts.path(3).read_bytes())
    content[9] ^= 0xFF
    parts.path(3).write_bytes(content)


def of_other_settings(parts: Parts) -> None:
    """The same length, another store."""
    record = json.loads(parts.record(3).read_bytes())
    other = write_shard(
        parts.path(3), meta("float32").__class__(**{**vars(meta()), "target_name": "tidy"}), 3, stored(*NAMES)
    )
    record["shard"]["bytes"] = other.bytes
    parts.record(3).write_text(json.dumps(record))


@pytest.mark.parametrize(
    "damage",
    [
        no_record,
        torn_record,
        other_record,
        empty_record,
        no_shard,
        truncated,
        broken_header,
        of_other_settings,
    ],
)
def test_a_damaged_shard_is_computed_again(parts: Parts, damage: Callable[[Parts], None]) -> None:
    damage(parts)
    assert parts.verified(3, NAMES) is None
    parts.write(3, stored(*NAMES), facts())
    assert parts.verified(3, NAMES) is not None


def test_a_shard_of_other_sequences_is_computed_again(parts: Parts) -> None:
    assert parts.verified(3, ["a:0", "a:2"]) is None
    assert parts.verified(3, ["a:0"]) is None


@pytest.mark.parametrize("boot", ["another", None])
def test_after_a_crash_of_the_machine_the_checksum_decides(
    parts: Parts, monkeypatch: pytest.MonkeyPatch, boot: str | None
) -> None:
    """What was synced should be whole then, but disks and network file systems do not always keep their word."""
    monkeypatch.setattr(parts_module, "boot_id", lambda: boot)
    assert parts.verified(3, NAMES) is not None
    content = bytearray(parts.path(3).read_bytes())
    content[-40:] = bytes(40)  # the size and the header are right
    parts.path(3).write_bytes(content)
    assert parts.verified(3, NAMES) is None


def test_without_a_crash_nothing_is_read_but_the_header(
    parts: Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(path: Path) -> str:
        raise AssertionError("a checksum of terabytes")

    monkeypatch.setattr("eyas.shardfile.file_digest", never)
    assert parts.verified(3, NAMES) is not None


def test_the_writer_computes_on_and_holds_one_shard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    release, begun, order = threading.Event(), threading.Event(), []
    write = Parts.write

    def slow(self: Parts, number: int, *arguments: object) -> Part:
        begun.set()
        assert release.wait(10)
        order.append(f"written {number}")
        return write(self, number, *arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(Parts, "write", slow)
    parts = parts_in(tmp_path)
    sizes: list[int] = []
    with Writer(sizes.append) as writer:
        writer.submit(parts, 0, stored("a"), facts())
        assert begun.wait(10)
        order.append("computed 1")  # while shard 0 is being written
        threading.Timer(0.05, release.set).start()
        writer.submit(parts, 1, stored("b"), facts())  # waits for shard 0
        order.append("submitted 1")
        writer.wait()
    assert order[:3] == ["computed 1", "written 0", "submitted 1"]
    assert sizes == [parts.path(number).stat().st_size for number in (0, 1)]


def test_a_run_that_stops_finishes_the_shard_that_is_written(tmp_path: Path) -> None:
    parts = parts_in(tmp_path)

    def run() -> None:
        with Writer(lambda size: None) as writer:
            writer.submit(parts, 0, stored("a"), facts())
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run()
    assert parts.verified(0, ["a"]) is not None


def test_an_error_of_the_writer_reaches_the_run(tmp_path: Path) -> None:
    parts = parts_in(tmp_path / "file")
    (tmp_path / "file").write_text("no folder")
    with Writer(lambda size: None) as writer:
        writer.submit(parts, 0, stored("a"), facts())
        with pytest.raises(OSError, match="file"):
            writer.submit(parts, 1, stored("b"), facts())
