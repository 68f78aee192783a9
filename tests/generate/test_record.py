"""From a reply to an answer, or to the reason why there is none."""

from __future__ import annotations

import json
from typing import Any

import pytest

from eyas.generate.failure import Kind, RowFailure
from eyas.generate.record import Answer, Usage, read_answer, read_usage
from tests.generate.scripted import completion

MAX_TOKENS = 3


def read(reply: Any = None, **changes: Any) -> Answer:
    return read_answer(completion("p", **changes) if reply is None else reply, MAX_TOKENS)


def test_a_complete_answer() -> None:
    assert read() == Answer(
        model="tiny",
        reasoning=None,
        content="answer to p",
        tool_calls=None,
        finish_reason="stop",
        stop_reason=None,
        usage=Usage(5, 3, None),
        prompt_token_ids=[5, 6, 1, 520, 198],
        token_ids=[1001, 7, 2],
        reasoning_field=None,
        surrogates=False,
    )


def test_an_answer_survives_json() -> None:
    answer = read(
        message={"reasoning": "R"},
        usage={"prompt_tokens": 5, "completion_tokens": 3, "reasoning_tokens": 1},
    )
    assert Answer.from_json(json.loads(json.dumps(answer.to_json()))) == answer


@pytest.mark.parametrize(
    ("message", "field", "reasoning"),
    [
        pytest.param({"reasoning": "R"}, "reasoning", "R", id="A01 reasoning only"),
        pytest.param({"reasoning_content": "R"}, "reasoning_content", "R", id="reasoning_content only"),
        pytest.param({"reasoning": "R", "reasoning_content": "R"}, "reasoning", "R", id="A02 both, equal"),
        pytest.param(
            {"reasoning": None, "reasoning_content": "R"}, "reasoning_content", "R", id="one is null"
        ),
        pytest.param(
            {"reasoning": "", "reasoning_content": "R"}, "reasoning_content", "R", id="one is empty"
        ),
        pytest.param({"reasoning": "", "reasoning_content": ""}, None, None, id="A09 empty is absent"),
        pytest.param({"reasoning": None}, None, None, id="null is absent"),
    ],
)
def test_reasoning_under_every_name(
    message: dict[str, Any], field: str | None, reasoning: str | None
) -> None:
    answer = read(message=message)
    assert (answer.reasoning_field, answer.reasoning) == (field, reasoning)
    assert answer.content == "answer to p"


def test_thinking_cut_by_length_has_no_content() -> None:
    answer = read(message={"reasoning": "R", "content": None}, finish_reason="length")
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("R", None, "length")


def test_tool_calls_are_kept() -> None:
    calls = [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}]
    answer = read(message={"content": None, "tool_calls": calls}, finish_reason="tool_calls")
    assert answer.tool_calls == calls
    assert read(message={"tool_calls": []}).tool_calls is None


@pytest.mark.parametrize("stop_reason", [None, 7, "\n\n"])
def test_stop_reasons_are_kept_as_they_are(stop_reason: Any) -> None:
    assert read(stop_reason=stop_reason).stop_reason == stop_reason


def test_half_characters_are_flagged() -> None:
    assert read(message={"content": "a\ud83d"}).surrogates


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        pytest.param(None, Usage(None, None, None), id="E01 null"),
        pytest.param({}, Usage(None, None, None), id="empty"),
        pytest.param({"prompt_tokens": 10, "total_tokens": 30}, Usage(10, 20, None), id="E02 derived"),
        pytest.param({"total_tokens": 30}, Usage(None, None, None), id="E02 not derivable"),
        pytest.param({"completion_tokens": 9, "reasoning_tokens": 5}, Usage(None, 9, 5), id="E04 top level"),
        pytest.param(
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": 5}},
            Usage(None, 9, 5),
            id="E04 details",
        ),
        pytest.param(
            {"completion_tokens": 9, "completion_tokens_details": None, "reasoning_tokens": 0},
            Usage(None, 9, 0),
            id="E04 details null, zero is zero",
        ),
        pytest.param(
            {"completion_tokens": 9, "completion_tokens_details": {"reasoning_tokens": None}},
            Usage(None, 9, None),
            id="details without a number",
        ),
        pytest.param(
            {"completion_tokens": True, "prompt_tokens": "3"}, Usage(None, None, None), id="no ints"
        ),
    ],
)
def test_usage_in_every_shape(usage: Any, expected: Usage) -> None:
    assert read_usage(usage) == expected


def test_usage_may_be_missing_altogether() -> None:
    reply = completion("p")
    del reply["usage"]
    assert read(reply).usage == Usage(None, None, None)


IDS = list(range(MAX_TOKENS))


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        pytest.param(completion("p", finish_reason="abort"), Kind.TRANSIENT, "abort", id="D01 abort"),
        pytest.param(completion("p", finish_reason="error"), Kind.TRANSIENT, "error", id="error"),
        pytest.param(completion("p", finish_reason=None), Kind.TRANSIENT, "unfinished", id="D05 unfinished"),
        pytest.param(
            completion("p", finish_reason="repetition"), Kind.CONTENT, "finish_reason", id="repetition"
        ),
        pytest.param(
            completion("p", finish_reason={"type": "abort"}), Kind.CONTENT, "finish_reason", id="dict reason"
        ),
        pytest.param(
            {"choices": [], "error": {"code": 502, "message": "x"}}, Kind.TRANSIENT, "http_502", id="D03 502"
        ),
        pytest.param({"error": {"code": 400, "message": "x"}}, Kind.PERMANENT, "http_400", id="D03 400"),
        pytest.param({"error": {"code": 429, "message": "x"}}, Kind.TRANSIENT, "http_429", id="D03 429"),
        pytest.param({"error": "boom"}, Kind.TRANSIENT, "error_in_reply", id="error is text"),
        pytest.param(
            {"object": "error", "message": "x", "code": 400},
            Kind.PERMANENT,
            "http_400",
            id="D06 second shape",
        ),
        pytest.param({"choices": []}, Kind.TRANSIENT, "no_choice", id="no choice"),
        pytest.param({"choices": [{"finish_reason": "stop"}]}, Kind.TRANSIENT, "no_message", id="no message"),
        pytest.param([], Kind.TRANSIENT, "not_an_object", id="a list"),
        pytest.param(
            completion("p", message={"content": [{"type": "text", "text": "a"}]}),
            Kind.CONTENT,
            "content_type",
            id="content parts",
        ),
        pytest.param(
            completion("p", message={"reasoning": "R", "reasoning_content": "S"}),
            Kind.CONTENT,
            "reasoning_conflict",
            id="A02 different texts",
        ),
        pytest.param(completion("p", token_ids=None), Kind.CONTENT, "no_token_ids", id="no token ids"),
        pytest.param(
            completion("p", prompt_token_ids=None), Kind.CONTENT, "no_token_ids", id="no prompt ids"
        ),
        pytest.param(completion("p", token_ids=["a"]), Kind.CONTENT, "no_token_ids", id="ids are text"),
        pytest.param(completion("p", token_ids=[], usage=None), Kind.TRANSIENT, "empty", id="no tokens"),
        pytest.param(completion("p", token_ids=[1, 2]), Kind.CONTENT, "token_count", id="C09 ids lost"),
        pytest.param(
            completion("p", prompt_token_ids=[1]), Kind.CONTENT, "token_count", id="prompt ids lost"
        ),
        pytest.param(
            completion("p", token_ids=[4], usage=None, finish_reason="length"),
            Kind.PERMANENT,
            "context_length",
            id="D17 cut by the context, not by max_tokens",
        ),
    ],
)
def test_what_is_no_answer(reply: Any, kind: Kind, reason: str) -> None:
    with pytest.raises(RowFailure) as caught:
        read(reply)
    assert (caught.value.kind, caught.value.reason) == (kind, reason)
    assert caught.value.detail


def test_an_error_key_that_is_null_is_no_error() -> None:
    assert read(completion("p") | {"error": None}).token_ids == [1001, 7, 2]
