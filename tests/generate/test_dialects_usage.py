"""Token counts in every shape that servers send."""

from __future__ import annotations

from typing import Any

import pytest

from eyas.generate.dialects.usage import read_usage
from eyas.generate.record import Usage
from tests.generate import replies
from tests.generate.reading import MODES, feed, make, read, request

NOTHING = Usage(None, None, None)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(None, NOTHING, id="null"),
        pytest.param([], NOTHING, id="a list"),
        pytest.param({}, NOTHING, id="empty"),
        pytest.param({"total_tokens": 30}, NOTHING, id="not derivable"),
        pytest.param({"completion_tokens": 3, "total_tokens": 30}, Usage(27, 3, None), id="prompt derived"),
        pytest.param(
            {"prompt_tokens": 40, "total_tokens": 30}, Usage(40, None, None), id="total below prompt"
        ),
        pytest.param({"prompt_tokens": 4, "completion_tokens": 0}, Usage(4, 0, None), id="zero is zero"),
        pytest.param({"completion_tokens": True, "prompt_tokens": "3"}, NOTHING, id="no ints"),
        pytest.param({"completion_tokens": -1, "prompt_tokens": 1.5}, NOTHING, id="no counts"),
        pytest.param(
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": None}},
            Usage(None, 9, None),
            id="details without a number",
        ),
        pytest.param(
            {"completion_tokens_details": {"reasoning_tokens": 4}, "reasoning_tokens": 0},
            Usage(None, None, 4),
            id="details win",
        ),
    ],
)
def test_usage(usage: Any, expected: Usage) -> None:
    assert read_usage(usage) == expected


@pytest.mark.parametrize("server", ["vllm", "openai"])
@pytest.mark.parametrize("missing", [True, False], ids=["no key", "null"])
def test_case_E01_usage_null_or_absent(server: str, missing: bool) -> None:
    reply = replies.vllm()
    reply["usage"] = None
    if missing:
        del reply["usage"]
    assert make(server).read(reply, request()).usage == NOTHING

    events = replies.vllm_events(usage_last=False)
    if not missing:
        events = [event | {"usage": None} for event in events]
    speaker = make(server, stream=True)
    assert feed(speaker, events, request()).usage == NOTHING


@pytest.mark.parametrize("server", ["vllm", "openai"])
def test_case_E01_usage_only_in_a_chunk_without_choices(server: str) -> None:
    speaker = make(server, stream=True)
    assert speaker.body(request())["stream_options"] == {"include_usage": True}
    events = replies.vllm_events()
    assert [event["choices"] for event in events if "usage" in event] == [[]]
    assert feed(speaker, events, request()).usage == Usage(5, 7, 2)


@pytest.mark.parametrize("first", [0, 1, 2])
def test_case_E01_continuous_usage(first: int) -> None:
    """Some servers count in every chunk; the last one says how many there were."""
    events = replies.vllm_events()
    usage = {"prompt_tokens": 5, "completion_tokens": 1, "total_tokens": 6}
    for event in events[first:-1]:
        event["usage"] = usage
    assert feed(make(stream=True), events, request()).usage == Usage(5, 7, 2)


@pytest.mark.parametrize("server", ["vllm", "openai"])
@pytest.mark.parametrize("at", range(len(replies.vllm_events()) - 1))
@pytest.mark.parametrize("later", [{}, {"usage": None}], ids=["no key", "null"])
def test_case_E01_usage_in_any_chunk(server: str, at: int, later: dict[str, Any]) -> None:
    *events, last = replies.vllm_events()
    events = [
        event | (later if index != at else {"usage": last["usage"]}) for index, event in enumerate(events)
    ]
    assert feed(make(server, stream=True), events, request()).usage == Usage(5, 7, 2)


@pytest.mark.parametrize("mode", MODES)
def test_case_E02_usage_without_completion_tokens(mode: str) -> None:
    assert read_usage({"prompt_tokens": 10, "total_tokens": 30}) == Usage(10, 20, None)
    assert read_usage({"prompt_tokens": 10}) == Usage(10, None, None)
    speaker = make("openai", stream=mode == "stream")
    usage = {"prompt_tokens": 10, "total_tokens": 30}
    if mode == "stream":
        events = replies.sglang_events()
        events[-1]["usage"] = usage
        answer = feed(speaker, events, request())
    else:
        answer = speaker.read(replies.openrouter() | {"usage": usage}, request())
    assert answer.usage == Usage(10, 20, None)


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"completion_tokens": 9, "reasoning_tokens": 5}, 5),
        ({"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 5}}, 5),
        ({"completion_tokens": 9, "completion_tokens_details": None}, None),
        ({"completion_tokens": 9, "completion_tokens_details": None, "reasoning_tokens": 5}, 5),
        ({"completion_tokens": 9, "completion_tokens_details": {}, "reasoning_tokens": 0}, 0),
    ],
)
def test_case_E04_reasoning_tokens_at_either_place(usage: dict[str, Any], expected: int | None) -> None:
    assert read_usage(usage) == Usage(None, 9, expected)
    reply = replies.openrouter(replies.PLAIN) | {"usage": usage}
    assert make("openai").read(reply, request()).usage.reasoning_tokens == expected
    events = [*replies.openrouter_events(replies.PLAIN)[:-1], {"choices": [], "usage": usage}]
    assert feed(make("openai", stream=True), events, request()).usage.reasoning_tokens == expected


def test_case_E04_both_servers_end_in_one_column() -> None:
    assert read("vllm", "whole", replies.THINKING).usage == Usage(5, 7, 2)
    assert read("sglang", "whole", replies.THINKING).usage == Usage(5, 7, 2)


def test_zero_reasoning_tokens_beside_reasoning_were_not_counted() -> None:
    reply = replies.sglang()
    reply["usage"] |= {"reasoning_tokens": 0, "completion_tokens_details": None}
    assert make("sglang").read(reply, request()).usage == Usage(5, 7, None)
