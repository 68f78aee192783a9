"""What each turn of a conversation is asked."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2
import pytest

from eyas.generate.dialects.choice import dialect
from eyas.generate.history import ENDINGS, History
from eyas.generate.record import Answer
from eyas.generate.request import build
from eyas.turns import OPEN
from tests.generate.example import generate_params, profile
from tests.generate.talking import Message, answer, call, given, tool, user

KIMI_LIKE = """\
{%- set ns = namespace(last=-1) -%}
{%- for m in messages if m.role == 'assistant' and not m.tool_calls -%}{%- set ns.last = messages.index(m) -%}{%- endfor -%}
{%- for m in messages -%}
{%- if m.role == 'assistant' -%}
<a><think>{{ m.reasoning if loop.index0 > ns.last else '' }}</think>{{ m.content or '' }}
{%- for c in m.tool_calls or [] %}<call {{ c.id }}>{{ c.function.arguments }}{% endfor -%}
{%- elif m.role == 'tool' -%}<t {{ m.tool_call_id }}>{{ m.content }}
{%- else -%}<{{ m.role[0] }}>{{ m.content }}{%- endif -%}
{%- endfor -%}<a><think>"""
"""Keeps thinking behind the last answer without tool calls, as Kimi's template does: in the tool loop that goes on."""


def rendered(messages: list[Message]) -> str:
    return (
        jinja2.Environment(undefined=jinja2.StrictUndefined)
        .from_string(KIMI_LIKE)
        .render(
            messages=[
                {"tool_calls": None, "content": None, "reasoning": ""} | message for message in messages
            ]
        )
    )


def asked(messages: list[Message], *answers: Answer) -> list[list[Message]]:
    """What each turn is asked when the turns before were answered so."""
    history = History(messages)
    found = [history.messages()]
    for one in answers:
        history.add(one)
        found.append(history.messages())
    assert history.ending is None
    return found


def test_a_generated_answer_is_the_history_of_the_next_turn() -> None:
    first, second = user("one"), user("two")
    turns = asked([first, second], answer("so", reasoning="hm"))
    assert turns == [
        [first],
        [first, {"role": "assistant", "content": "so", "reasoning": "hm"}, second],
    ]


def test_given_answers_stay_as_they_are() -> None:
    messages = [user("one"), given("so"), user("two")]
    history = History(messages)
    assert (history.turns, history.messages()) == (1, messages)
    history.add(answer("three", finish_reason="length"))
    assert history.over
    assert history.ending is None


def test_an_open_turn_is_never_sent() -> None:
    turns = asked(
        [user("q"), tool("r1"), OPEN, tool("r2")],
        answer(None, tool_calls=[call("c1")]),
        answer(None, tool_calls=[call("c2")]),
    )
    assert [message["role"] for message in turns[-1]] == ["user", "assistant", "tool", "assistant", "tool"]
    assert OPEN not in turns[-1]


def test_results_take_the_ids_of_the_generated_calls_in_order() -> None:
    calls = [call("functions.a:0", "a", '{"x": 1}'), call("functions.b:1", "b")]
    source = [user("q"), tool("ra", "old-1"), {"role": "tool", "content": "rb"}, user("next")]
    turns = asked(source, answer(None, tool_calls=calls, finish_reason="tool_calls"), answer("done"))
    assert turns[1] == [
        user("q"),
        {"role": "assistant", "tool_calls": calls},
        tool("ra", "functions.a:0"),
        tool("rb", "functions.b:1"),
    ]
    assert turns[2] == [*turns[1], given("done"), user("next")]
    assert source[1] == tool("ra", "old-1")


def test_a_call_without_id_leaves_its_result_without() -> None:
    nameless = call("x") | {"id": None}
    turns = asked([user("q"), tool("r", "old")], answer(None, tool_calls=[nameless]))
    assert turns[1][-1] == {"role": "tool", "content": "r"}


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_another_number_of_calls_than_results_ends_the_conversation(calls: int) -> None:
    history = History([user("q"), tool("r1"), tool("r2"), user("more"), user("end")])
    history.add(answer("text", tool_calls=[call(str(number)) for number in range(calls)] or None))
    assert history.over
    assert (history.turn, history.turns) == (1, 4)
    assert history.ending is not None
    assert (history.ending.kind, history.ending.reason) == ("content", "tool_calls_differ")
    assert f"{calls} tool calls" in history.ending.detail
    assert "2 results" in history.ending.detail


def test_a_call_where_the_source_goes_on_with_a_question_ends_the_conversation() -> None:
    history = History([user("q"), user("more")])
    history.add(answer("text", tool_calls=[call("c")]))
    assert history.ending is not None
    assert history.ending.reason == "tool_calls_differ"


@pytest.mark.parametrize(
    ("last", "reason"),
    [
        pytest.param(answer("cut", finish_reason="length"), "truncated_history", id="cut-answer"),
        pytest.param(
            answer(None, reasoning="hm", finish_reason="length"), "truncated_history", id="cut-thinking"
        ),
        pytest.param(
            answer(None, tool_calls=[call("c")], finish_reason="length"), "truncated_history", id="cut-call"
        ),
        pytest.param(answer(None, reasoning="hm"), "empty_history", id="thinking-alone"),
        pytest.param(answer(" \n", reasoning="hm"), "empty_history", id="blank"),
    ],
)
def test_an_answer_that_is_no_history_ends_the_conversation(last: Answer, reason: str) -> None:
    history = History([user("q"), user("more")])
    history.add(last)
    assert history.over
    assert history.ending is not None
    assert history.ending.reason == reason
    assert reason in ENDINGS


def test_the_last_answer_may_be_anything() -> None:
    for last in (answer("cut", finish_reason="length"), answer(None, tool_calls=[call("c")]), answer(None)):
        history = History([user("q"), user("more")])
        history.add(answer())
        history.add(last)
        assert history.over
        assert history.ending is None


def test_case_J04_reasoning_of_a_tool_loop_goes_back_into_the_history() -> None:
    """user -> call (R1) -> result -> answer (R2): R1 is sent back, and the template still shows it."""
    first = answer(None, reasoning="R1", tool_calls=[call("c1")], finish_reason="tool_calls")
    turns = asked([user("q"), tool("r")], first)
    assert turns[1] == [
        user("q"),
        {"role": "assistant", "reasoning": "R1", "tool_calls": [call("c1")]},
        tool("r", "c1"),
    ]
    assert rendered(turns[1]) == "<u>q<a><think>R1</think><call c1>{}<t c1>r<a><think>"


def test_case_J04_every_reasoning_of_a_longer_loop_is_there_until_the_answer() -> None:
    loop: list[Any] = [user("q"), tool("r1"), OPEN, tool("r2"), user("next")]
    turns = asked(
        loop,
        answer("let me see", reasoning="R1", tool_calls=[call("c1")]),
        answer(None, reasoning="R2", tool_calls=[call("c2")]),
        answer("done", reasoning="R3"),
    )
    assert rendered(turns[2]) == (
        "<u>q<a><think>R1</think>let me see<call c1>{}<t c1>r1<a><think>R2</think><call c2>{}<t c2>r2<a><think>"
    )
    assert "R3" not in rendered(turns[3])  # the template's own choice: the messages still hold it
    assert [message.get("reasoning") for message in turns[3]] == [
        None, "R1", None, "R2", None, "R3", None,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "stream"),
    [("vllm", False), ("vllm", True), ("sglang", False), ("openai", False), ("openai", True)],
)
def test_case_J04_it_goes_back_under_the_name_that_servers_read(name: str, stream: bool) -> None:
    """`reasoning_content`: the one name that SGLang knows, and that vLLM hands to templates under both."""
    turns = asked(
        [user("q"), tool("r1"), OPEN, tool("r2")],
        answer(None, reasoning="R1", tool_calls=[call("c1")]),
        answer("wait", reasoning="R2", tool_calls=[call("c2")]),
    )
    params = generate_params(dialect=name, stream=stream)
    speaker = dialect(params, profile(), Path("no-tokenizer"))
    sent = speaker.body(build("talk:0", turns[-1], params, "0" * 64, turn=2))["messages"]
    assert [message["role"] for message in sent] == ["user", "assistant", "tool", "assistant", "tool"]
    assert [message.get("reasoning_content") for message in sent] == [None, "R1", None, "R2", None]
    assert [message.get("tool_call_id") for message in sent] == [None, None, "c1", None, "c2"]
    assert [call["id"] for message in sent for call in message.get("tool_calls", [])] == ["c1", "c2"]
    assert not any("reasoning" in message for message in sent)
