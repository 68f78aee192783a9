"""SGLang's own /generate: finish reasons that are objects, ids in both ways of streaming, thinking divided off here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eyas.generate.dialects.base import Dialect
from eyas.generate.failure import Kind, RowFailure
from eyas.generate.record import Answer, Usage
from eyas.target.spec import ThinkFormat
from tests.generate import replies
from tests.generate.reading import MODES, PREFILLED, THINK, feed, make, request
from tests.generate.replies import (
    END,
    END_OF_TURN,
    START,
    THINKING,
    Turn,
    sglang_generate,
    sglang_generate_events,
)
from tests.hand_made_tokenizer import write_tokenizer

PROMPT = [1, 8, 10, 20, 21, 22, 2, 10, 1, 9, 10]
"""What the hand-made template makes of the question."""
TURN = replace(THINKING, prompt_ids=PROMPT)
STREAMS = ("whole", "cumulative", "incremental")


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tokenizer(tmp_path_factory.mktemp("target"))


def speaker(tokenizer: Path, think: ThinkFormat | None = THINK, **params: Any) -> Dialect:
    return make("sglang-generate", think, tokenizer, **params)


def collect(tokenizer: Path, events: Iterable[Any], *, done: bool = True) -> Answer:
    return feed(speaker(tokenizer, stream=True), events, request(), done=done)


def read(mode: str, turn: Turn, tokenizer: Path, think: ThinkFormat | None = THINK, **params: Any) -> Answer:
    if turn.finish_reason == "length":
        params["max_tokens"] = len(turn.ids)
    if mode == "whole":
        return speaker(tokenizer, think, **params).read(sglang_generate(turn), request())
    events = sglang_generate_events(turn, incremental=mode == "incremental")
    return feed(speaker(tokenizer, think, stream=True, **params), events, request())


@pytest.mark.parametrize("mode", STREAMS)
def test_an_answer(mode: str, tokenizer: Path) -> None:
    assert read(mode, TURN, tokenizer) == Answer(
        model=None,
        reasoning="I think.",
        content="Answer.",
        tool_calls=None,
        finish_reason="stop",
        stop_reason=None,
        usage=Usage(11, 7, None),
        prompt_token_ids=PROMPT,
        token_ids=[START, 70, 71, END, 80, 81, END_OF_TURN],
        reasoning_field="content",
        streamed=mode != "whole",
        flags=[],
    )


@pytest.mark.parametrize("mode", STREAMS)
def test_thinking_that_the_prompt_opened(mode: str, tokenizer: Path) -> None:
    turn = replace(
        TURN,
        text="R</think>C",
        prompt_ids=[*PROMPT, START],
        ids=[70, END, 80, END_OF_TURN],
        reasoning_tokens=0,
    )
    answer = read(mode, turn, tokenizer, PREFILLED, chat_template_kwargs={"open_think": True})
    assert (answer.reasoning, answer.content, answer.flags) == ("R", "C", [])
    assert answer.prompt_token_ids == [*PROMPT, START]
    assert answer.usage.reasoning_tokens is None  # it counts nothing without a parser


@pytest.mark.parametrize("mode", STREAMS)
def test_thinking_cut_by_length(mode: str, tokenizer: Path) -> None:
    answer = read(mode, replace(replies.CUT_THINKING, prompt_ids=PROMPT), tokenizer)
    assert (answer.reasoning, answer.content, answer.finish_reason) == ("I thi", None, "length")
    assert answer.stop_reason is None


@pytest.mark.parametrize("mode", STREAMS)
def test_tool_calls_stay_in_the_text(mode: str, tokenizer: Path) -> None:
    answer = read(mode, replace(replies.TOOL_CALL, prompt_ids=PROMPT), tokenizer)
    assert (answer.content, answer.tool_calls) == ("<tool_call>f</tool_call>", None)


@pytest.mark.parametrize("mode", STREAMS)
@pytest.mark.parametrize("stop", [7, "\n\n"])
def test_other_stop_reasons(mode: str, stop: int | str, tokenizer: Path) -> None:
    ids = [80, 7] if stop == 7 else [80, 81]
    turn = replace(replies.PLAIN, prompt_ids=PROMPT, ids=ids, stop_reason=stop)
    assert read(mode, turn, tokenizer).stop_reason == stop


@pytest.mark.parametrize("mode", ["whole", "cumulative"])
def test_case_D02_an_abort_as_a_finish_reason_object(mode: str, tokenizer: Path) -> None:
    once = speaker(tokenizer)
    with pytest.raises(RowFailure) as caught:
        once.read(replies.SGLANG_ABORT, request()) if mode == "whole" else collect(
            tokenizer, [replies.SGLANG_ABORT]
        )
    assert (caught.value.kind, caught.value.reason) == (Kind.TRANSIENT, "abort")
    assert "drained" in caught.value.detail
    assert caught.value.status == 503


@pytest.mark.parametrize(
    ("abort", "kind", "reason"),
    [
        ({"type": "abort"}, Kind.TRANSIENT, "abort"),
        (replies.SGLANG_ABORTED_BY_HAND, Kind.TRANSIENT, "abort"),
        ({"type": "abort", "message": "x", "status_code": 500}, Kind.TRANSIENT, "abort"),
        ({"type": "abort", "message": "bad", "status_code": 400}, Kind.PERMANENT, "http_400"),
        (
            {"type": "abort", "message": "longer than the model's context length", "status_code": 400},
            Kind.PERMANENT,
            "context_length",
        ),
        ({"type": "abort", "message": "x", "err_type": "BadRequestError"}, Kind.PERMANENT, "http_400"),
    ],
)
def test_case_D02_aborts_with_and_without_a_status(
    abort: dict[str, Any], kind: Kind, reason: str, tokenizer: Path
) -> None:
    for read_it in (
        lambda: speaker(tokenizer).read(sglang_generate(TURN, finish_reason=abort), request()),
        lambda: collect(
            tokenizer, [*sglang_generate_events(TURN)[:-1], sglang_generate(TURN, finish_reason=abort)]
        ),
    ):
        with pytest.raises(RowFailure) as caught:
            read_it()
        assert (caught.value.kind, caught.value.reason) == (kind, reason)


@pytest.mark.parametrize("mode", MODES)
def test_case_D02_the_chat_endpoint_too(mode: str) -> None:
    abort = {"type": "abort", "message": "drained", "status_code": 503}
    reply, events = replies.vllm(finish_reason=abort), replies.vllm_events()
    events[-2]["choices"][0]["finish_reason"] = abort
    with pytest.raises(RowFailure, match=r"abort: .*drained"):
        make().read(reply, request()) if mode == "whole" else feed(make(stream=True), events, request())


@pytest.mark.parametrize(
    ("reply", "kind", "reason"),
    [
        pytest.param([], Kind.TRANSIENT, "not_an_object", id="a list"),
        pytest.param({"text": "x"}, Kind.TRANSIENT, "no_message", id="no meta_info"),
        pytest.param({"error": {"message": "busy"}}, Kind.TRANSIENT, "error_in_reply", id="error"),
        pytest.param(
            sglang_generate(TURN, finish_reason=None), Kind.TRANSIENT, "unfinished", id="unfinished"
        ),
        pytest.param(sglang_generate(TURN, output_ids=None), Kind.CONTENT, "no_token_ids", id="no ids"),
        pytest.param(
            sglang_generate(TURN, output_ids=TURN.ids[:-1], completion_tokens=6),
            Kind.CONTENT,
            "stop_id_missing",
            id="stop id trimmed",
        ),
        pytest.param(
            sglang_generate(TURN, output_ids=TURN.ids[1:]), Kind.CONTENT, "token_count", id="an id is missing"
        ),
        pytest.param(
            sglang_generate(TURN, prompt_tokens=12),
            Kind.CONTENT,
            "token_count",
            id="the server added a token",
        ),
        pytest.param(
            sglang_generate(TURN, finish_reason={"type": "stop", "matched": "NaN happened"}),
            Kind.TRANSIENT,
            "nan",
            id="NaN",
        ),
        pytest.param(
            sglang_generate(TURN, finish_reason={"type": "stop", "matched": [2]}),
            Kind.CONTENT,
            "stop_reason",
            id="strange stop reason",
        ),
        pytest.param(
            sglang_generate(TURN, finish_reason={"type": "length", "length": 7}),
            Kind.PERMANENT,
            "context_length",
            id="cut by the context",
        ),
        pytest.param(sglang_generate(TURN, text=["x"]), Kind.CONTENT, "content_type", id="text is a list"),
    ],
)
def test_what_is_no_answer(reply: Any, kind: Kind, reason: str, tokenizer: Path) -> None:
    with pytest.raises(RowFailure) as caught:
        speaker(tokenizer).read(reply, request())
    assert (caught.value.kind, caught.value.reason) == (kind, reason)


def event(text: str, ids: list[int], count: int | None, *, last: bool = False) -> dict[str, Any]:
    reason = {"type": "stop", "matched": ids[-1]} if last and ids else None
    meta = {"finish_reason": reason, "completion_tokens": count, "prompt_tokens": 11}
    return {"text": text, "output_ids": ids, "meta_info": meta}


MIXED = {
    "cumulative, then new": [event("a", [5], 1), event("ab", [5, 6], 2), event("c", [2], 3, last=True)],
    "new, then cumulative": [event("a", [5], 1), event("b", [6], 2), event("abc", [5, 6, 2], 3, last=True)],
    "a hole": [event("a", [5], 1), event("c", [2], 3, last=True)],
    "shorter than before": [event("ab", [5, 6], 2), event("a", [2], 1, last=True)],
    "other ids": [event("a", [5], 1), event("ab", [7, 6], 2), event("abc", [7, 6, 2], 3, last=True)],
    "cumulative ids, new text": [
        event("a", [5], 1),
        event("b", [5, 6], 2),
        event("c", [5, 6, 2], 3, last=True),
    ],
    "new ids, cumulative text": [
        event("a", [5], 1),
        event("ab", [6], 2),
        event("abc", [7], 3),
        event("abcd", [2], 4, last=True),
    ],
}


@pytest.mark.parametrize("events", MIXED.values(), ids=MIXED)
def test_a_stream_that_is_neither_way_is_refused(events: list[Any], tokenizer: Path) -> None:
    with pytest.raises(RowFailure) as caught:
        collect(tokenizer, events)
    assert (caught.value.kind, caught.value.reason) == (Kind.CONTENT, "mixed_stream")


def test_either_way_without_counts(tokenizer: Path) -> None:
    cumulative = [event("a", [5], None), event("ab", [5, 6], None), event("ab", [5, 6, 2], None, last=True)]
    new = [event("a", [5], None), event("b", [6], None), event("", [2], None, last=True)]
    for events in (cumulative, new):
        answer = collect(tokenizer, events)
        assert (answer.content, answer.token_ids) == ("ab", [5, 6, 2])


def test_new_ids_that_only_end_like_those_before(tokenizer: Path) -> None:
    new = [event("ab", [5, 6], None), event("cbd", [7, 6, 8], None), event("", [2], None, last=True)]
    answer = collect(tokenizer, new)
    assert (answer.content, answer.token_ids) == ("abcbd", [5, 6, 7, 6, 8, 2])


def test_a_repeated_id_is_new_where_the_count_says_so(tokenizer: Path) -> None:
    new = [event("a", [5], 1), event("a", [5], 2), event("aa", [5, 5], 4), event("", [2], 5, last=True)]
    answer = collect(tokenizer, new)
    assert (answer.content, answer.token_ids) == ("aaaa", [5, 5, 5, 5, 2])


@pytest.mark.parametrize("done", [True, False])
def test_a_stream_that_ends_early_is_unfinished(done: bool, tokenizer: Path) -> None:
    with pytest.raises(RowFailure) as caught:
        collect(tokenizer, sglang_generate_events(TURN)[:-1], done=done)
    assert (caught.value.kind, caught.value.reason) == (Kind.TRANSIENT, "unfinished")


def test_the_event_with_the_finish_reason_is_the_last(tokenizer: Path) -> None:
    assert collect(tokenizer, sglang_generate_events(TURN), done=False).token_ids == TURN.ids


@pytest.mark.parametrize(
    ("strange", "reason"),
    [
        ([], "not_an_object"),
        ({"error": {"message": "x", "code": 503}}, "http_503"),
        ({"meta_info": {}}, "no_token_ids"),
        (event("", [5], 1) | {"text": 3}, "content_type"),
    ],
)
def test_strange_events(strange: Any, reason: str, tokenizer: Path) -> None:
    with pytest.raises(RowFailure) as caught:
        collect(tokenizer, [strange])
    assert caught.value.reason == reason
