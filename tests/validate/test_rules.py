from __future__ import annotations

from typing import Any

import pytest

from eyas.validate.judgement import judge
from eyas.validate.params import ValidateParams
from eyas.validate.rules import rules
from tests.hand_made import (
    END,
    END_THINK,
    GENERATION_PROMPT,
    PROMPT_IDS,
    THINK,
    profile,
    prompts,
    raw,
    responses,
)

PARAMS = ValidateParams(
    max_quarantined_share=0.5, max_truncated_share=1.0, min_tokens=2, expect_reasoning=False
)
THINKING = profile(think_start_id=THINK, think_end_id=END_THINK)
EXPECTING = ValidateParams(
    max_quarantined_share=0.5, max_truncated_share=1.0, min_tokens=2, expect_reasoning=True
)
CUT = {"finish_reason": "length", "token_ids": [30, 31, 32]}


def broken(
    changes: dict[str, Any],
    target: Any = None,
    params: ValidateParams = PARAMS,
    *,
    default_template: bool = True,
) -> tuple[str, str] | None:
    """The rule that a good row breaks after these changes, and the value seen; None if it stays valid."""
    target = target or profile()
    row = raw(**changes)
    judgement = judge(
        responses([row]), prompts([row]), rules(target, params, default_template=default_template), target
    )
    assert judgement.validated.height + judgement.quarantined.height == 1
    return None if judgement.quarantined.is_empty() else judgement.quarantined.select("rule", "value").row(0)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({}, id="plain"),
        pytest.param(CUT, id="cut"),
        pytest.param({"usage": None}, id="no-usage"),
        pytest.param({"stop_reason": str(END)}, id="stopped-by-an-end-id"),
        pytest.param({"stop_reason": "\n\n", "token_ids": [30, 31, 32]}, id="stop-string"),
        pytest.param({"content": "cut inside a charac\ufffd", **CUT}, id="cut-inside-a-character"),
        pytest.param(
            {"messages": [{"role": "user", "content": "what is \ufffd?"}], "content": "\ufffd is a sign"},
            id="prompt-has-the-character",
        ),
        pytest.param(
            {"content": None, "finish_reason": "tool_calls", "tool_calls": [{"id": "1", "type": "function"}]},
            id="tool-call-only",
        ),
        pytest.param({"content": "a <think> tag, and </think>"}, id="markers-are-text-for-a-plain-target"),
    ],
)
def test_good_rows_pass(changes: dict[str, Any]) -> None:
    assert broken(changes) is None


@pytest.mark.parametrize(
    ("changes", "rule", "value"),
    [
        pytest.param({"token_ids": None}, "ids_missing", "no token ids", id="no-ids"),
        pytest.param({"token_ids": []}, "ids_missing", "no token ids", id="empty-ids"),
        pytest.param({"prompt_token_ids": None}, "ids_missing", "no token ids", id="no-prompt-ids"),
        pytest.param({"token_ids": [30, None, END]}, "ids_missing", "a null among", id="null-among-ids"),
        pytest.param(
            {"usage": {"prompt_tokens": 9, "completion_tokens": 4, "reasoning_tokens": None}},
            "prompt_ids_against_usage", "10 ids, usage says 9", id="prompt-count",
        ),
        pytest.param(
            {"usage": {"prompt_tokens": 10, "completion_tokens": 5, "reasoning_tokens": None}},
            "ids_against_usage", "4 ids, usage says 5", id="generated-count",
        ),
        pytest.param({"token_ids": [30, 40, END]}, "ids_outside_vocab", "id 40", id="id-above"),
        pytest.param({"token_ids": [30, -1, END]}, "ids_outside_vocab", "id -1", id="id-below"),
        pytest.param({"prompt_token_ids": [99, *PROMPT_IDS]}, "ids_outside_vocab", "id 99", id="prompt-id-above"),
        pytest.param({"finish_reason": "abort"}, "finish_reason", "abort", id="abort"),
        pytest.param({"finish_reason": None}, "finish_reason", "null", id="no-finish-reason"),
        pytest.param(
            {"token_ids": [30, 31]}, "end_of_turn_missing", "finish reason stop, stop reason null, last id 31",
            id="stop-without-end",
        ),
        pytest.param(
            {"finish_reason": "length"}, "end_of_turn_after_cut", "finish reason length, stop reason null, last id 2",
            id="cut-with-end",
        ),
        pytest.param(
            {"stop_reason": "\n\n"}, "end_of_turn_after_cut", "last id 2", id="stop-string-with-end"
        ),
        pytest.param({"token_ids": [30, END, 31, END]}, "end_of_turn_inside", "follow", id="end-inside"),
        pytest.param({"content": " \n"}, "empty_answer", "no text", id="blank"),
        pytest.param({"content": None, "tool_calls": []}, "empty_answer", "no text", id="nothing-at-all"),
        pytest.param({"token_ids": [END]}, "too_short", "1 generated tokens, minimum 2", id="too-short"),
        pytest.param(
            {"content": "a \ufffd b \ufffd"}, "replacement_character_in_content", "2 times", id="bad-characters"
        ),
        pytest.param(
            {"content": "a \ufffd b", **CUT}, "replacement_character_in_content", "1 times", id="not-at-the-cut"
        ),
        pytest.param(
            {"reasoning": "\ufffd"}, "replacement_character_in_reasoning", "1 times", id="bad-character-in-reasoning"
        ),
        pytest.param(
            {"prompt_token_ids": PROMPT_IDS[:-1]}, "generation_prompt",
            "ends with ids 10 1 9, the template's generation prompt is 1 9 10", id="prompt-end",
        ),
        pytest.param({"prompt_token_ids": [9, 10]}, "generation_prompt", "ends with ids 9 10", id="prompt-shorter"),
    ],
)  # fmt: skip
def test_bad_rows_are_quarantined_by_rule_and_value(changes: dict[str, Any], rule: str, value: str) -> None:
    found = broken(changes)
    assert found is not None
    assert found[0] == rule
    assert value in found[1]


def test_only_the_first_broken_rule_is_named() -> None:
    assert broken({"token_ids": None, "finish_reason": "abort", "content": None}) == (
        "ids_missing",
        "no token ids, or a null among them",
    )


def test_the_prompt_may_end_otherwise_under_template_arguments() -> None:
    assert broken({"prompt_token_ids": [*PROMPT_IDS, THINK]}, default_template=False) is None
    assert PROMPT_IDS[-3:] == GENERATION_PROMPT


def test_reasoning_is_required_only_where_it_is_expected() -> None:
    assert broken({"reasoning": " "}, params=EXPECTING) == ("reasoning_missing", "no reasoning")
    assert broken({"reasoning": "because"}, params=EXPECTING) is None


def test_an_answer_to_another_prompt_is_no_answer() -> None:
    row = raw()
    asked = row | {"messages": [{"role": "user", "content": "another question"}]}
    target = profile()
    judgement = judge(
        responses([row]), prompts([asked]), rules(target, PARAMS, default_template=True), target
    )
    assert judgement.quarantined["rule"].to_list() == ["prompt_changed"]


def test_case_B01_cut_inside_thinking_is_kept_and_marked() -> None:
    row = raw(reasoning="R (cut", content=None, finish_reason="length", token_ids=[THINK, 30, 31])
    judgement = judge(
        responses([row]), prompts([row]), rules(THINKING, EXPECTING, default_template=True), THINKING
    )
    assert judgement.validated["truncated"].to_list() == [True]
    assert judgement.validated["token_ids"].to_list() == [[THINK, 30, 31]]


@pytest.mark.parametrize("content", ["abc", "ab"])
def test_case_B03_thinking_repeated_as_content_is_rejected(content: str) -> None:
    found = broken({"reasoning": "abc", "content": content, **CUT}, THINKING)
    assert found is not None
    assert found[0] == "duplicated_thinking"


@pytest.mark.parametrize(
    "content", ["c</think>Ans", "<think>b</think>", " </think> "], ids=["closing", "both", "closing-only"]
)
def test_case_B04_think_marker_in_content_is_named(content: str) -> None:
    found = broken({"reasoning": "a", "content": content}, THINKING)
    assert found is not None
    assert found[0] == "think_marker_in_content"


@pytest.mark.parametrize(
    "token_ids",
    [[THINK, 30, THINK, 31, END_THINK, 32, END], [30, END_THINK, 31, END_THINK, END]],
    ids=["opened-twice", "closed-twice"],
)
def test_case_B04_markers_that_a_parser_swallowed_are_seen_in_the_ids(token_ids: list[int]) -> None:
    found = broken({"reasoning": "a", "token_ids": token_ids}, THINKING)
    assert found is not None
    assert found[0] == "think_markers_repeated"


def test_case_B10_a_stop_string_cuts_the_turn() -> None:
    row = raw(stop_reason="\n\n", reasoning="R (cut", content=None, token_ids=[THINK, 30, 31])
    judgement = judge(
        responses([row]), prompts([row]), rules(THINKING, EXPECTING, default_template=True), THINKING
    )
    assert judgement.validated["truncated"].to_list() == [True]


def test_case_F01_a_tool_call_is_kept_with_its_calls() -> None:
    call = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    row = raw(content=None, finish_reason="tool_calls", tool_calls=[call])
    target = profile()
    judgement = judge(responses([row]), prompts([row]), rules(target, PARAMS, default_template=True), target)
    assert judgement.validated["tool_calls"].to_list() == [[call]]
    assert judgement.validated["truncated"].to_list() == [False]
