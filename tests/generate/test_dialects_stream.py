"""However a server cuts an answer into a stream, it reads as if it had come in one piece."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.generate.failure import Kind, RowFailure
from tests.generate import replies
from tests.generate.reading import PREFILLED, THINK, feed, make, request
from tests.generate.replies import END, END_OF_TURN, OPENED_PROMPT, PROMPT, START, Turn
from tests.hand_made_tokenizer import write_tokenizer

TEXT = st.text(
    st.one_of(
        st.sampled_from(list("ab <>/\n\t\ufffd\u2028é\U0001f600")),
        st.characters(exclude_categories=["Cs"]),
    ),
    max_size=24,
)
FRAGMENT = st.one_of(
    TEXT, st.sampled_from(["<think>", "</think>", "<tool_call>", "<think>a</think>b", "  ", "abc"])
)
WORDS = st.lists(FRAGMENT, max_size=4).map("".join)
CALLS = st.lists(
    st.builds(
        lambda name, arguments, number: {
            "id": f"call-{number}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(arguments)},
        },
        st.sampled_from(["f", "get_weather"]),
        st.dictionaries(st.sampled_from("ab"), TEXT, max_size=2),
        st.integers(0, 9),
    ),
    max_size=2,
)
IDS = st.lists(st.sampled_from([START, END, 70, 71, 90]), max_size=12).map(lambda ids: [*ids, END_OF_TURN])


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    calls = draw(CALLS) or None
    return Turn(
        reasoning=draw(st.none() | WORDS),
        content=draw(st.none() | WORDS),
        tool_calls=calls,
        text=draw(WORDS),
        prompt_ids=draw(st.sampled_from([PROMPT, OPENED_PROMPT])),
        ids=draw(IDS),
        finish_reason="tool_calls" if calls else draw(st.sampled_from(["stop", "length"])),
        stop_reason=draw(st.sampled_from([None, "\n\n"])),
        reasoning_tokens=draw(st.sampled_from([None, 0, 3])),
    )


def cutter(random: Random) -> replies.Cut:
    """Cuts at random places, sometimes into nothing."""

    def cut(sequence: Any) -> list[Any]:
        if not sequence:
            return []
        places = sorted(random.randrange(len(sequence) + 1) for _ in range(random.randrange(6)))
        return [sequence[i:j] for i, j in zip([0, *places], [*places, len(sequence)], strict=True)]

    return cut


def outcome(read: Any) -> Any:
    """The answer, or which failure; `streamed` set equal."""
    try:
        return replace(read(), streamed=True)
    except RowFailure as failure:
        return failure.kind, failure.reason, failure.detail


STREAMS = {
    "vllm": (replies.vllm, replies.vllm_events),
    "vllm 0.11.1": (
        replies.vllm_0_11_1,
        lambda turn, cut: replies.vllm_events(turn, cut, fields=("reasoning", "reasoning_content")),
    ),
    "sglang": (replies.sglang, replies.sglang_events),
    "transformers serve": (replies.transformers_serve, replies.transformers_serve_events),
    "openrouter": (replies.openrouter, replies.openrouter_events),
    "deepseek": (replies.deepseek, replies.deepseek_events),
}


@pytest.mark.parametrize("name", STREAMS)
@settings(max_examples=100)
@given(
    turn=turns(), random=st.randoms(use_true_random=False), think=st.sampled_from([None, THINK, PREFILLED])
)
def test_a_stream_reads_like_the_whole(name: str, turn: Turn, random: Random, think: Any) -> None:
    whole, events = STREAMS[name]
    server = "vllm" if name.startswith("vllm") else "openai"
    size = len(turn.ids)
    once = outcome(lambda: make(server, think, max_tokens=size).read(whole(turn), request()))
    cut = cutter(random)
    speaker = make(server, think, max_tokens=size, stream=True)
    assert outcome(lambda: feed(speaker, events(turn, cut), request())) == once
    if not isinstance(once, tuple):
        assert set(once.to_json()) == set(make(server).read(replies.vllm(), request()).to_json())


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("target"))


@settings(max_examples=100)
@given(
    turn=turns(),
    random=st.randoms(use_true_random=False),
    think=st.sampled_from([None, THINK, PREFILLED]),
    incremental=st.booleans(),
)
def test_a_stream_of_generate_reads_like_the_whole(
    tokenizer: Path, turn: Turn, random: Random, think: Any, incremental: bool
) -> None:
    turn = replace(turn, prompt_ids=[1, 8, 10, 20, 21, 22, 2, 10, 1, 9, 10])
    size = len(turn.ids)
    speaker = make("sglang-generate", think, tokenizer, max_tokens=size)
    once = outcome(lambda: speaker.read(replies.sglang_generate(turn), request()))
    events = replies.sglang_generate_events(turn, cutter(random), incremental=incremental)
    streaming = make("sglang-generate", think, tokenizer, max_tokens=size, stream=True)
    assert outcome(lambda: feed(streaming, events, request())) == once


# --- ends ------------------------------------------------------------------------------------------------------------


def test_a_stream_without_its_last_line_is_whole_if_the_usage_came() -> None:
    assert (
        feed(make(stream=True), replies.vllm_events(), request(), done=False).token_ids
        == replies.THINKING.ids
    )


def test_a_server_that_never_says_done() -> None:
    events = replies.transformers_serve_events()
    answer = feed(make("openai", stream=True), events, request(), done=False)
    assert (answer.reasoning, answer.content) == ("I think.", "Answer.")
    with pytest.raises(RowFailure, match="unfinished"):
        feed(make("openai", stream=True), events[:-1], request(), done=False)


@pytest.mark.parametrize("server", ["vllm", "openai"])
@pytest.mark.parametrize("kept", range(1, len(replies.vllm_events())))
def test_a_stream_that_breaks_off_is_no_answer(server: str, kept: int) -> None:
    """The connection was closed behind any of its events, even the one with the finish reason."""
    with pytest.raises(RowFailure) as caught:
        feed(make(server, stream=True), replies.vllm_events()[:kept], request(), done=False)
    assert (caught.value.kind, caught.value.reason) == (Kind.TRANSIENT, "unfinished")


@pytest.mark.parametrize("server", ["vllm", "openai"])
def test_done_without_a_finish_reason_is_unfinished(server: str) -> None:
    events = replies.vllm_events()
    events[-2]["choices"][0]["finish_reason"] = None
    with pytest.raises(RowFailure) as caught:
        feed(make(server, stream=True), events, request())
    assert (caught.value.kind, caught.value.reason) == (Kind.TRANSIENT, "unfinished")


@pytest.mark.parametrize("server", ["vllm", "openai"])
@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_abort_after_half_an_answer_is_no_answer(server: str, reason: str) -> None:
    broken = {"choices": [{"index": 0, "delta": {}, "finish_reason": reason}]}
    events = [
        *replies.vllm_events()[:3],
        broken,
        replies.vllm_events()[-1],
    ]  # whose usage counts what never came
    with pytest.raises(RowFailure) as caught:
        feed(make(server, stream=True), events, request())
    assert (caught.value.kind, caught.value.reason) == (Kind.TRANSIENT, reason)


@pytest.mark.parametrize(
    ("strange", "reason"),
    [
        ("text", "not_an_object"),
        ({"choices": {"index": 0}}, "no_choice"),
        ({"choices": [{}, {}]}, "no_choice"),
        ({"choices": ["x"]}, "no_choice"),
        ({"choices": [{"delta": "x"}]}, "no_message"),
        ({"choices": [{"delta": {"content": ["x"]}}]}, "content_type"),
        ({"choices": [{"delta": {"reasoning": {"x": 1}}}]}, "content_type"),
        ({"choices": [{"delta": {"tool_calls": ["x"]}}]}, "tool_calls"),
    ],
)
def test_strange_events(strange: Any, reason: str) -> None:
    with pytest.raises(RowFailure) as caught:
        feed(make(stream=True), [strange], request())
    assert caught.value.reason == reason


def test_tool_calls_that_come_whole_and_without_a_number() -> None:
    """Some servers send each call in one chunk, its arguments as an object."""
    calls = [{"id": f"c{n}", "function": {"name": "f", "arguments": {"n": n}}} for n in range(2)]
    events = [{"choices": [{"index": 0, "delta": {"tool_calls": [call]}}]} for call in calls]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    answer = feed(make("openai", stream=True), [*events, last], request())
    once = make("openai").read(
        {"choices": [{"message": {"tool_calls": calls}, "finish_reason": "tool_calls"}]}, request()
    )
    assert answer == replace(once, streamed=True)
    assert [call["function"]["arguments"] for call in answer.tool_calls or []] == ['{"n": 0}', '{"n": 1}']


@pytest.mark.parametrize("pieces", [["get_", "weather"], ["get_weather", "get_weather", ""], ["get_weather"]])
def test_names_of_tool_calls_come_in_pieces_or_again_and_again(pieces: list[str]) -> None:
    events: list[Any] = [
        {"choices": [{"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"name": piece}}]}}]}
        for piece in pieces
    ]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]}
    answer = feed(make("openai", stream=True), [*events, last], request())
    assert [call["function"] for call in answer.tool_calls or []] == [
        {"name": "get_weather", "arguments": ""}
    ]
