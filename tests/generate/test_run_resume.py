"""What failed, what is asked again by the next run, and what never is."""

from __future__ import annotations

import errno
import json
import os
from itertools import count

import pytest

from eyas import paths
from eyas.errors import GateError, JournalError
from eyas.generate.session import open_journal
from tests.generate.asking import in_both_modes
from tests.generate.example import generate_params, profile, write_prompts
from tests.generate.running import (
    PROMPTS,
    errors,
    generate,
    refuse,
    rows,
)
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion, events


@in_both_modes
@pytest.mark.parametrize(
    ("reason", "kind", "again"),
    [
        ("context_length", "permanent", False),
        ("http_400", "permanent", False),
        ("http_500", "transient", True),
        ("finish_reason", "content", True),
    ],
)
def test_the_next_run_asks_again_what_may_succeed(
    server: ScriptedServer, reason: str, kind: str, again: bool, stream: bool
) -> None:
    write_prompts("a", PROMPTS[:30])
    bad = PROMPTS[17]
    server.script = lambda prompt, number: refuse(prompt, reason) if prompt == bad else answer(prompt, number)
    for run in (1, 2):
        done = generate(max_failed_share=0.1, stream=stream)
        assert (done.rows, done.failed) == (29, 1)
        (error,) = errors()
        assert (error["sample_id"], error["kind"], error["reason"]) == ("a:0017", kind, reason)
        assert server.posts[bad] == (run if again else 1)
    with pytest.raises(GateError, match=r"max_failed_share 0\.01"):
        generate(max_failed_share=0.01)
    server.script = answer
    done = generate({"ask_refused_again": True}, max_failed_share=0.1, stream=stream)
    assert (done.rows, done.failed) == (30, 0)
    assert errors() == []


@in_both_modes
def test_case_D01_variation_what_was_aborted_is_never_published(server: ScriptedServer, stream: bool) -> None:
    """Nor what broke off in other ways: each kind of fault stays with one prompt."""
    write_prompts("a", PROMPTS[:30])
    whole = events(completion("x"))
    faults = {
        PROMPTS[5]: Scripted(completion("x", finish_reason="abort")),
        PROMPTS[9]: Scripted(completion("x", finish_reason=None)),
        PROMPTS[14]: Scripted(chunks=whole[:2], eof=True),
        PROMPTS[21]: Scripted({"choices": [], "error": {"code": 502, "message": "x"}}),
        PROMPTS[26]: Scripted(b""),
    }
    server.script = lambda prompt, number: faults.get(prompt, Scripted(completion(prompt)))
    done = generate(max_failed_share=0.2, stream=stream)
    assert (done.rows, done.failed) == (25, 5)
    assert {row["messages"][0]["content"] for row in rows()} == set(PROMPTS[:30]) - set(faults)
    assert [(error["sample_id"], error["kind"]) for error in errors()] == [
        (f"a:{PROMPTS.index(prompt):04}", "transient") for prompt in faults
    ]
    server.script = answer
    assert generate(max_failed_share=0.2, stream=stream).rows == 30


@in_both_modes
def test_case_D19_one_bad_row_costs_one_row(server: ScriptedServer, stream: bool) -> None:
    write_prompts("a", PROMPTS[:100])
    bad = PROMPTS[37]
    server.script = lambda prompt, number: (
        refuse(prompt, "http_400") if prompt == bad else answer(prompt, number)
    )
    done = generate(max_failed_share=0.02, stream=stream)
    assert (done.rows, done.failed) == (99, 1)
    assert [row["messages"][0]["content"] for row in rows()] == [
        prompt for prompt in PROMPTS[:100] if prompt != bad
    ]
    (error,) = errors()
    assert (error["sample_id"], error["reason"], error["detail"]) == ("a:0037", "http_400", "no")
    assert server.posts == dict.fromkeys(PROMPTS[:100], 1)


def test_case_D19_variation_without_leave_to_fail_the_stage_fails_and_keeps_the_rest(
    server: ScriptedServer,
) -> None:
    write_prompts("a", PROMPTS[:100])
    bad = PROMPTS[99]
    server.script = lambda prompt, number: (
        refuse(prompt, "http_500") if prompt == bad else answer(prompt, number)
    )
    with pytest.raises(GateError, match="1 of 100 rows failed"):
        generate(max_failed_share=0.0)
    server.script = answer
    assert generate(max_failed_share=0.0).rows == 100
    assert server.posts.total() <= 100 + 1 + 3  # the bad row, and what was in flight beside it


@in_both_modes
def test_case_H02_resume_is_by_the_set_of_prompts_not_by_their_count(
    server: ScriptedServer, stream: bool
) -> None:
    write_prompts("a", [PROMPTS[index] for index in (0, 1, 3, 5)])
    generate(stream=stream)
    server.posts.clear()
    write_prompts("a", PROMPTS[:6])
    assert generate(stream=stream).rows == 6
    assert server.posts == {PROMPTS[2]: 1, PROMPTS[4]: 1}
    assert [row["messages"][0]["content"] for row in rows()] == PROMPTS[:6]


def test_case_H02_variation_the_order_of_completion_does_not_matter(server: ScriptedServer) -> None:
    """Answers come back in reverse, then half of the entries are lost with the end of the file."""
    write_prompts("a", PROMPTS[:40])
    delays = {prompt: 0.2 - index * 0.005 for index, prompt in enumerate(PROMPTS[:40])}
    server.script = lambda prompt, number: Scripted(completion(prompt), delay_s=delays[prompt])
    generate({"concurrency": 40})
    with open_journal("a", profile(), generate_params()) as journal:
        path = journal.rows_path
    kept = path.read_bytes().splitlines(keepends=True)[-20:]
    path.write_bytes(b"".join(kept))
    (path.parent / "checkpoint").unlink(missing_ok=True)
    server.posts.clear()
    server.script = answer
    assert generate().rows == 40
    left = {json.loads(line)["sample_id"] for line in kept}
    assert set(server.posts) == {PROMPTS[index] for index in range(40) if f"a:{index:04}" not in left}
    assert server.posts == dict.fromkeys(server.posts, 1)


@in_both_modes
def test_case_H08_changed_params_never_mix_rows(server: ScriptedServer, stream: bool) -> None:
    write_prompts("a", PROMPTS[:20])
    server.script = lambda prompt, number: Scripted(completion(prompt, message={"content": "cold"}))
    generate(stream=stream)
    server.script = lambda prompt, number: Scripted(completion(prompt, message={"content": "warm"}))
    generate(stream=stream, temperature=0.7)
    assert {row["content"] for row in rows()} == {"warm"}
    assert server.posts.total() == 40
    generate(stream=stream)
    assert {row["content"] for row in rows()} == {"cold"}
    assert server.posts.total() == 40
    recorded = sorted(
        json.loads(path.read_bytes())["sampling"]["temperature"]
        for path in paths.journal("generate").glob("a/*/fingerprint.json")
    )
    assert recorded == [0.0, 0.7]


def test_case_H08_variation_a_directory_of_other_params_is_refused(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS[:20])
    generate()
    (cold,) = paths.journal("generate").glob("a/*")
    generate(temperature=0.7)
    (warm,) = {*paths.journal("generate").glob("a/*")} - {cold}
    (warm / "fingerprint.json").write_bytes((cold / "fingerprint.json").read_bytes())
    with pytest.raises(JournalError, match="its fingerprint is another one"):
        generate(temperature=0.7)


def test_adding_100_prompts_to_1000_makes_exactly_100_requests(server: ScriptedServer) -> None:
    prompts = [f"prompt {index}" for index in range(1100)]
    write_prompts("a", prompts[:1000])
    assert generate({"concurrency": 64}).rows == 1000
    assert server.posts == dict.fromkeys(prompts[:1000], 1)
    server.posts.clear()
    write_prompts("a", prompts)
    assert generate({"concurrency": 64}).rows == 1100
    assert server.posts == dict.fromkeys(prompts[1000:], 1)


def test_another_temperature_and_back_makes_no_request_the_second_time(server: ScriptedServer) -> None:
    write_prompts("a", PROMPTS)
    for temperature in (0.0, 0.7):
        generate(temperature=temperature)
    assert server.posts.total() == 400
    for temperature in (0.0, 0.7, 0.0):
        assert generate(temperature=temperature).rows == 200
    assert server.posts.total() == 400


def test_a_full_disk_stops_the_run_at_once_and_loses_nothing(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_prompts("a", PROMPTS)
    real, room = os.write, count()

    def write(descriptor: int, data: bytes) -> int:
        if data.startswith(b'{"key"') and next(room) >= 130:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", write)
        with pytest.raises(JournalError, match="No space left on device"):
            generate()
    assert server.posts.total() <= 130 + 4
    before = server.posts.total()
    assert generate().rows == 200
    assert server.posts.total() - before >= 200 - 130
    assert server.posts.total() <= 200 + 4
