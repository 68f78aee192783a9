"""The journal: whatever happens to the process or to the end of the file, no recorded answer is lost."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.errors import JournalError
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


@settings(max_examples=150, deadline=None)
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


def test_another_fingerprint_is_refused(tmp_path: Path) -> None:
    filled(tmp_path)
    with pytest.raises(JournalError, match="fingerprint"):
        Journal(tmp_path, {"temperature": 0.6})


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
from eyas.errors import JournalError
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
