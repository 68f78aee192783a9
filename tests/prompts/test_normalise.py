from __future__ import annotations

from typing import Any

import pytest

from eyas.prompts.normalise import ROLES, normalise
from eyas.prompts.params import PromptsParams
from eyas.prompts.rows import Problem
from eyas.turns import OPEN

PLAIN = PromptsParams()


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def reason(value: Any, params: PromptsParams = PLAIN, history: str = "regenerate", **options: Any) -> str:
    result = normalise(value, params, history, **options)
    assert isinstance(result, Problem), result
    return result.reason


def test_a_string_is_one_user_turn_kept_verbatim() -> None:
    assert normalise("  Hi \n there ", PLAIN) == [turn("user", "  Hi \n there ")]


def test_only_turns_up_to_the_last_user_turn_count() -> None:
    conversation = [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", 42)]
    assert normalise(conversation, PLAIN, "keep") == conversation[:3]
    assert normalise(conversation, PLAIN) == [turn("user", "a"), turn("user", "c")]


@pytest.mark.parametrize("dropped", ["", " ", None, 42, [{"type": "image_url"}], "half \ud83d"], ids=repr)
def test_an_assistant_turn_that_is_left_out_costs_nothing(dropped: Any) -> None:
    conversation = [turn("user", "a"), turn("assistant", dropped), turn("user", "b")]
    assert normalise(conversation, PLAIN) == [turn("user", "a"), turn("user", "b")]
    assert isinstance(normalise(conversation, PLAIN, "keep"), Problem)


def test_user_turns_are_joined_as_the_source_has_them() -> None:
    conversation = [turn("user", "a"), turn("user", "b"), turn("assistant", "c"), turn("user", "d")]
    assert normalise(conversation, PLAIN) == [turn("user", "a\n\nb"), turn("user", "d")]
    assert normalise(conversation, PLAIN, "keep") == [
        turn("user", "a\n\nb"), turn("assistant", "c"), turn("user", "d"),
    ]  # fmt: skip


def test_left_out_turns_do_not_count_as_length() -> None:
    conversation = [turn("user", "ab"), turn("assistant", "cde"), turn("user", "f")]
    assert isinstance(normalise(conversation, PromptsParams(max_characters=3)), list)
    assert reason(conversation, PromptsParams(max_characters=3), "keep") == "too_long"


@pytest.mark.parametrize(
    ("system", "conversation", "expected"),
    [
        pytest.param(None, [turn("user", "a")], [turn("user", "a")], id="null-adds-nothing"),
        pytest.param("S", [turn("user", "a")], [turn("system", "S"), turn("user", "a")], id="added"),
        pytest.param(
            "S",
            [turn("system", "own"), turn("user", "a")],
            [turn("system", "own"), turn("user", "a")],
            id="own-kept",
        ),
    ],
)
def test_system_message(system: str | None, conversation: list[Any], expected: list[Any]) -> None:
    assert normalise(conversation, PromptsParams(system=system)) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        pytest.param(7, "content_not_text", id="number-for-prompt"),
        pytest.param(None, "content_not_text", id="null-for-prompt"),
        pytest.param("   ", "empty_turn", id="blank-prompt"),
        pytest.param([], "no_user_turn", id="no-turns"),
        pytest.param([turn("assistant", "a")], "no_user_turn", id="no-user"),
        pytest.param(["a"], "message_not_a_mapping", id="message-is-a-string"),
        pytest.param([{"content": "a"}], "unknown_role", id="no-role"),
        pytest.param(
            [turn("assistant", "a"), turn("user", "b")], "first_turn_not_user", id="assistant-first"
        ),
        pytest.param(
            [turn("user", "a"), turn("system", "s"), turn("user", "b")], "system_not_first", id="late-system"
        ),
        pytest.param(
            [turn("user", "a"), turn("tool", "b"), turn("user", "c")],
            "tool_result_without_call",
            id="tool-result-without-call",
        ),
        pytest.param(
            [turn("user", "a"), turn("assistant", "b"), turn("tool", "c")], "tools_missing", id="no-tools"
        ),
        pytest.param("half \ud83d", "lone_surrogate", id="lone-surrogate"),
    ],
)
def test_rejected(value: Any, expected: str) -> None:
    assert reason(value) == expected


def test_length_counts_all_messages_and_the_limit_is_inclusive() -> None:
    conversation = [turn("system", "abc"), turn("user", "de")]
    assert normalise(conversation, PromptsParams(max_characters=5)) == conversation
    assert reason(conversation, PromptsParams(max_characters=4)) == "too_long"


@pytest.mark.parametrize("name", [*ROLES, "Human", " USER "])
def test_case_I02_role_names_of_public_data_sets(name: str) -> None:
    role = ROLES[name.strip().lower()]
    first = [] if role == "system" else [{"from": "human", "value": "q"}]
    call = [{"from": "gpt", "value": ""}] if role == "tool" else []
    conversation = [*first, *call, {"from": name, "value": "x"}, {"from": "human", "value": "go on"}]
    result = normalise(conversation, PLAIN, has_tools=True)
    expected = {
        "system": [turn("system", "x"), turn("user", "go on")],
        "user": [turn("user", "q\n\nx\n\ngo on")],
        "assistant": [turn("user", "q"), turn("user", "go on")],
        "tool": [turn("user", "q"), turn("tool", "x"), turn("user", "go on")],
    }
    assert result == expected[role]


@pytest.mark.parametrize("name", ["narrator", "", None, 3])
def test_case_I02_unknown_role_is_named(name: Any) -> None:
    result = normalise([{"from": name, "value": "x"}, {"from": "human", "value": "y"}], PLAIN)
    assert result == Problem("unknown_role", f"role {name!r}")


def test_case_I04_user_turns_in_a_row_are_merged() -> None:
    merged = normalise([turn("user", "a"), turn("user", "b"), turn("assistant", "c")], PLAIN)
    assert merged == [turn("user", "a\n\nb")]
    later = [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("human", "d")]
    assert normalise(later, PLAIN, "keep") == [*later[:2], turn("user", "c\n\nd")]


@pytest.mark.parametrize("value", [42, 4.2, True, None, {"a": 1}])
def test_case_I06_values_that_are_no_text_are_rejected(value: Any) -> None:
    assert reason([{"from": "human", "value": value}]) == "content_not_text"


@pytest.mark.parametrize("empty", ["", " \n", "\t"])
def test_case_F04_empty_turn_in_history_is_rejected_here(empty: str) -> None:
    history = [turn("user", "a"), turn("assistant", empty), turn("user", "b")]
    assert reason(history, history="keep") == "empty_turn"
    assert reason([turn("user", empty), turn("assistant", "a"), turn("user", "b")]) == "empty_turn"


def calls(*ids: str) -> dict[str, Any]:
    made = [
        {"id": name, "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}} for name in ids
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(call: str, content: str = "r") -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call, "content": content}


def test_blocks_of_tool_results_stay_apart_when_the_calls_are_left_out() -> None:
    conversation = [
        turn("user", "a"), calls("1", "2"), result("1"), result("2", ""), calls("3"), result("3"),
        turn("assistant", "done"), turn("user", "b"), calls("4"), result("4"), turn("assistant", "end"),
    ]  # fmt: skip
    assert normalise(conversation, PLAIN, has_tools=True) == [
        turn("user", "a"), result("1"), result("2", ""), OPEN, result("3"), turn("user", "b"), result("4"),
    ]  # fmt: skip


def test_given_calls_and_their_results_stay_with_the_reasoning() -> None:
    said = calls("1") | {"reasoning_content": "R", "name": "x"}
    kept = normalise([turn("user", "a"), said, result("1"), turn("assistant", "b")], PLAIN, "keep")
    assert kept == [
        turn("user", "a"),
        {"role": "assistant", "reasoning": "R", "tool_calls": calls("1")["tool_calls"]},
        result("1"),
    ]


def test_arguments_that_are_an_object_become_text() -> None:
    said = calls("1")
    said["tool_calls"][0]["function"]["arguments"] = {"b": 1, "a": "é"}
    kept = normalise([turn("user", "a"), said, result("1")], PLAIN, "keep")
    assert isinstance(kept, list)
    assert kept[1]["tool_calls"][0]["function"]["arguments"] == '{"a":"é","b":1}'


@pytest.mark.parametrize(
    ("turns", "expected"),
    [
        pytest.param(
            [turn("assistant", "b"), turn("assistant", "c")], "turns_not_alternating", id="two-answers"
        ),
        pytest.param([calls("1"), result("1"), turn("user", "x")], "turns_not_alternating", id="unanswered"),
        pytest.param([calls("1")], "tool_results_differ", id="call-without-result"),
        pytest.param([calls("1"), result("1"), result("1")], "tool_results_differ", id="more-results"),
        pytest.param([calls("1"), result("2")], "tool_results_differ", id="result-of-another-call"),
        pytest.param(
            [turn("function_call", '{"name": "f"}'), result("1")], "tool_results_differ", id="call-as-text"
        ),
        pytest.param([{"role": "assistant", "tool_calls": "f"}], "bad_tool_calls", id="calls-as-text"),
        pytest.param(
            [{"role": "assistant", "tool_calls": [{"id": "1"}]}], "bad_tool_calls", id="no-function"
        ),
        pytest.param(
            [{"role": "assistant", "tool_calls": [{"function": {"name": "f"}}]}], "bad_tool_calls", id="no-id"
        ),
        pytest.param([turn("assistant", None)], "content_not_text", id="nothing"),
        pytest.param([turn("assistant", "a") | {"reasoning": 1}], "content_not_text", id="reasoning-number"),
    ],
)
def test_given_turns_that_no_server_takes_are_rejected(turns: list[Any], expected: str) -> None:
    end = [] if turns[-1]["role"] == "tool" else [turn("user", "end")]
    conversation = [turn("user", "a"), *turns, *end]
    assert reason(conversation, history="keep") == expected
    assert isinstance(normalise(conversation, PLAIN, has_tools=True), list)


def test_case_F06_text_parts_are_joined() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert normalise([turn("user", parts)], PLAIN) == [turn("user", "a\nb")]


@pytest.mark.parametrize(
    "part",
    [{"type": "image_url", "image_url": {"url": "data:.."}}, {"type": "input_audio"}, {}, "text"],
    ids=["image", "audio", "untyped", "string"],
)
def test_case_F06_any_other_part_rejects_the_row(part: Any) -> None:
    assert reason([turn("user", [{"type": "text", "text": "a"}, part])]) == "multimodal_unsupported"
