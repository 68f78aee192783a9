"""Conversations of several turns, and how many are open at a time."""

from __future__ import annotations

from itertools import count
from threading import Event
from typing import Any

import pytest

from eyas.generate.conversation import Conversation
from tests.generate.asking import in_both_modes
from tests.generate.example import write_prompts
from tests.generate.running import (
    errors,
    generate,
    refuse,
    rows,
)
from tests.generate.scripted import Scripted, ScriptedServer, answer, completion


def talk(number: int) -> list[dict[str, Any]]:
    return [{"role": "user", "content": f"{number} {part}"} for part in ("first", "second", "third")]


@in_both_modes
def test_the_turns_of_a_conversation_are_asked_one_after_another(
    server: ScriptedServer, stream: bool
) -> None:
    write_prompts("a", [talk(number) for number in range(20)])
    assert generate(stream=stream).rows == 60
    assert server.posts.total() == 60
    history = next(body["messages"] for body in server.bodies if body["messages"][-1]["content"] == "7 third")
    assert [(message["role"], message["content"]) for message in history] == [
        ("user", "7 first"),
        ("assistant", "answer to 7 first"),
        ("user", "7 second"),
        ("assistant", "answer to 7 second"),
        ("user", "7 third"),
    ]
    assert [(row["sample_id"], row["turn"]) for row in rows()[:4]] == [
        ("a:0000", 0),
        ("a:0000", 1),
        ("a:0000", 2),
        ("a:0001", 0),
    ]


@in_both_modes
def test_a_failed_turn_ends_its_conversation_and_keeps_the_turns_before(
    server: ScriptedServer, stream: bool
) -> None:
    write_prompts("a", [talk(number) for number in range(20)])
    server.script = lambda prompt, number: (
        refuse(prompt, "http_500") if prompt == "7 second" else answer(prompt, number)
    )
    done = generate(max_failed_share=0.1, stream=stream)
    assert (done.rows, done.failed) == (58, 2)
    assert [(error["sample_id"], error["turn"], error["reason"]) for error in errors()] == [
        ("a:0007", 1, "http_500"),
        ("a:0007", 2, "earlier_turn_failed"),
    ]
    assert "7 third" not in server.posts
    server.script = answer
    assert generate(max_failed_share=0.1, stream=stream).rows == 60
    assert server.posts["7 first"] == 1
    assert (server.posts["7 second"], server.posts["7 third"]) == (2, 1)


def test_conversations_that_begin_alike_share_their_first_answer(server: ScriptedServer) -> None:
    same = {"role": "user", "content": "same"}
    write_prompts("a", [[same, {"role": "user", "content": f"then {number}"}] for number in range(12)])
    assert generate().rows == 24
    assert server.posts == {"same": 1} | {f"then {number}": 1 for number in range(12)}


@in_both_modes
def test_case_D13_variation_a_run_has_exactly_so_many_requests_in_flight(
    server: ScriptedServer, stream: bool
) -> None:
    release = Event()

    def script(prompt: str, number: int) -> Scripted:
        if server.posts.total() <= 8:  # the first batch
            return answer(prompt, number)
        if server.seen.in_flight == 128:
            release.set()
        return Scripted(completion(prompt), hold=release)

    server.script = script
    write_prompts("a", [f"prompt {number}" for number in range(400)])
    assert generate({"concurrency": 128}, stream=stream).rows == 400
    assert server.most_in_flight == 128
    assert server.posts.total() == 400


@in_both_modes
def test_case_D20_the_table_is_read_as_it_is_asked(
    server: ScriptedServer, monkeypatch: pytest.MonkeyPatch, stream: bool
) -> None:
    """Never more conversations exist than are asked, however long the table; a million: tests/pipeline."""
    made = count()
    ahead: list[int] = []

    class Watched(Conversation):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            ahead.append(next(made) - server.posts.total())

    monkeypatch.setattr("eyas.generate.pending.Conversation", Watched)
    monkeypatch.setattr("eyas.generate.table.SLICE_ROWS", 64)
    write_prompts("a", [f"prompt {number}" for number in range(2000)])
    assert generate({"concurrency": 16}, stream=stream).rows == 2000
    assert len(ahead) == 2000
    assert max(ahead) <= 16
