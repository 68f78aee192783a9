"""Asking conversations turn by turn, compared with a plain model of what must come out."""

from __future__ import annotations

import gc
import json
import random
import shutil
import tempfile
import weakref
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as forall
from hypothesis import strategies as st

from eyas.errors import GateError
from eyas.generate.conversation import Conversation
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.journal import Journal
from eyas.turns import OPEN
from tests.generate.talking import (
    Message,
    answer,
    answered,
    call,
    given,
    open_journal,
    refused,
    responses,
    tool,
    user,
    write_table,
)


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    with open_journal(tmp_path / "journal") as opened:
        yield opened


def begin(directory: Path, journal: Journal, *conversations: Sequence[Message]) -> list[Conversation]:
    table = write_table(directory / "talk.parquet", *conversations)
    return list(responses(table, journal).pending())


def ask(conversation: Conversation) -> ChatRequest:
    request = conversation.next()
    assert request is not None
    return request


def test_turns_are_asked_one_behind_the_other(tmp_path: Path, journal: Journal) -> None:
    [talk] = begin(tmp_path, journal, [user("one"), user("two")])
    first = ask(talk)
    assert talk.next() is first  # until it is known what became of it
    talk.add(answer("so"))
    second = ask(talk)
    assert [(request.sample_id, request.turn) for request in (first, second)] == [
        ("talk:0000", 0),
        ("talk:0000", 1),
    ]
    assert second.messages == [user("one"), given("so"), user("two")]
    assert first.key != second.key
    talk.add(answer("end"))
    assert talk.next() is None


def test_the_key_of_a_turn_is_that_of_its_messages(tmp_path: Path, journal: Journal) -> None:
    """Another answer makes another history, and so another question."""
    keys = []
    for text in ("so", "so", "not so"):
        [talk] = begin(tmp_path, journal, [user("one"), user("two")])
        ask(talk)
        talk.add(answer(text))
        keys.append(ask(talk).key)
    assert keys[0] == keys[1] != keys[2]


def test_tools_are_part_of_every_request_and_its_key(tmp_path: Path, journal: Journal) -> None:
    tools = [{"function": {"name": "look"}, "type": "function"}]
    [plain] = begin(tmp_path, journal, [user("one"), user("two")])
    table = write_table(tmp_path / "t.parquet", [user("one"), user("two")], tools=json.dumps(tools))
    [talk] = responses(table, journal).pending()
    assert ask(talk).tools == tools
    assert ask(talk).key != ask(plain).key
    talk.add(answer())
    assert ask(talk).tools == tools


def test_answered_turns_are_history_and_not_asked_again(tmp_path: Path, journal: Journal) -> None:
    conversation = [user("one"), user("two"), user("three")]
    [talk] = begin(tmp_path, journal, conversation)
    for text in ("a", "b"):
        journal.append(answered(ask(talk), answer(text)))
        talk.add(answer(text))
    [resumed] = begin(tmp_path, journal, conversation)
    request = ask(resumed)
    assert request.turn == 2
    assert request.key == ask(talk).key
    assert request.messages == [user("one"), given("a"), user("two"), given("b"), user("three")]


def test_an_answer_that_the_journal_holds_is_not_kept_in_memory_too(tmp_path: Path, journal: Journal) -> None:
    first, second = begin(tmp_path, journal, [user("one")], [user("two")])
    for talk, is_there in ((first, True), (second, False)):
        reply = answer()
        request = ask(talk)
        if is_there:
            journal.append(answered(request, reply))
        talk.add(reply)
        assert talk.next() is None
        kept = weakref.ref(reply)
        del reply
        gc.collect()
        assert (kept() is None) == is_there


def test_a_failed_turn_ends_its_conversation(tmp_path: Path, journal: Journal) -> None:
    [talk] = begin(tmp_path, journal, [user("one"), user("two")])
    ask(talk)
    talk.end()
    assert talk.next() is None


def test_conversations_that_begin_alike_ask_once_and_go_on_from_the_answer(
    tmp_path: Path, journal: Journal
) -> None:
    a, b, c = begin(tmp_path, journal, [user("hi"), user("x")], [user("hi")], [user("hi"), user("y")])
    assert ask(a).turn == 0
    assert b.next() is None
    assert c.next() is None
    a.add(answer("hello"))  # in no journal yet: unjudged
    journal_later = []
    while (request := a.next()) is not None:
        journal_later.append((request.sample_id, request.turn, request.messages[1:]))
        a.add(answer("bye"))
    assert journal_later == [
        ("talk:0000", 1, [given("hello"), user("x")]),
        ("talk:0002", 1, [given("hello"), user("y")]),
    ]


def test_a_request_that_failed_is_not_made_again_for_those_who_wait_or_come_later(
    tmp_path: Path, journal: Journal
) -> None:
    a, b, c = begin(tmp_path, journal, [user("hi"), user("x")], [user("hi")], [user("hi"), user("y")])
    ask(a)
    assert b.next() is None
    a.end()
    assert a.next() is None
    assert c.next() is None


def test_one_that_waits_goes_on_when_the_first_conversation_fails_later(
    tmp_path: Path, journal: Journal
) -> None:
    a, b = begin(tmp_path, journal, [user("hi"), user("x")], [user("hi"), user("y")])
    ask(a)
    assert b.next() is None
    a.add(answer("hello"))
    assert ask(a).messages[-1] == user("x")
    a.end()
    assert ask(a).messages[-1] == user("y")


def test_a_resumed_conversation_with_wrong_calls_is_over(tmp_path: Path, journal: Journal) -> None:
    conversation = [user("one"), tool("r")]
    [talk] = begin(tmp_path, journal, conversation)
    journal.append(answered(ask(talk), answer()))
    talk.add(answer())
    assert talk.next() is None
    assert begin(tmp_path, journal, conversation) == []


@dataclass(frozen=True)
class Script:
    """A conversation as steps: what each generated turn adds."""

    system: str | None
    steps: tuple[tuple[str, ...], ...]
    """("user", text) or ("tool", result, ...)."""

    def messages(self) -> list[Message]:
        found = [] if self.system is None else [{"role": "system", "content": self.system}]
        for before, step in zip(((), *self.steps), self.steps, strict=False):
            if before and before[0] == step[0] == "tool":
                found.append(OPEN)
            found += [user(step[1])] if step[0] == "user" else [tool(result) for result in step[1:]]
        return found


def target(messages: Sequence[Any]) -> Answer | None:
    """What this target always answers to these messages; None: it always fails.

    It mostly does what the last message says ("call 2": two tool calls), and at times anything.
    """
    chance = random.Random(json.dumps(messages, sort_keys=True))
    if chance.random() < 0.04:
        return None
    count = wanted_calls(messages[-1]["content"]) if chance.random() < 0.9 else chance.randrange(3)
    return answer(
        chance.choice(["", None]) if chance.random() < 0.1 else chance.choice(["x", "y"]),
        reasoning=chance.choice([None, "R"]),
        tool_calls=[call(f"c{chance.randrange(1000)}") for _ in range(count)] or None,
        finish_reason="length" if chance.random() < 0.04 else "stop",
    )


def wanted_calls(text: str) -> int:
    return int(text.removeprefix("call ")) if text.startswith("call ") else 0


@dataclass
class Expected:
    """What must be published in the end, and what must have been asked for it."""

    rows: list[Any] = field(default_factory=list)
    errors: list[Any] = field(default_factory=list)
    asked: dict[str, bool] = field(default_factory=dict)
    """Messages as JSON -> whether they are answered."""


def model(scripts: Sequence[Script]) -> Expected:
    """Every conversation alone, from its first turn to its last: no journal, no keys, no order."""
    expected = Expected()
    for number, script in enumerate(scripts):
        _follow(script, f"talk:{number:04}", expected)
    return expected


def _follow(script: Script, sample_id: str, expected: Expected) -> None:
    messages: list[Message] = [] if script.system is None else [{"role": "system", "content": script.system}]
    last: Answer | None = None
    reason: str | None = None
    for turn, step in enumerate(script.steps):
        if reason is not None:
            expected.errors.append((sample_id, turn, "earlier_turn_failed"))
            continue
        reason = None if last is None else _no_history(last, step)
        if reason is None:
            messages += _said(last) + _asked(step, last)
            last = target(messages)
            expected.asked[json.dumps(messages, sort_keys=True)] = last is not None
            reason = "always" if last is None else None
        if reason is not None:
            expected.errors.append((sample_id, turn, reason))
        elif last is not None:
            expected.rows.append((sample_id, turn, list(messages), last.content, last.tool_calls))


def _said(last: Answer | None) -> list[Message]:
    if last is None:
        return []
    said = {"content": last.content, "reasoning": last.reasoning, "tool_calls": last.tool_calls}
    return [{"role": "assistant"} | {name: value for name, value in said.items() if value is not None}]


def _asked(step: tuple[str, ...], last: Answer | None) -> list[Message]:
    if step[0] == "user":
        return [user(step[1])]
    assert last is not None
    return [tool(result, made["id"]) for result, made in zip(step[1:], last.tool_calls or [], strict=True)]


def _no_history(last: Answer, step: tuple[str, ...]) -> str | None:
    if last.finish_reason == "length":
        return "truncated_history"
    if len(last.tool_calls or []) != (len(step) - 1 if step[0] == "tool" else 0):
        return "tool_calls_differ"
    return None if last.content or last.tool_calls else "empty_history"


@dataclass
class Run:
    """A run with several workers in random order, that may stop at any moment."""

    chance: random.Random
    journal: Journal
    asked: Counter[str]
    """Requests made in all runs, by messages."""
    flaky: float
    """Share of requests that fail this time although the target could answer."""
    stop_after: int | None
    workers: int
    batch: int

    def complete(self, table: Any) -> None:
        pending = responses(table, self.journal).pending()
        if self._work(iter(pending.first(self.batch)), hold=True):
            self._work(iter(pending), hold=False)

    def _work(self, conversations: Any, *, hold: bool) -> bool:
        """Whether all were asked to the end. `hold`: entries count only once all of them are there."""
        active: list[Conversation] = []
        in_flight: dict[int, str] = {}
        held: list[dict[str, Any]] = []
        while True:
            while len(active) < self.workers and (taken := next(conversations, None)) is not None:
                active.append(taken)
            if not active:
                for entry in held:
                    self.journal.append(entry)
                return True
            worker = self.chance.choice(active)
            request = worker.next()
            if request is None:
                active.remove(worker)
            elif id(worker) not in in_flight:
                assert request.key not in in_flight.values(), "two ask the same at a time"
                assert request.key not in self.journal, "it is answered already"
                in_flight[id(worker)] = request.key
            else:
                if self.stop_after is not None and self.asked.total() >= self.stop_after:
                    return False
                del in_flight[id(worker)]
                (held.append if hold else self.journal.append)(self._outcome(worker, request))

    def _outcome(self, worker: Conversation, request: ChatRequest) -> dict[str, Any]:
        self.asked[json.dumps(request.messages, sort_keys=True)] += 1
        reply = target(request.messages)
        if reply is None or self.chance.random() < self.flaky:
            worker.end()
            return refused(request, "always" if reply is None else "now")
        worker.add(reply)
        return answered(request, reply)


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    """Up to six generated turns; where a call is asked for, results mostly follow."""
    texts = st.sampled_from(["a", "b", "call 1", "call 2"])
    steps: list[tuple[str, ...]] = [("user", draw(texts))]
    for _ in range(draw(st.integers(0, 5))):
        calls = wanted_calls(steps[-1][-1])
        if draw(st.sampled_from([True] * 7 + [False])) is False:
            calls = draw(st.integers(0, 2))
        results = [draw(st.sampled_from(["r", "r", "call 1"])) for _ in range(calls)]
        steps.append(("tool", *results) if results else ("user", draw(texts)))
    return Script(draw(st.sampled_from([None, None, "s"])), tuple(steps))


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow], derandomize=True)
@forall(
    st.lists(scripts(), min_size=1, max_size=14), st.integers(0, 2**32), st.integers(1, 5), st.integers(1, 8)
)
def test_random_conversations_failures_and_kills_end_as_the_model_says(
    talks: list[Script], seed: int, workers: int, batch: int
) -> None:
    expected = model(talks)
    chance = random.Random(seed)
    directory = Path(tempfile.mkdtemp())
    try:
        table = write_table(directory / "talk.parquet", *(talk.messages() for talk in talks))
        assert table.turns == len(expected.rows) + len(expected.errors)
        asked: Counter[str] = Counter()
        for stop_after in (chance.randint(0, 10), chance.randint(5, 30), None):
            with open_journal(directory / "journal") as journal:
                Run(chance, journal, asked, 0.2, stop_after, workers, batch).complete(table)
        before = asked.copy()
        with open_journal(directory / "journal") as journal:
            Run(chance, journal, asked, 0.0, None, workers, batch).complete(table)
            if not expected.rows:
                with pytest.raises(GateError):
                    responses(table, journal).check()
                return
            done = responses(table, journal).publish(directory / "out")
            responses(table, journal).publish(directory / "again")
        compare(directory, expected)
        assert done.rows + done.failed + done.ended == table.turns
        assert asked.keys() == expected.asked.keys()
        again = {messages for messages in asked if asked[messages] > before[messages]}
        assert all(asked[messages] - before[messages] == 1 for messages in again)
    finally:
        shutil.rmtree(directory)


def compare(directory: Path, expected: Expected) -> None:
    rows, errors = (
        [json.loads(line) for line in (directory / "out" / name).read_bytes().splitlines()]
        for name in ("raw_responses.jsonl", "errors.jsonl")
    )
    assert [
        (row["sample_id"], row["turn"], row["messages"], row["content"], row["tool_calls"]) for row in rows
    ] == expected.rows
    assert [(error["sample_id"], error["turn"], error["reason"]) for error in errors] == expected.errors
    for file in (directory / "out").iterdir():
        assert file.read_bytes() == (directory / "again" / file.name).read_bytes()
