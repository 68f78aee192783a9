from __future__ import annotations

from typing import Any

import pytest

from eyas.prompts.normalise import ROLES, normalise
from eyas.prompts.params import PromptsParams
from eyas.prompts.rows import Problem

PLAIN = PromptsParams()


def turn(role: str, content: Any) -> dict[str, Any]:
    return {"role": role, "content": content}


def reason(value: Any, params: PromptsParams = PLAIN) -> str:
    result = normalise(value, params)
    assert isinstance(result, Problem), result
    return result.reason


def test_a_string_is_one_user_turn_kept_verbatim() -> None:
    assert normalise("  Hi \n there ", PLAIN) == [turn("user", "  Hi \n there ")]


def test_only_turns_up_to_the_last_user_turn_count() -> None:
    conversation = [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("assistant", 42)]
    assert normalise(conversation, PLAIN) == conversation[:3]


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
            [turn("user", "a"), turn("assistant", "b"), turn("assistant", "c"), turn("user", "d")],
            "turns_not_alternating",
            id="two-answers",
        ),
        pytest.param(
            [turn("user", "a"), turn("tool", "b"), turn("user", "c")], "tools_unsupported", id="tool-result"
        ),
        pytest.param(
            [
                turn("user", "a"),
                {"role": "assistant", "content": None, "tool_calls": [{}]},
                turn("user", "c"),
            ],
            "tools_unsupported",
            id="tool-call",
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
    result = normalise([*first, {"from": name, "value": "x"}, {"from": "human", "value": "go on"}], PLAIN)
    if role == "tool":
        assert isinstance(result, Problem)
        assert result.reason == "tools_unsupported"
    elif role == "user":
        assert result == [turn("user", "q\n\nx\n\ngo on")]
    else:
        assert isinstance(result, list)
        assert result[-2] == turn(role, "x")


@pytest.mark.parametrize("name", ["narrator", "", None, 3])
def test_case_I02_unknown_role_is_named(name: Any) -> None:
    result = normalise([{"from": name, "value": "x"}, {"from": "human", "value": "y"}], PLAIN)
    assert result == Problem("unknown_role", f"role {name!r}")


def test_case_I04_user_turns_in_a_row_are_merged() -> None:
    merged = normalise([turn("user", "a"), turn("user", "b"), turn("assistant", "c")], PLAIN)
    assert merged == [turn("user", "a\n\nb")]
    later = [turn("user", "a"), turn("assistant", "b"), turn("user", "c"), turn("human", "d")]
    assert normalise(later, PLAIN) == [*later[:2], turn("user", "c\n\nd")]


@pytest.mark.parametrize("value", [42, 4.2, True, None, {"a": 1}])
def test_case_I06_values_that_are_no_text_are_rejected(value: Any) -> None:
    assert reason([{"from": "human", "value": value}]) == "content_not_text"


@pytest.mark.parametrize("empty", ["", " \n", "\t"])
def test_case_F04_empty_turn_in_history_is_rejected_here(empty: str) -> None:
    assert reason([turn("user", "a"), turn("assistant", empty), turn("user", "b")]) == "empty_turn"


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
