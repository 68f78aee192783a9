"""Reported failures of reasoning, content and ids, in one piece and as streams, with ids and without."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eyas.generate.dialects.choice import dialect
from eyas.generate.failure import Kind, RowFailure
from eyas.generate.record import Answer
from eyas.target.spec import ToolFormat
from tests.generate import replies
from tests.generate.character_tokenizer import write_character_tokenizer
from tests.generate.example import generate_params, profile
from tests.generate.reading import MODES, PREFILLED, SERVERS, THINK, feed, make, read, request
from tests.generate.replies import CUT_THINKING, END, END_OF_TURN, OPENED_PROMPT, PLAIN, START, THINKING, Turn

both = pytest.mark.parametrize("mode", MODES)
with_and_without_ids = pytest.mark.parametrize("server", SERVERS)


@pytest.fixture(scope="module")
def characters(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_character_tokenizer(tmp_path_factory.mktemp("target"))


def with_message(server: str, mode: str, message: dict[str, Any], turn: Turn = THINKING) -> Answer:
    """A reply whose message has exactly these fields."""
    speaker = make(server, stream=mode == "stream", max_tokens=len(turn.ids))
    if mode == "whole":
        return speaker.read(replies.vllm(turn, message={"role": "assistant", **message}), request())
    events = replies.vllm_events(turn)
    for event in events:
        if event["choices"]:
            event["choices"][0]["delta"] = {}
    events[1]["choices"][0]["delta"] = message
    return feed(speaker, events, request())


# --- reasoning field -------------------------------------------------------------------------------------------------


@both
@with_and_without_ids
@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_case_A01_reasoning_under_one_name(server: str, mode: str, name: str) -> None:
    answer = with_message(server, mode, {name: "R", "content": "C"})
    assert (answer.reasoning, answer.content, answer.reasoning_field) == ("R", "C", name)


@both
@with_and_without_ids
def test_case_A02_both_fields_equal(server: str, mode: str) -> None:
    answer = with_message(server, mode, {"reasoning": "R", "reasoning_content": "R", "content": "C"})
    assert (answer.reasoning, answer.content, answer.reasoning_field) == ("R", "C", "reasoning")


@both
@with_and_without_ids
@pytest.mark.parametrize("other", ["S", "R ", "RR"])
def test_case_A02_both_fields_differ(server: str, mode: str, other: str) -> None:
    with pytest.raises(RowFailure) as caught:
        with_message(server, mode, {"reasoning": "R", "reasoning_content": other, "content": "C"})
    assert (caught.value.kind, caught.value.reason) == (Kind.CONTENT, "reasoning_conflict")


def test_case_A02_as_vllm_0_11_1_streams_it() -> None:
    events = replies.vllm_events(fields=("reasoning", "reasoning_content"))
    assert feed(make(stream=True), events, request()).reasoning == "I think."
    events[1]["choices"][0]["delta"]["reasoning"] = "other"
    with pytest.raises(RowFailure, match="reasoning_conflict"):
        feed(make(stream=True), events, request())


@both
@with_and_without_ids
@pytest.mark.parametrize(("empty", "text"), [("", "R"), (None, "R"), ("R", ""), ("R", None)])
def test_case_A02_one_of_both_is_empty(server: str, mode: str, empty: Any, text: Any) -> None:
    answer = with_message(server, mode, {"reasoning": empty, "reasoning_content": text, "content": "C"})
    assert answer.reasoning == "R"


A04 = Turn(
    None,
    " The user said hi. </think> Hello!",
    text=" The user said hi. </think> Hello!",
    prompt_ids=OPENED_PROMPT,
    ids=[70, 71, END, 80, END_OF_TURN],
    reasoning_tokens=None,
)


@both
@with_and_without_ids
def test_case_A04_no_reasoning_parser(server: str, mode: str) -> None:
    answer = read(server, mode, A04, PREFILLED)
    assert (answer.reasoning, answer.content) == (" The user said hi. ", " Hello!")
    assert answer.reasoning_field == "content"
    assert answer.flags == ["server_parser_missing"]


@both
@with_and_without_ids
def test_case_A04_the_target_opens_its_thinking_itself(server: str, mode: str) -> None:
    answer = read(server, mode, replies.unparsed(THINKING), THINK)
    assert (answer.reasoning, answer.content) == ("I think.", "Answer.")
    assert answer.flags == ["server_parser_missing"]


@both
@with_and_without_ids
def test_case_A04_thinking_is_switched_off(server: str, mode: str) -> None:
    """An answer that speaks of the marker is no thinking: the prompt has closed it."""
    closed = replace(A04, prompt_ids=[*OPENED_PROMPT, END], ids=[70, 71, 72, 73, 80, END_OF_TURN])
    answer = read(server, mode, closed, PREFILLED, chat_template_kwargs={"thinking": False})
    assert (answer.reasoning, answer.content) == (None, A04.content)
    assert answer.flags == ["think_marker_in_content"]


@both
@with_and_without_ids
def test_case_A04_thinking_cut_before_its_end(server: str, mode: str) -> None:
    cut = replace(A04, content="The user", text="The user", ids=[70, 71], finish_reason="length")
    answer = read(server, mode, cut, PREFILLED)
    assert (answer.reasoning, answer.content) == ("The user", None)
    assert answer.flags == ["server_parser_missing"]


@both
@with_and_without_ids
@pytest.mark.parametrize("reason", ["stop", "length"])
def test_case_A04_the_server_has_taken_the_thinking_out(server: str, mode: str, reason: str) -> None:
    """Ids show that the thinking ended, so that the text is the answer. Without ids a cut text may be either."""
    turn = replace(A04, content="Hello!", text="Hello!", ids=[70, 71, END, 80, 81], finish_reason=reason)
    answer = read(server, mode, turn, PREFILLED)
    unknown = server == "openai" and reason == "length"
    assert answer.content == (None if unknown else "Hello!")
    assert answer.flags == (["server_parser_missing"] if unknown else [])


@both
def test_case_A04_a_tool_call_ends_the_thinking(mode: str) -> None:
    text = "I look.<tool_call>f"
    turn = replace(A04, content=text, text=text, ids=[70, 71, 90, 91, END_OF_TURN])
    answer = read("vllm", mode, turn, PREFILLED)
    assert (answer.reasoning, answer.content) == ("I look.", "<tool_call>f")
    parsed = replace(turn, content="I look.", tool_calls=[replies.CALL], finish_reason="tool_calls")
    answer = read("vllm", mode, parsed, PREFILLED)
    assert (answer.reasoning, answer.content, answer.tool_calls) == ("I look.", None, [replies.CALL])


@both
@with_and_without_ids
def test_case_A06_only_the_closing_tag(server: str, mode: str) -> None:
    turn = replace(A04, content="R</think>C", text="R</think>C")
    answer = read(server, mode, turn, PREFILLED)
    assert (answer.reasoning, answer.content) == ("R", "C")


@both
@with_and_without_ids
def test_case_A06_the_first_closing_tag_counts(server: str, mode: str) -> None:
    turn = replace(A04, content="R</think>C</think>D", ids=[70, END, 80, END, 81, END_OF_TURN])
    answer = read(server, mode, turn, PREFILLED)
    assert (answer.reasoning, answer.content) == ("R", "C</think>D")
    assert answer.flags == ["server_parser_missing", "think_marker_in_content"]


@both
@with_and_without_ids
def test_case_A06_nothing_before_the_closing_tag(server: str, mode: str) -> None:
    turn = replace(A04, content="</think>C", ids=[END, 80, END_OF_TURN])
    answer = read(server, mode, turn, PREFILLED)
    assert (answer.reasoning, answer.content, answer.reasoning_field) == (None, "C", None)


A07 = Turn("Answer only.", None, text="Answer only.", ids=[80, 81, END_OF_TURN], reasoning_tokens=None)


@both
@with_and_without_ids
def test_case_A07_an_answer_filed_as_reasoning(server: str, mode: str) -> None:
    assert read(server, mode, A07).flags == ["misfiled_reasoning"]
    assert read(server, mode, replace(A07, content=" \n")).flags == ["misfiled_reasoning"]


@both
def test_case_A07_token_ids_prove_thinking_without_an_answer(mode: str) -> None:
    """The target closed its thinking and then said nothing: an empty answer, but rightly filed."""
    turn = replace(A07, ids=[START, 80, END, END_OF_TURN])
    assert read("vllm", mode, turn).flags == []
    assert read("openai", mode, turn).flags == ["misfiled_reasoning"]


@both
def test_case_A07_token_ids_disprove_reasoning_beside_an_answer(mode: str) -> None:
    """A parser that divides at a `</think>` made of ordinary tokens: the tokens know of no thinking."""
    turn = replace(A07, content="C")
    assert read("vllm", mode, turn).flags == ["misfiled_reasoning"]
    assert read("openai", mode, turn).flags == []


@both
def test_case_A07_a_tool_call_is_an_answer(mode: str) -> None:
    """Some servers end tool calls with `stop`."""
    turn = replace(replies.TOOL_CALL, finish_reason="stop")
    assert read("openai", mode, turn).flags == []
    assert read("openai", mode, replace(turn, tool_calls=None)).flags == ["misfiled_reasoning"]


@both
@with_and_without_ids
def test_case_A07_thinking_that_was_cut_is_no_answer(server: str, mode: str) -> None:
    assert read(server, mode, CUT_THINKING).flags == []


@both
@with_and_without_ids
@pytest.mark.parametrize("empty", ["", None])
def test_case_A09_an_empty_reasoning_is_none(server: str, mode: str, empty: Any) -> None:
    answer = with_message(server, mode, {"reasoning_content": empty, "content": "C"}, PLAIN)
    assert (answer.reasoning, answer.reasoning_field) == (None, None)


def test_case_A09_the_first_chunk_of_deepseeks_api() -> None:
    speaker = make("openai", stream=True)
    assert replies.deepseek_events(PLAIN)[0]["choices"][0]["delta"]["reasoning_content"] == ""
    assert feed(speaker, replies.deepseek_events(PLAIN), request()).reasoning_field is None
    assert feed(speaker, replies.deepseek_events(THINKING), request()).reasoning == "I think."


@pytest.mark.parametrize("done", [True, False])
@pytest.mark.parametrize("server", ["vllm", "openai", "sglang-generate"])
def test_case_A09_a_stream_without_any_event(server: str, done: bool) -> None:
    with pytest.raises(RowFailure) as caught:
        feed(make(server, stream=True), [], request(), done=done)
    assert caught.value.kind is Kind.TRANSIENT


# --- think tags ------------------------------------------------------------------------------------------------------

B03 = Turn("abc", "abc", text="<think>abc", ids=[START, 70, 71], finish_reason="length", reasoning_tokens=2)


@both
@with_and_without_ids
@pytest.mark.parametrize("content", ["abc", "ab", "abc\n"])
def test_case_B03_thinking_twice(server: str, mode: str, content: str) -> None:
    assert read(server, mode, replace(B03, content=content)).flags == ["duplicated_thinking"]


@both
def test_case_B03_an_answer_that_repeats_the_thinking(mode: str) -> None:
    """Token ids tell a short answer, generated behind the end of thinking, from a copy."""
    turn = Turn("4, since 2 + 2 is 4.", "4", ids=[START, 70, END, 80, END_OF_TURN])
    assert read("vllm", mode, turn).flags == []
    assert read("openai", mode, turn).flags == ["duplicated_thinking"]
    assert read("openai", mode, replace(turn, content="So it is 4.")).flags == []


B04_TEXT = "<think>a <think>b</think> c</think>Ans"
B04_IDS = [START, 70, START, 71, END, 80, END, 81, END_OF_TURN]


@both
@with_and_without_ids
def test_case_B04_nested_tags_without_a_parser(server: str, mode: str) -> None:
    turn = Turn(None, B04_TEXT, text=B04_TEXT, ids=B04_IDS, reasoning_tokens=None)
    answer = read(server, mode, turn)
    assert (answer.reasoning, answer.content) == ("a <think>b", " c</think>Ans")
    assert answer.flags == ["server_parser_missing", "think_marker_in_content"]
    assert answer.token_ids == (B04_IDS if server == "vllm" else None)


@both
@with_and_without_ids
@pytest.mark.parametrize(
    ("reasoning", "content"),
    [
        pytest.param("a b", "c</think>Ans", id="in one piece"),
        pytest.param("a <think>b", " c</think>Ans", id="stream"),
    ],
)
def test_case_B04_nested_tags_as_sglang_parses_them(
    server: str, mode: str, reasoning: str, content: str
) -> None:
    answer = read(server, mode, Turn(reasoning, content, text=B04_TEXT, ids=B04_IDS))
    assert (answer.reasoning, answer.content) == (reasoning, content)
    assert "think_marker_in_content" in answer.flags
    swallowed = server == "vllm" and "<think>" not in reasoning
    assert ("text_not_faithful" in answer.flags) == swallowed


B07_IDS = [70, END, 80, START, 81, END_OF_TURN]


@both
def test_case_B07_a_literal_tag_deleted_seen_in_ids(mode: str) -> None:
    turn = Turn("r", "Use  here", prompt_ids=OPENED_PROMPT, ids=B07_IDS)
    answer = read("vllm", mode, turn, PREFILLED)
    assert answer.flags == ["text_not_faithful"]
    assert answer.token_ids == B07_IDS
    closing = replace(turn, ids=[70, END, 80, END, 81, END_OF_TURN])
    assert read("vllm", mode, closing, PREFILLED).flags == ["text_not_faithful"]
    kept = replace(turn, content="Use <think> here")
    assert read("vllm", mode, kept, PREFILLED).flags == ["think_marker_in_content"]


@both
@pytest.mark.parametrize(
    ("said", "seen"),
    [
        ("Use <think> here", "Use  here"),
        ("It ends with <think>", "It ends with "),
        ("<think> begins it", " begins it"),
        ("Between <think> and </think>.", "Between  and </think>."),
    ],
)
def test_case_B07_a_literal_tag_deleted_seen_in_the_length(
    mode: str, said: str, seen: str, characters: Path
) -> None:
    turn = written(f"r</think>{said}", "r", seen)
    assert "text_not_faithful" in read("openai", mode, turn, PREFILLED, tokenizer=characters).flags
    whole = written(f"r</think>{said}", "r", said)
    assert "text_not_faithful" not in read("openai", mode, whole, PREFILLED, tokenizer=characters).flags


# --- whitespace and tokens -------------------------------------------------------------------------------------------


def written(text: str, reasoning: str | None, content: str | None) -> Turn:
    """A turn behind an opened prompt of which each character is a token, and a marker is one."""
    size = len(text.replace("<think>", "t").replace("</think>", "t")) + 1
    return Turn(
        reasoning, content, text=text, prompt_ids=OPENED_PROMPT, ids=[9] * size, reasoning_tokens=None
    )


@both
def test_case_C01_phantom_spaces_are_seen_in_the_length(mode: str, characters: Path) -> None:
    turn = written("ok</think>1", " ok ", " 1")
    assert read("openai", mode, turn, PREFILLED, tokenizer=characters).flags == ["text_not_faithful"]
    exact = written("ok</think>1", "ok", "1")
    assert read("openai", mode, exact, PREFILLED, tokenizer=characters).flags == []
    unparsed = written("ok</think>1", None, " ok </think> 1")
    assert read("openai", mode, unparsed, PREFILLED, tokenizer=characters).flags == [
        "server_parser_missing",
        "text_not_faithful",
    ]


def test_case_C01_spaces_are_switched_off_in_the_request(characters: Path) -> None:
    assert make("vllm").body(request())["spaces_between_special_tokens"] is False
    body = make("sglang-generate", tokenizer=characters).body(request())
    assert body["sampling_params"]["spaces_between_special_tokens"] is False


C02_TEXT = "<think>\nI think.\n</think>\n\nAnswer."
C02_IDS = [START, 70, 71, END, 80, 81, END_OF_TURN]


@with_and_without_ids
def test_case_C02_the_record_says_whether_it_was_streamed(server: str) -> None:
    once = read(server, "whole", Turn("I think.\n", "Answer.", text=C02_TEXT, ids=C02_IDS))
    streamed = read(server, "stream", Turn("\nI think.", "\n\nAnswer.", text=C02_TEXT, ids=C02_IDS))
    assert (once.reasoning, once.content, once.streamed) == ("I think.\n", "Answer.", False)
    assert (streamed.reasoning, streamed.content, streamed.streamed) == ("\nI think.", "\n\nAnswer.", True)
    assert once.token_ids == streamed.token_ids == (C02_IDS if server == "vllm" else None)


@both
@with_and_without_ids
def test_case_C02_we_strip_nothing_ourselves(server: str, mode: str) -> None:
    answer = read(server, mode, Turn(None, C02_TEXT, text=C02_TEXT, ids=C02_IDS))
    assert (answer.reasoning, answer.content) == ("\nI think.\n", "\n\nAnswer.")


@both
@with_and_without_ids
@pytest.mark.parametrize("content", ["    def f():\n", "\tdef f():\n", "\u3000x", "\n\n  x  \n"])
def test_case_C04_leading_spaces_stay(server: str, mode: str, content: str) -> None:
    parsed = read(server, mode, Turn("r", content, ids=C02_IDS))
    assert (parsed.reasoning, parsed.content) == ("r", content)
    text = f"<think>r</think>{content}"
    unparsed = read(server, mode, Turn(None, text, text=text, ids=C02_IDS))
    assert (unparsed.reasoning, unparsed.content) == ("r", content)


@both
def test_case_C04_what_a_parser_has_stripped_is_in_the_ids(mode: str) -> None:
    answer = read("vllm", mode, Turn("r", "def f():", ids=C02_IDS))
    assert answer.token_ids == C02_IDS


def lost(which: list[int], **changes: Any) -> list[dict[str, Any]]:
    """vLLM's events with a tool parser that loses the ids of some."""
    events = replies.vllm_events(replies.TOOL_CALL, **changes)
    with_ids = [event for event in events if event["choices"] and event["choices"][0].get("token_ids")]
    for index in which:
        del with_ids[index]["choices"][0]["token_ids"]
    return events


@pytest.mark.parametrize("which", [[1], [0], [-1], [0, 1, 2]])
@pytest.mark.parametrize("usage_last", [True, False], ids=["usage", "no usage"])
def test_case_C09_chunks_without_token_ids(which: list[int], usage_last: bool) -> None:
    with pytest.raises(RowFailure, match=r"generate\.stream to false") as caught:
        feed(make(stream=True), lost(which, usage_last=usage_last), request())
    assert (caught.value.kind, caught.value.reason) == (Kind.CONTENT, "token_ids_lost")


def test_case_C09_null_ids_are_lost_too() -> None:
    events = lost([])
    events[2]["choices"][0]["token_ids"] = None
    with pytest.raises(RowFailure, match="token_ids_lost"):
        feed(make(stream=True), events, request())


def test_case_C09_all_ids_lost() -> None:
    events = lost([])
    for event in events:
        for choice in event["choices"]:
            choice.pop("token_ids", None)
    with pytest.raises(RowFailure, match="no_token_ids"):
        feed(make(stream=True), events, request())


def test_case_C09_in_one_piece() -> None:
    with pytest.raises(RowFailure, match="2 token ids, but usage says 7") as caught:
        make().read(replies.vllm(token_ids=[1, 2]), request())
    assert caught.value.reason == "token_count"


def test_case_C09_a_text_that_comes_late_has_lost_no_ids() -> None:
    """A parser may hold text back: what counts is the number of all ids."""
    events = replies.vllm_events(PLAIN)
    late = events[1] | {"choices": [{"index": 0, "delta": {"content": "!"}, "finish_reason": None}]}
    answer = feed(make(stream=True), [*events[:-1], late, events[-1]], request())
    assert answer.token_ids == PLAIN.ids


# --- transport -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("server", ["vllm", "openai"])
@pytest.mark.parametrize(
    ("error", "kind", "reason"),
    [
        ({"code": 502, "message": "x"}, Kind.TRANSIENT, "http_502"),
        ({"code": 429, "message": "x"}, Kind.TRANSIENT, "http_429"),
        ({"code": "503", "message": "x"}, Kind.TRANSIENT, "http_503"),
        ({"code": 400, "message": "x"}, Kind.PERMANENT, "http_400"),
        ({"code": "400", "message": "x"}, Kind.PERMANENT, "http_400"),
        ({"code": 400, "message": replies.CONTEXT_MESSAGE}, Kind.PERMANENT, "context_length"),
        ("boom", Kind.TRANSIENT, "error_in_reply"),
    ],
)
@pytest.mark.parametrize("at", [0, 2, -1])
def test_case_D03_an_error_in_a_stream_of_status_200(
    server: str, error: Any, kind: Kind, reason: str, at: int
) -> None:
    events: list[Any] = replies.vllm_events()
    events.insert(at if at >= 0 else len(events), {"choices": [], "error": error})
    with pytest.raises(RowFailure) as caught:
        feed(make(server, stream=True), events, request())
    assert (caught.value.kind, caught.value.reason) == (kind, reason)
    with pytest.raises(RowFailure) as once:
        make(server).read({"choices": [], "error": error}, request())
    assert (once.value.kind, once.value.reason) == (kind, reason)


# --- content shape ---------------------------------------------------------------------------------------------------


@both
@with_and_without_ids
@pytest.mark.parametrize(
    "calls",
    [
        [{"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
        [replies.CALL, replies.CALL | {"id": "functions.f:1"}],
    ],
    ids=["one", "two"],
)
def test_case_F01_tool_calls_without_content(server: str, mode: str, calls: list[dict[str, Any]]) -> None:
    turn = replace(replies.TOOL_CALL, tool_calls=calls)
    answer = read(server, mode, turn)
    assert (answer.content, answer.tool_calls, answer.finish_reason) == (None, calls, "tool_calls")
    assert answer.reasoning == "I think."
    assert answer.flags == []
    assert answer.token_ids == (turn.ids if server == "vllm" else None)


@both
def test_case_F01_tool_calls_of_sglang(mode: str) -> None:
    speaker = make("openai" if mode == "stream" else "sglang", stream=mode == "stream")
    answer = (
        feed(speaker, replies.sglang_events(replies.TOOL_CALL), request())
        if mode == "stream"
        else speaker.read(replies.sglang(replies.TOOL_CALL), request())
    )
    assert (answer.content, answer.tool_calls) == (None, [replies.CALL])


@both
@with_and_without_ids
@pytest.mark.parametrize("mark", ["<tool_call>", "<|tool_calls_section_begin|>", "[TOOL_CALLS]"])
def test_case_F03_a_tool_call_inside_the_thinking(server: str, mode: str, mark: str) -> None:
    reasoning = f'I call it: {mark}{{"name": "f"}}'
    answer = read(server, mode, replace(THINKING, reasoning=reasoning, tool_calls=None))
    assert (answer.reasoning, answer.content, answer.tool_calls) == (reasoning, "Answer.", None)
    assert answer.flags == ["tool_call_in_reasoning"]


@both
def test_case_F03_a_tool_call_in_the_targets_own_form(mode: str) -> None:
    tools = ToolFormat(["<<call>>"], [[91]], "", [])
    speaker = dialect(
        generate_params(stream=mode == "stream"), profile(think=THINK, tools=tools), Path("none")
    )
    turn = replace(THINKING, reasoning="I call <<call>>f")
    answer = (
        feed(speaker, replies.vllm_events(turn), request())
        if mode == "stream"
        else speaker.read(replies.vllm(turn), request())
    )
    assert answer.flags == ["tool_call_in_reasoning"]
    assert read("vllm", mode, turn).flags == []


# --- broken text -----------------------------------------------------------------------------------------------------


@both
@with_and_without_ids
def test_text_with_a_replacement_character_is_lossy(server: str, mode: str) -> None:
    turn = replace(PLAIN, content="caf\ufffd")
    assert read(server, mode, turn).flags == ["lossy_text"]
    assert read(server, mode, replace(THINKING, reasoning="\ufffd")).flags == ["lossy_text"]
    prompt = [{"role": "user", "content": "What is \ufffd?"}]
    assert read(server, mode, turn, messages=prompt).flags == []
