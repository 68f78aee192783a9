"""The journal: whatever happens to the process or to the end of the file, no recorded answer is lost."""

from __future__ import annotations

import errno
import json
import os
import random
import shutil
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import eyas.journal
from eyas import jsonl
from eyas.errors import InputError, JournalError
from eyas.journal import Journal

FINGERPRINT = {"temperature": 0.5}
ENTRIES: list[dict[str, Any]] = [
    {"key": f"k{index}", "answer": {"text": f"ä{index}\u2028" * index}} for index in range(6)
]


def filled(directory: Path, entries: list[dict[str, Any]] = ENTRIES) -> bytes:
    """A closed journal with these entries; returns the bytes of its rows."""
    with Journal(directory, FINGERPRINT) as journal:
        for entry in entries:
            journal.append(entry)
    return journal.rows_path.read_bytes()


def answers(directory: Path, keys: list[str]) -> dict[str, Any]:
    with Journal(directory, FINGERPRINT) as journal:
        return {key: journal.get(key) for key in keys if key in journal}


def test_entries_come_back_after_reopening(tmp_path: Path) -> None:
    filled(tmp_path / "j")
    with Journal(tmp_path / "j", FINGERPRINT) as journal:
        assert len(journal) == len(ENTRIES)
        assert [journal.get(entry["key"]) for entry in ENTRIES] == ENTRIES
        assert "k9" not in journal
        assert journal.get("k9") is None
    assert json.loads((tmp_path / "j" / "fingerprint.json").read_bytes()) == FINGERPRINT


def test_a_line_starts_with_its_key(tmp_path: Path) -> None:
    assert filled(tmp_path, [{"answer": 1, "key": "a"}]) == b'{"key":"a","answer":1}\n'


def test_the_last_answer_of_a_key_counts(tmp_path: Path) -> None:
    filled(tmp_path, [{"key": "a", "answer": 1}, {"key": "b", "answer": 2}, {"key": "a", "answer": 3}])
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert len(journal) == 2
        assert journal.get("a") == {"key": "a", "answer": 3}


def test_an_error_is_not_done_and_replaces_no_answer(tmp_path: Path) -> None:
    failed = {"key": "a", "error": {"reason": "abort"}}
    filled(
        tmp_path,
        [failed, {"key": "b", "answer": 1, "error": None}, {"key": "b", "error": {"reason": "late"}}],
    )
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert "a" not in journal
        assert journal.get("a") is None
        assert journal.error("a") == failed
        assert journal.get("b") == {"key": "b", "answer": 1, "error": None}
        assert journal.error("b") is None
        journal.append({"key": "a", "answer": 2})
        assert journal.get("a") == {"key": "a", "answer": 2}
        assert journal.error("a") is None


@settings(max_examples=60)
@given(data=st.data(), garbage=st.binary(max_size=12).filter(lambda tail: b"\n" not in tail))
def test_a_file_cut_at_any_byte_keeps_every_whole_line(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, garbage: bytes
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    content = filled(directory)
    cut = data.draw(st.integers(0, len(content)))
    torn = content[:cut] + (garbage if content[:cut].endswith(b"\n") or not cut else b"")
    (directory / "rows.jsonl").write_bytes(torn)
    # A line is whole from its last brace on: its newline may be missing.
    whole = sum(cut >= end for end in ends_of_objects(content))
    with Journal(directory, FINGERPRINT) as journal:
        assert [journal.get(entry["key"]) for entry in ENTRIES[:whole]] == ENTRIES[:whole]
        assert len(journal) == whole
        journal.append({"key": "new", "answer": 1})
    lines = (directory / "rows.jsonl").read_bytes().splitlines(keepends=True)
    assert [json.loads(line) for line in lines] == [*ENTRIES[:whole], {"key": "new", "answer": 1}]
    shutil.rmtree(directory)


@pytest.mark.parametrize("cut", [b'{"sample_id":"7","mess', b'{"key":"7","answer":"\xe2\x80', b"\x00" * 50])
def test_case_G02_a_torn_last_line_is_cut_off_and_its_sample_is_open_again(
    tmp_path: Path, cut: bytes
) -> None:
    whole = filled(tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(whole + cut)
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert rows.read_bytes() == whole
        assert "7" not in journal
        assert [journal.get(entry["key"]) for entry in ENTRIES] == ENTRIES
        journal.append({"key": "7", "answer": "again"})
    assert rows.read_bytes() == whole + b'{"key":"7","answer":"again"}\n'


def test_case_G02_variation_killed_again_in_the_first_line_after_a_repair(tmp_path: Path) -> None:
    whole = filled(tmp_path, ENTRIES[:1])
    rows = tmp_path / "rows.jsonl"
    for byte in range(1, len(whole)):
        rows.write_bytes(whole + whole[: byte - 1])  # never the last brace: that line would be whole
        assert answers(tmp_path, ["k0"]) == {"k0": ENTRIES[0]}
        assert rows.read_bytes() == whole


@pytest.mark.parametrize("end", [b"", b" ", b"\r"])
def test_case_G04_a_whole_last_line_without_newline_counts_and_gets_one(tmp_path: Path, end: bytes) -> None:
    whole = filled(tmp_path)
    line = '{"key":"7","sample_id":"7","answer":"é"}'.encode() + end
    rows = tmp_path / "rows.jsonl"
    rows.write_bytes(whole + line)
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert journal.get("7") == {"key": "7", "sample_id": "7", "answer": "é"}
        assert len(journal) == len(ENTRIES) + 1
        journal.append({"key": "8", "answer": 1})
    assert rows.read_bytes() == whole + line + b'\n{"key":"8","answer":1}\n'


def test_case_G04_variation_the_only_line_is_an_error_without_newline(tmp_path: Path) -> None:
    filled(tmp_path, [])
    (tmp_path / "rows.jsonl").write_bytes(b'{"key":"a","error":{"reason":"abort"}}')
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert "a" not in journal
        assert journal.error("a") == {"key": "a", "error": {"reason": "abort"}}


def test_case_G10_a_huge_line_is_one_write_and_comes_back_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = "é\u2028" * 6_000_000  # 30 MB of UTF-8
    writes: list[int] = []
    write = os.write

    def counted(descriptor: int, data: bytes) -> int:
        writes.append(len(data))
        return write(descriptor, data)

    with Journal(tmp_path, FINGERPRINT) as journal:
        monkeypatch.setattr(os, "write", counted)
        journal.append({"key": "a", "answer": content})
        journal.append({"key": "b", "answer": 1})
        monkeypatch.undo()
    assert len(writes) == 2
    assert writes[0] > 30_000_000
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert journal.get("a") == {"key": "a", "answer": content}
        assert journal.get("b") == {"key": "b", "answer": 1}


def test_case_G10_variation_a_huge_line_is_torn(tmp_path: Path) -> None:
    whole = filled(tmp_path, ENTRIES[:2])
    torn = b'{"key":"a","answer":"' + "é".encode() * 10_000_000 + b"\xc3"
    (tmp_path / "rows.jsonl").write_bytes(whole + torn)
    assert answers(tmp_path, ["k0", "k1", "a"]) == {"k0": ENTRIES[0], "k1": ENTRIES[1]}
    assert (tmp_path / "rows.jsonl").read_bytes() == whole


def ends_of_objects(content: bytes) -> list[int]:
    ends, offset = [], 0
    for line in content.split(b"\n")[:-1]:
        ends.append(offset + len(line))
        offset += len(line) + 1
    return ends


def test_a_torn_tail_longer_than_a_read_block_is_cut_off(tmp_path: Path) -> None:
    content = filled(tmp_path)
    with (tmp_path / "rows.jsonl").open("ab") as file:
        file.write(b'{"key":"big","answer":"' + b"x" * 200_000)
    assert answers(tmp_path, ["k5", "big"]) == {"k5": ENTRIES[5]}
    assert (tmp_path / "rows.jsonl").read_bytes() == content


@pytest.mark.parametrize(
    "broken", [b'{"key":"x","answ', b'{"answer":1}', b"7", b"", b'{"key":"a","key":"b"}', b"\x00\x00"]
)
def test_a_broken_line_that_is_not_the_last_stops_and_is_named(tmp_path: Path, broken: bytes) -> None:
    content = filled(tmp_path)
    lines = content.split(b"\n")
    damaged = b"\n".join([*lines[:3], broken, *lines[3:]])
    (tmp_path / "rows.jsonl").write_bytes(damaged)
    with pytest.raises(JournalError, match="damaged") as caught:
        Journal(tmp_path, FINGERPRINT)
    assert caught.value.where == f"{tmp_path / 'rows.jsonl'}:4"
    assert (tmp_path / "rows.jsonl").read_bytes() == damaged
    (tmp_path / "rows.jsonl").write_bytes(content)
    Journal(tmp_path, FINGERPRINT).close()  # the refusal gave the lock back


def test_lines_before_the_checkpoint_are_not_parsed_and_yet_every_changed_byte_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = filled(tmp_path)
    parsed: list[bytes] = []
    parse = jsonl.parse

    def watched(line: bytes, where: str) -> Any:
        parsed.append(line)
        return parse(line, where)

    monkeypatch.setattr(jsonl, "parse", watched)
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert len(journal) == len(ENTRIES)
    assert parsed == []
    chance = random.Random(5)
    for _ in range(40):
        at = chance.randrange(len(content) - 1)
        damaged = bytearray(content)
        damaged[at] ^= 1 << chance.randrange(8)
        (tmp_path / "rows.jsonl").write_bytes(damaged)
        with suppress(JournalError), Journal(tmp_path, FINGERPRINT):
            pass  # some flips leave valid JSON: then it is the journal that is on the disk
        assert len(parsed) > 0
        parsed.clear()
        (tmp_path / "rows.jsonl").write_bytes(content)
        (tmp_path / "checkpoint").unlink()
        Journal(tmp_path, FINGERPRINT).close()
        parsed.clear()


def test_a_line_broken_behind_its_start_is_named_although_the_checkpoint_covers_it(tmp_path: Path) -> None:
    content = filled(tmp_path)
    rows = tmp_path / "rows.jsonl"
    broken = content.replace(b'"k3","answer":{', b'"k3","answer":[')
    assert len(broken) == len(content) != content.count(b"[")
    rows.write_bytes(broken)
    with pytest.raises(JournalError, match="damaged") as caught:
        Journal(tmp_path, FINGERPRINT)
    assert caught.value.where == f"{rows}:4"


def test_a_line_that_a_person_removed_is_simply_not_there(tmp_path: Path) -> None:
    lines = filled(tmp_path).splitlines(keepends=True)
    (tmp_path / "rows.jsonl").write_bytes(b"".join(lines[:2] + lines[3:]))
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert "k2" not in journal
        assert [journal.get(f"k{index}") for index in (0, 1, 3, 4, 5)] == [*ENTRIES[:2], *ENTRIES[3:]]


@pytest.mark.parametrize(
    "checkpoint", [b"", b"garbage", b"0000000000000010 00000000\n", b"9" * 16 + b" 00000000\n"]
)
def test_a_checkpoint_that_does_not_fit_costs_only_time(tmp_path: Path, checkpoint: bytes) -> None:
    filled(tmp_path)
    (tmp_path / "checkpoint").write_bytes(checkpoint)
    with Journal(tmp_path, FINGERPRINT) as journal:
        assert [journal.get(entry["key"]) for entry in ENTRIES] == ENTRIES


def test_an_error_that_is_not_the_second_key_is_an_error_at_every_opening(tmp_path: Path) -> None:
    filled(tmp_path, [])
    (tmp_path / "rows.jsonl").write_bytes(b'{"key":"a","answer":1,"error":{"reason":"x"}}\n')
    for _ in range(3):
        with Journal(tmp_path, FINGERPRINT) as journal:
            assert "a" not in journal
            assert journal.error("a") is not None


def test_errors_stand_at_the_start_of_their_line(tmp_path: Path) -> None:
    assert filled(tmp_path, [{"sample_id": "s", "error": {"reason": "x"}, "key": "a"}]) == (
        b'{"key":"a","error":{"reason":"x"},"sample_id":"s"}\n'
    )


@settings(max_examples=40)
@given(
    entries=st.lists(
        st.tuples(st.text(st.characters(exclude_categories=["Cs"]), max_size=3), st.booleans()), max_size=12
    ),
    cuts=st.sets(st.integers(0, 12)),
)
def test_any_order_of_answers_and_errors_under_any_keys_across_reopenings(
    tmp_path_factory: pytest.TempPathFactory, entries: list[tuple[str, bool]], cuts: set[int]
) -> None:
    directory = tmp_path_factory.mktemp("journal")
    expected_answers: dict[str, dict[str, Any]] = {}
    expected_errors: dict[str, dict[str, Any]] = {}
    journal = Journal(directory, FINGERPRINT)
    for number, (key, failed) in enumerate(entries):
        if number in cuts:
            journal.close()
            journal = Journal(directory, FINGERPRINT)
        entry: dict[str, Any] = {"key": key, "number": number} | ({"error": {"kind": "x"}} if failed else {})
        journal.append(entry)
        (expected_errors if failed else expected_answers)[key] = entry
        for known in {key for key, _ in entries}:
            assert journal.get(known) == expected_answers.get(known)
            assert journal.error(known) == (None if known in expected_answers else expected_errors.get(known))
        assert len(journal) == len(expected_answers)
    journal.close()
    shutil.rmtree(directory)


def test_a_key_with_half_a_character_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with Journal(tmp_path, FINGERPRINT) as journal:
        with pytest.raises(InputError, match="half a character"):
            journal.append({"key": "a\ud83d", "answer": 1})
        assert journal.size == 0


def test_a_failing_disk_is_reported_by_the_next_sync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    journal = Journal(tmp_path, FINGERPRINT)
    journal.append(ENTRIES[0])
    monkeypatch.setattr(os, "fsync", broken)
    with pytest.raises(JournalError, match="Input/output error"):
        journal.sync()
    monkeypatch.undo()
    journal.close()
    assert answers(tmp_path, ["k0"]) == {"k0": ENTRIES[0]}


def test_nothing_is_appended_to_a_line_that_could_not_be_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = os.write

    def half(descriptor: int, data: bytes) -> int:
        if len(data) < 40:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(descriptor, data[:20])

    def stuck(descriptor: int, size: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    with Journal(tmp_path, FINGERPRINT) as journal:
        journal.append(ENTRIES[1])
        with monkeypatch.context() as patch:
            patch.setattr(os, "write", half)
            patch.setattr(os, "ftruncate", stuck)
            with pytest.raises(JournalError, match="No space left"):
                journal.append({"key": "a", "answer": "x" * 20})
        with pytest.raises(JournalError, match="half-way"):
            journal.append(ENTRIES[2])
    assert answers(tmp_path, ["k1", "a", "k2"]) == {"k1": ENTRIES[1]}


def test_syncing_by_time_does_not_wait_for_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    go_on = threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        assert go_on.wait(20)
        fsync(descriptor)

    monkeypatch.setattr(eyas.journal, "SYNC_INTERVAL_S", 0.0)
    with Journal(tmp_path, FINGERPRINT) as journal:
        monkeypatch.setattr(os, "fsync", slow)
        for entry in ENTRIES:
            journal.append(entry)  # each would wait for ever
        assert not (tmp_path / "checkpoint").exists()
        go_on.set()
    assert (tmp_path / "checkpoint").read_bytes().startswith(f"{journal.size:016} ".encode())


def test_a_directory_that_can_not_be_made_is_a_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(JournalError, match="can't be written: Not a directory") as caught:
        Journal(tmp_path / "file" / "j", FINGERPRINT)
    assert "make its folder writable" in str(caught.value)


def test_another_fingerprint_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    for content in ((tmp_path / "fingerprint.json").read_bytes(), b"{"):
        (tmp_path / "fingerprint.json").write_bytes(content)
        with pytest.raises(JournalError, match="fingerprint") as caught:
            Journal(tmp_path, {"temperature": 0.6})
        assert caught.value.exit_code == 1
        assert "move the folder away" in str(caught.value)


def test_a_second_writer_is_refused_with_the_pid_of_the_first(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from eyas.journal import Journal
journal = Journal(Path(sys.argv[1]), {"temperature": 0.5})
print("open", flush=True)
sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as first:
        assert first.stdin is not None
        assert first.stdout is not None
        assert first.stdout.readline() == b"open\n"
        with pytest.raises(JournalError, match=f"pid {first.pid}") as caught:
            Journal(tmp_path, FINGERPRINT)
        assert caught.value.exit_code == 75
        first.kill()
        first.wait()
    Journal(tmp_path, FINGERPRINT).close()


def test_a_full_disk_stops_clearly_and_corrupts_nothing(tmp_path: Path) -> None:
    # RLIMIT_FSIZE writes a part of a line and then fails, as a full disk does.
    program = """
import resource, sys
from pathlib import Path
import eyas.journal
from eyas import jsonl
from eyas.errors import InputError, JournalError
from eyas.journal import Journal
resource.setrlimit(resource.RLIMIT_FSIZE, (5000, resource.RLIM_INFINITY))
with Journal(Path(sys.argv[1]), {"temperature": 0.5}) as journal:
    journal.append({"key": "small", "answer": 1})
    try:
        journal.append({"key": "large", "answer": "x" * 9000})
    except JournalError as error:
        print(error)
    assert "large" not in journal
    journal.append({"key": "after", "answer": 2})
"""
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True, timeout=30
    )
    assert "can't be written" in done.stdout
    expected = b'{"key":"small","answer":1}\n{"key":"after","answer":2}\n'
    assert (tmp_path / "rows.jsonl").read_bytes() == expected


def test_kill_9_at_random_moments_loses_no_acknowledged_entry(tmp_path: Path) -> None:
    program = """
import sys
from pathlib import Path
from eyas.journal import Journal
with Journal(Path(sys.argv[1]), {"temperature": 0.5}) as journal:
    for index in range(int(sys.argv[2]), 10**9):
        journal.append({"key": str(index), "answer": "ö" * (index * 37 % 5000)})
        sys.stdout.write(f"{index}\\n")
        sys.stdout.flush()
"""
    chance = random.Random(11)
    acknowledged: set[int] = set()
    for round_number in range(8):
        start = round_number * 1_000_000
        output = tmp_path / f"acknowledged-{round_number}"
        with output.open("wb") as stdout:
            writer = subprocess.Popen(
                [sys.executable, "-c", program, str(tmp_path / "j"), str(start)], stdout=stdout
            )
            while not output.stat().st_size:
                assert writer.poll() is None
                time.sleep(0.005)
            time.sleep(chance.uniform(0, 0.15))
            writer.kill()
            writer.wait()
        acknowledged |= {int(line) for line in output.read_bytes().split(b"\n")[:-1]}
    assert len(acknowledged) > 100
    with Journal(tmp_path / "j", FINGERPRINT) as journal:
        for index in acknowledged:
            entry = journal.get(str(index))
            assert entry is not None
            assert entry["answer"] == "ö" * (index * 37 % 5000)
        assert len(acknowledged) <= len(journal) <= len(acknowledged) + 8


def test_closing_twice_is_harmless_and_frees_the_lock(tmp_path: Path) -> None:
    journal = Journal(tmp_path, FINGERPRINT)
    journal.close()
    journal.close()
    Journal(tmp_path, FINGERPRINT).close()


def test_the_lock_is_not_inherited_by_a_started_process(tmp_path: Path) -> None:
    program = "import sys; print(flush=True); sys.stdin.read()"
    with Journal(tmp_path, FINGERPRINT):
        child = subprocess.Popen(
            [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, close_fds=False
        )
        assert child.stdout is not None
        child.stdout.readline()
    try:
        Journal(tmp_path, FINGERPRINT).close()
    finally:
        child.communicate()
