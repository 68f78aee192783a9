"""Replies of every server, in one piece and as streams, read into the one record type."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eyas.generate.failure import Kind, RowFailure
from eyas.generate.record import Answer, Usage
from tests.generate import replies
from tests.generate.reading import MODES, SERVERS, THINK, feed, make, read, reply, request
from tests.generate.replies import CUT_THINKING, PLAIN, THINKING, TOOL_CALL


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_of_vllm(mode: str) -> None:
    assert read("vllm", mode, THINKING) == Answer(
        model="tiny",
        reasoning="I think.",
        content="Answer.",
        tool_calls=None,
        finish_reason="stop",
        stop_reason=None,
        usage=Usage(5, 7, 2),
        prompt_token_ids=[5, 6, 1, 520, 198],
        token_ids=[3, 70, 71, 4, 80, 81, 2],
        reasoning_field="reasoning",
        streamed=mode == "stream",
        flags=[],
    )


def test_an_answer_of_sglang() -> None:
    expected = replace(read("vllm", "whole", THINKING), reasoning_field="reasoning_content")
    assert read("sglang", "whole", THINKING) == expected


@pytest.mark.parametrize("mode", MODES)
def test_an_answer_without_ids(mode: str) -> None:
    expected = replace(read("vllm", mode, THINKING), prompt_token_ids=None, token_ids=None)
    assert read("openai", mode, THINKING) == expected


@pytest.mark.parametrize("turn", replies.TURNS.values(), ids=replies.TURNS)
@pytest.mark.parametrize(
    ("whole", "events"),
    [
        (replies.transformers_serve, replies.transformers_serve_events),
        (replies.openrouter, replies.openrouter_events),
        (replies.sglang, replies.sglang_events),
        (replies.deepseek, replies.deepseek_events),
    ],
    ids=["transformers serve", "openrouter", "sglang", "deepseek"],
)
def test_servers_without_ids_read_alike_in_both_modes(whole: Any, events: Any, turn: replies.Turn) -> None:
    size = len(turn.ids)
    once = make("openai", max_tokens=size).read(whole(turn), request())
    streamed = feed(make("openai", max_tokens=size, stream=True), events(turn), request())
    assert streamed == replace(once, streamed=True)
    assert once.finish_reason == turn.finish_reason
    assert once.token_ids is None


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("server", SERVERS)
def test_thinking_cut_by_length_has_no_content(server: str, mode: str) -> None:
    answer = read(server, mode, CUT_THINKING)
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("I thi", None, "length")
    assert answer.flags == []


@pytest.mark.parametrize("empty", [None, "", []])
def test_empty_texts_and_lists_are_none(empty: Any) -> None:
    message = {"role": "assistant", "content": "C", "reasoning": empty or None, "tool_calls": empty or None}
    answer = make().read(replies.vllm(PLAIN, message=message), request())
    assert (answer.reasoning, answer.tool_calls, answer.reasoning_field) == (None, None, None)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize(
    ("stop", "expected"),
    [(None, None), (2, None), (7, 7), ("\n\n", "\n\n")],
    ids=["eos", "end", "id", "string"],
)
def test_stop_reasons(mode: str, stop: Any, expected: Any) -> None:
    """SGLang names the end-of-turn id, vLLM says null; ids and strings besides are kept."""
    assert read("vllm", mode, replace(PLAIN, stop_reason=stop)).stop_reason == expected


def test_matched_stop_of_sglang() -> None:
    assert read("sglang", "whole", PLAIN).stop_reason is None
    assert make("sglang").read(replies.sglang(PLAIN, matched_stop=7), request()).stop_reason == 7
    with pytest.raises(RowFailure, match="NaN") as caught:
        make("sglang").read(replies.sglang(PLAIN, matched_stop="NaN happened"), request())
    assert caught.value.kind is Kind.TRANSIENT


@pytest.mark.parametrize("mode", MODES)
def test_half_characters_are_replaced_and_flagged(mode: str) -> None:
    turn = replace(PLAIN, content="a\ud83d", text="a\ud83d")
    answer = read("vllm", mode, turn)
    assert answer.content == "a\ufffd"
    assert answer.flags == ["lossy_text", "surrogates_replaced"]


def test_half_characters_in_tool_calls_are_replaced_too() -> None:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '"\ud83d"'}}
    answer = read("vllm", "whole", replace(TOOL_CALL, tool_calls=[call]))
    assert answer.tool_calls == [call | {"function": {"name": "f", "arguments": '"\ufffd"'}}]
    assert answer.flags == ["lossy_text", "surrogates_replaced"]


def test_a_character_that_a_stream_cuts_in_two_is_whole_again() -> None:
    halves = {"choices": [{"index": 0, "delta": {"content": "\ud83d"}, "token_ids": [1]}]}
    rest = {
        "choices": [{"index": 0, "delta": {"content": "\ude00"}, "token_ids": [2], "finish_reason": "stop"}]
    }
    answer = feed(make(stream=True), [{"prompt_token_ids": [5], "choices": []}, halves, rest], request())
    assert (answer.content, answer.flags) == ("\U0001f600", [])


IDS = [1, 2, 3]


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        pytest.param(replies.vllm(finish_reason="abort"), Kind.TRANSIENT, "abort", id="abort"),
        pytest.param(replies.vllm(finish_reason="error"), Kind.TRANSIENT, "error", id="error"),
        pytest.param(replies.vllm(finish_reason=None), Kind.TRANSIENT, "unfinished", id="unfinished"),
        pytest.param(
            replies.vllm(finish_reason="repetition"), Kind.CONTENT, "finish_reason", id="repetition"
        ),
        pytest.param(
            replies.vllm(finish_reason="content_filter"), Kind.CONTENT, "finish_reason", id="filter"
        ),
        pytest.param(replies.vllm(finish_reason={"a": 1}), Kind.TRANSIENT, "unfinished", id="strange reason"),
        pytest.param({"choices": []}, Kind.TRANSIENT, "no_choice", id="no choice"),
        pytest.param({"choices": [{}, {}]}, Kind.TRANSIENT, "no_choice", id="two choices"),
        pytest.param({"choices": [{"finish_reason": "stop"}]}, Kind.TRANSIENT, "no_message", id="no message"),
        pytest.param([], Kind.TRANSIENT, "not_an_object", id="a list"),
        pytest.param(
            replies.vllm(message={"content": [{"type": "text", "text": "a"}]}),
            Kind.CONTENT,
            "content_type",
            id="content parts",
        ),
        pytest.param(
            replies.vllm(message={"reasoning": {}}), Kind.CONTENT, "content_type", id="reasoning object"
        ),
        pytest.param(
            replies.vllm(message={"content": None, "tool_calls": ["f"]}),
            Kind.CONTENT,
            "tool_calls",
            id="calls",
        ),
        pytest.param(
            replies.vllm(message={"tool_calls": [{"function": {"name": None}}]}),
            Kind.CONTENT,
            "tool_calls",
            id="call without a name",
        ),
        pytest.param(replies.vllm(token_ids=None), Kind.CONTENT, "no_token_ids", id="no token ids"),
        pytest.param(replies.vllm(prompt_token_ids=None), Kind.CONTENT, "no_token_ids", id="no prompt ids"),
        pytest.param(replies.vllm(token_ids=["a"]), Kind.CONTENT, "no_token_ids", id="ids are text"),
        pytest.param(replies.vllm(token_ids=[True]), Kind.CONTENT, "no_token_ids", id="ids are bools"),
        pytest.param(replies.vllm(token_ids=[], usage=None), Kind.TRANSIENT, "empty", id="no tokens"),
        pytest.param(replies.vllm(token_ids=[1, 2]), Kind.CONTENT, "token_count", id="ids lost"),
        pytest.param(replies.vllm(prompt_token_ids=[1]), Kind.CONTENT, "token_count", id="prompt ids lost"),
        pytest.param(
            replies.vllm(finish_reason="length"), Kind.PERMANENT, "context_length", id="cut by the context"
        ),
    ],
)
def test_what_is_no_answer(reply: Any, kind: Kind, reason: str) -> None:
    with pytest.raises(RowFailure) as caught:
        make().read(reply, request())
    assert (caught.value.kind, caught.value.reason) == (kind, reason)
    assert caught.value.detail


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"usage": {"completion_tokens": 0}}, Kind.TRANSIENT, "empty"),
        ({"message": {"content": ""}, "usage": None}, Kind.TRANSIENT, "empty"),
        ({"finish_reason": "length"}, Kind.PERMANENT, "context_length"),
    ],
)
def test_what_is_no_answer_without_ids(changes: dict[str, Any], kind: Kind, reason: str) -> None:
    with pytest.raises(RowFailure) as caught:
        make("openai").read(replies.vllm(**changes), request())
    assert (caught.value.kind, caught.value.reason) == (kind, reason)


def test_an_end_of_turn_alone_is_an_answer() -> None:
    turn = replace(PLAIN, content=None, text="", ids=[2])
    for server in SERVERS:
        answer = make(server).read(reply(server, turn), request())
        assert (answer.content, answer.reasoning, answer.flags) == (None, None, [])


def test_a_cut_answer_of_unknown_length_is_kept() -> None:
    answer = make("openai").read(replies.vllm(CUT_THINKING, usage=None), request())
    assert answer.finish_reason == "length"


def test_an_error_key_that_is_null_is_no_error() -> None:
    assert make().read(replies.vllm(PLAIN) | {"error": None}, request()).token_ids == [80, 81, 2]


def test_servers_that_send_tool_arguments_as_an_object() -> None:
    calls = [{"function": {"name": "f", "arguments": {"ä": [1]}}}]
    answer = make("openai").read(replies.vllm(message={"tool_calls": calls}), request())
    assert answer.tool_calls == [
        {"id": None, "type": "function", "function": {"name": "f", "arguments": '{"ä": [1]}'}}
    ]


def test_a_target_that_does_not_think_is_read_as_it_is() -> None:
    for server in SERVERS:
        answer = read(server, "whole", replies.unparsed(THINKING), think=None)
        assert (answer.reasoning, answer.content) == (None, THINKING.text)
        assert answer.flags == []
    assert read("vllm", "whole", replies.unparsed(THINKING), think=THINK).reasoning == "I think."
