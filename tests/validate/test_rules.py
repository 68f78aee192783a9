from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eyas.validate.responses import ServerNotes
from eyas.validate.rules import rules
from tests import hand_made
from tests.hand_made import END, END_THINK, GENERATION_PROMPT, PROMPT_IDS, THINK, raw
from tests.validate.judging import (
    EXPECTING,
    IDS,
    OPEN_PROMPT,
    PARAMS,
    PLAIN,
    PREFILLED,
    TEXT,
    THINKING,
    broken,
    flags,
    judged,
    text,
)

CUT: dict[str, Any] = {"finish_reason": "length", "token_ids": [30, 31, 32]}
CALL = {"id": "functions.f:0", "type": "function", "function": {"name": "f", "arguments": "{}"}}
THOUGHT: dict[str, Any] = {
    "reasoning": "because",
    "content": "so",
    "token_ids": [THINK, 30, 31, END_THINK, 32, END],
}
"""A finished turn with thinking."""
OPEN_THOUGHT: dict[str, Any] = THOUGHT | {
    "prompt_token_ids": OPEN_PROMPT,
    "token_ids": [30, 31, END_THINK, 32, END],
}
"""The same where the prompt holds the opening marker."""


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
            {"content": None, "finish_reason": "tool_calls", "tool_calls": [CALL]}, id="tool-call-only"
        ),
        pytest.param({"content": "a <think> tag, and </think>"}, id="markers-are-text-for-a-plain-target"),
        pytest.param(
            {
                "messages": [{"role": "user", "content": "q"}, {"role": "tool", "content": "3"}],
                "prompt_token_ids": [*PROMPT_IDS, 20, 21],
                "turn": 1,
            },
            id="templates-may-end-otherwise-behind-tools",
        ),
    ],
)
def test_good_rows_pass(changes: dict[str, Any]) -> None:
    assert broken(raw(**changes)) is None


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
        pytest.param(
            {"token_ids": [30, END, 31, END]}, "end_of_turn_inside", "2 end-of-turn ids, the last id is 2",
            id="end-inside",
        ),
        pytest.param({"token_ids": [30, END, 31], "finish_reason": "length"}, "end_of_turn_inside",
            "1 end-of-turn ids, the last id is 31", id="cut-behind-an-end"),
        pytest.param({"content": " \n"}, "empty_answer", "no text", id="blank"),
        pytest.param({"content": None, "tool_calls": []}, "empty_answer", "no text", id="nothing-at-all"),
        pytest.param({"token_ids": [END]}, "too_short", "1 generated tokens, minimum 2", id="too-short"),
        pytest.param({"flags": ["reasoning_conflict"]}, "reasoning_conflict", "two different", id="two-reasonings"),
        pytest.param(
            {"prompt_token_ids": PROMPT_IDS[:-1]}, "generation_prompt",
            "ends with ids 10 1 9, the template's generation prompt is 1 9 10", id="prompt-end",
        ),
        pytest.param({"prompt_token_ids": [9, 10]}, "generation_prompt", "ends with ids 9 10", id="prompt-shorter"),
    ],
)  # fmt: skip
def test_bad_rows_are_quarantined_by_rule_and_value(changes: dict[str, Any], rule: str, value: str) -> None:
    found = broken(raw(**changes))
    assert found is not None
    assert found[0] == rule
    assert value in found[1]


def test_all_broken_rules_are_kept_the_first_is_named() -> None:
    row = raw(token_ids=None, finish_reason="abort", content=None)
    ledger = judged([row]).ledger.row(0, named=True)
    assert ledger["rule"] == "ids_missing"
    assert ledger["value"] == "no token ids, or a null among them"
    assert ledger["rules"] == ["ids_missing", "finish_reason", "empty_answer"]


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"prompt_hash": "0" * 64}, id="hash"),
        pytest.param({"messages": [{"role": "user", "content": "another"}]}, id="text"),
        pytest.param({"messages": [{"role": "system", "content": "question talk:1"}]}, id="role"),
        pytest.param(
            {"messages": [{"role": "user", "content": "question talk:1"}, {"role": "user", "content": "more"}]},
            id="one-more-message",
        ),
        pytest.param({"tools": "[]"}, id="tools"),
    ],
)  # fmt: skip
def test_an_answer_to_another_prompt_is_no_answer(changes: dict[str, Any]) -> None:
    asked = hand_made.prompts([raw()])
    assert judged([raw()], prompts=asked).ledger["rule"].to_list() == [None]
    assert judged([raw(**changes)], prompts=asked).ledger["rule"].to_list() == ["prompt_changed"]


def test_later_turns_are_compared_without_the_answers_before() -> None:
    first, second = ({"role": "user", "content": words} for words in ("one", "two"))
    answer = {"role": "assistant", "content": "generated", "reasoning": "because"}
    asked = hand_made.prompts([raw(messages=[first, second])])
    rows = [raw(messages=[first]), raw(messages=[first, answer, second], turn=1)]
    assert judged(rows, prompts=asked).ledger["rule"].to_list() == [None, None]
    wrong = [raw(messages=[first, answer, second]), raw(messages=[first], turn=1)]
    assert judged(wrong, prompts=asked).ledger["rule"].to_list() == ["prompt_changed"] * 2


def test_reasoning_is_required_only_where_it_is_expected() -> None:
    assert broken(raw(reasoning=" "), params=EXPECTING) == ("reasoning_missing", "no reasoning")
    assert broken(raw(reasoning="because"), params=EXPECTING) is None
    assert broken(raw(reasoning=None)) is None


def test_thinking_that_only_the_ids_show_is_reasoning() -> None:
    ids = [THINK, 30, 31, 30, 31, END_THINK, 32, END]
    assert broken(raw(token_ids=ids), THINKING, EXPECTING) is None
    empty = raw(token_ids=[THINK, 10, 10, END_THINK, 32, END])
    assert broken(empty, THINKING, EXPECTING) == ("reasoning_missing", "no reasoning")


@pytest.mark.parametrize(
    ("changes", "target"),
    [
        pytest.param(THOUGHT, THINKING, id="thought"),
        pytest.param(THOUGHT | {"token_ids": [10, *THOUGHT["token_ids"]]}, THINKING, id="newline-in-front"),
        pytest.param({"content": "no thinking"}, THINKING, id="instant"),
        pytest.param(OPEN_THOUGHT, PREFILLED, id="opened-by-the-prompt"),
        pytest.param(
            {"prompt_token_ids": [*OPEN_PROMPT, END_THINK], "content": "instant"}, PREFILLED, id="switched-off"
        ),
    ],
)  # fmt: skip
def test_good_thinking_passes(changes: dict[str, Any], target: Any) -> None:
    notes = IDS
    if changes.get("prompt_token_ids", [])[-1:] == [END_THINK]:
        notes = ServerNotes({"thinking": False}, text_only=False)
    assert broken(raw(**changes), target, notes=notes) is None


@pytest.mark.parametrize(
    ("changes", "target", "rule", "value"),
    [
        pytest.param(
            THOUGHT | {"token_ids": [END_THINK, 30, THINK, 32, END]}, THINKING, "think_markers_swapped",
            "opening marker at token 2, closing marker at token 0", id="swapped",
        ),
        pytest.param(
            THOUGHT | {"token_ids": [30, 31, END_THINK, 32, END]}, THINKING, "think_start_missing",
            "opening marker at token (none), closing marker at token 2; the prompt does not end with an opening",
            id="opening-removed",
        ),
        pytest.param(
            THOUGHT | {"token_ids": [30, 31, 30, 31, THINK, 31, END_THINK, 32, END]}, THINKING,
            "think_start_missing", "opening marker at token 4", id="opening-shifted",
        ),
        pytest.param(
            THOUGHT | {"token_ids": [THINK, 30, 31, 32, END]}, THINKING, "think_end_missing",
            "3 tokens of thinking without an end, finish reason stop", id="closing-removed",
        ),
        pytest.param(
            THOUGHT | {"token_ids": [30, 31, 32, END]}, THINKING, "reasoning_not_in_ids",
            "7 characters of reasoning, 0 tokens of it", id="both-removed",
        ),
        pytest.param(
            THOUGHT | {"token_ids": [THINK, END_THINK, 32, END]}, THINKING, "reasoning_not_in_ids",
            "0 tokens of it", id="thinking-dropped",
        ),
        pytest.param(
            THOUGHT | {"token_ids": [THINK, 30, 31, 32, END_THINK, END]}, THINKING, "content_not_in_ids",
            "2 characters of content, 0 tokens of it", id="closing-moved-to-the-end",
        ),
        pytest.param(
            OPEN_THOUGHT | {"token_ids": THOUGHT["token_ids"]}, PREFILLED, "think_start_repeated",
            "the prompt ends with the opening marker, and token 0 is another", id="opened-twice",
        ),
        pytest.param(
            OPEN_THOUGHT | {"token_ids": [30, 31, 32, END]}, PREFILLED, "think_end_missing",
            "3 tokens of thinking", id="prefilled-closing-removed",
        ),
        pytest.param(
            OPEN_THOUGHT | {"token_ids": [30, 31, 30, 31, THINK, 32, END]}, PREFILLED, "think_end_missing",
            "6 tokens of thinking", id="prefilled-swapped",
        ),
    ],
)  # fmt: skip
def test_bad_markers_are_quarantined_by_rule_and_value(
    changes: dict[str, Any], target: Any, rule: str, value: str
) -> None:
    found = broken(raw(**changes), target)
    assert found is not None
    assert found[0] == rule
    assert value in found[1]


def test_case_J02_the_generated_part_begins_behind_the_prefilled_marker_and_holds_the_end_of_turn() -> None:
    assert broken(raw(**OPEN_THOUGHT), PREFILLED) is None
    prompt, generated = OPEN_THOUGHT["prompt_token_ids"], OPEN_THOUGHT["token_ids"]
    usage = {"prompt_tokens": len(prompt), "completion_tokens": len(generated), "reasoning_tokens": None}
    shifted = {
        "marker-is-generated": (prompt[:-1], [THINK, *generated]),
        "header-is-generated": (prompt[:-3], [*prompt[-3:], *generated]),
        "first-token-is-prompt": ([*prompt, generated[0]], generated[1:]),
        "end-of-turn-is-lost": (prompt, generated[:-1]),
    }
    with_usage = {
        name: broken(raw(**OPEN_THOUGHT | {"prompt_token_ids": p, "token_ids": g, "usage": usage}), PREFILLED)
        for name, (p, g) in shifted.items()
    }
    assert {name: found and found[0] for name, found in with_usage.items()} == {
        "marker-is-generated": "prompt_ids_against_usage",
        "header-is-generated": "prompt_ids_against_usage",
        "first-token-is-prompt": "prompt_ids_against_usage",
        "end-of-turn-is-lost": "ids_against_usage",
    }
    without = {
        name: broken(raw(**OPEN_THOUGHT | {"prompt_token_ids": p, "token_ids": g, "usage": None}), PREFILLED)
        for name, (p, g) in shifted.items()
    }
    assert all(without.values())
    assert (without["end-of-turn-is-lost"] or ("",))[0] == "end_of_turn_missing"


@pytest.mark.parametrize(
    ("appended", "rule"),
    [pytest.param([10], "end_of_turn_missing", id="newline"), pytest.param([END], "end_of_turn_inside", id="end")],
)  # fmt: skip
def test_what_a_template_appends_to_a_finished_turn_is_found(appended: list[int], rule: str) -> None:
    row = raw(token_ids=[30, 31, END, *appended], usage=None)
    found = broken(row)
    assert found is not None
    assert found[0] == rule
    assert "end_of_turn_inside" in judged([row]).ledger["rules"][0]


def test_a_finished_turn_rendered_through_the_template_is_found() -> None:
    """Templates drop the thinking of a finished turn (Kimi: an empty block, Qwen: nothing) and end with a newline."""
    for dropped in ([THINK, END_THINK, 32, END], [32, 31, END]):
        row = raw(**THOUGHT | {"token_ids": dropped, "usage": None})
        assert (broken(row, THINKING) or ("",))[0] == "reasoning_not_in_ids"
        rendered = raw(**THOUGHT | {"token_ids": [*dropped, 10], "usage": None})
        assert (broken(rendered, THINKING) or ("",))[0] == "end_of_turn_missing"


def test_only_known_template_arguments_say_how_prompts_end() -> None:
    row = raw(prompt_token_ids=[*PROMPT_IDS, 33])
    assert (broken(row) or ("",))[0] == "generation_prompt"
    assert broken(row, notes=ServerNotes({"tone": "kind"}, text_only=False)) is None
    off = raw(prompt_token_ids=[*OPEN_PROMPT, END_THINK])
    switched = ServerNotes({"thinking": False}, text_only=False)
    assert broken(off, PREFILLED, notes=switched) is None
    assert (broken(off, PREFILLED) or ("",))[0] == "generation_prompt"
    assert PROMPT_IDS[-3:] == GENERATION_PROMPT


def test_thinking_that_a_template_argument_opened_is_judged_as_opened() -> None:
    """The derived format of such a target says that the marker is generated."""
    notes = ServerNotes({"style": "deep"}, text_only=False)
    assert broken(raw(**OPEN_THOUGHT), THINKING, EXPECTING, notes) is None
    unended = raw(**OPEN_THOUGHT | {"token_ids": [30, 31, 32, END]})
    assert (broken(unended, THINKING, EXPECTING, notes) or ("",))[0] == "think_end_missing"
    again = raw(**OPEN_THOUGHT | {"token_ids": THOUGHT["token_ids"]})
    assert (broken(again, THINKING, EXPECTING, notes) or ("",))[0] == "think_start_repeated"


@pytest.mark.parametrize("role", ["tool", "user"])
def test_only_behind_tool_results_a_prompt_may_lack_the_generation_prompt(role: str) -> None:
    """DeepSeek's templates append nothing there."""
    answer = {"role": "assistant", "content": "", "tool_calls": [CALL]}
    messages = [{"role": "user", "content": "q"}, answer, {"role": role, "content": "3"}]
    row = raw(messages=messages, prompt_token_ids=PROMPT_IDS[: -len(GENERATION_PROMPT)], turn=1)
    asked = hand_made.prompts([row | {"messages": [messages[0], messages[2]]}])
    (rule,) = judged([row], prompts=asked).ledger["rule"]
    assert rule == (None if role == "tool" else "generation_prompt")


# Reported cases


def test_case_A04_thinking_that_the_reader_divided_is_kept_and_flagged() -> None:
    row: dict[str, Any] = {
        "reasoning": " The user said hi. ",
        "content": " Hello!",
        "flags": ["server_parser_missing"],
    }
    assert flags(raw(**OPEN_THOUGHT | row), PREFILLED, EXPECTING) == ["server_parser_missing"]
    assert flags(text(**row), PREFILLED, EXPECTING, TEXT) == ["server_parser_missing"]


def test_case_A06_no_opening_marker_is_needed_where_the_prompt_has_it() -> None:
    row = OPEN_THOUGHT | {"flags": ["server_parser_missing"], "reasoning": "R", "content": "C"}
    assert broken(raw(**row), PREFILLED, EXPECTING) is None
    unopened = row | {"prompt_token_ids": PROMPT_IDS}
    assert (broken(raw(**unopened), THINKING) or ("",))[0] == "think_start_missing"


@pytest.mark.parametrize("content", [None, "", " \n"])
def test_case_A07_an_instant_answer_filed_as_reasoning_is_never_thinking(content: str | None) -> None:
    row: dict[str, Any] = {"reasoning": "Answer only.", "content": content}
    found = broken(text(**row), THINKING, notes=TEXT)
    assert found == ("misfiled_reasoning", "flags misfiled_reasoning, and no token ids")
    with_ids = judged([raw(**row)], THINKING)
    assert with_ids.validated["flags"].to_list() == [["misfiled_reasoning"]]
    assert with_ids.ledger["reasoning_tokens"].to_list() == [0]
    # thinking that was left open by a prompt is no answer either
    opened = raw(**row | {"prompt_token_ids": OPEN_PROMPT})
    assert (broken(opened, PREFILLED) or ("",))[0] == "think_end_missing"


def test_case_A07_thinking_without_an_answer_that_the_ids_prove_is_not_misfiled() -> None:
    row = THOUGHT | {"content": None, "token_ids": [THINK, 30, 31, END_THINK, END]}
    assert flags(raw(**row), THINKING) == []
    cut: dict[str, Any] = {"reasoning": "R", "content": None, "finish_reason": "length"}
    assert flags(text(**cut), THINKING, notes=TEXT) == []


@pytest.mark.parametrize("content", [None, ""])
def test_case_B01_cut_inside_thinking_is_kept_and_marked(content: str | None) -> None:
    cut: dict[str, Any] = {"reasoning": "R (cut", "content": content, "finish_reason": "length"}
    found = judged([raw(**cut, token_ids=[THINK, 30, 31])], THINKING, EXPECTING).validated
    assert found["truncated"].to_list() == [True]
    assert found["token_ids"].to_list() == [[THINK, 30, 31]]
    opened = raw(**cut, prompt_token_ids=OPEN_PROMPT, token_ids=[30, 31])
    assert judged([opened], PREFILLED, EXPECTING).validated["truncated"].to_list() == [True]
    assert judged([text(**cut)], THINKING, EXPECTING, TEXT).validated["truncated"].to_list() == [True]


def test_case_B01_the_reverse_a_cut_thought_in_the_content() -> None:
    cut: dict[str, Any] = {"reasoning": None, "content": "R (cut", "finish_reason": "length"}
    opened = raw(**cut, prompt_token_ids=OPEN_PROMPT, token_ids=[30, 31, 30, 31])
    assert judged([opened], PREFILLED, EXPECTING).validated["truncated"].to_list() == [True]


@pytest.mark.parametrize("content", ["abc", "ab", " ab"])
def test_case_B03_thinking_repeated_as_content_is_rejected(content: str) -> None:
    row: dict[str, Any] = {"reasoning": "abc", "content": content, "finish_reason": "length"}
    value = (
        f"the content ({len(content)} characters) is the start of the reasoning (3), 3 tokens were generated"
    )
    with_ids = raw(**row, token_ids=[THINK, 30, 31])
    assert broken(with_ids, THINKING) == ("duplicated_thinking", value)
    opened = raw(**row, prompt_token_ids=OPEN_PROMPT, token_ids=[30, 31, 32])
    assert broken(opened, PREFILLED) == ("duplicated_thinking", value)
    usage = {"prompt_tokens": 9, "completion_tokens": 3, "reasoning_tokens": None}
    assert broken(text(**row, usage=usage), THINKING, notes=TEXT) == ("duplicated_thinking", value)
    assert (broken(raw(**row | CUT)) or ("",))[0] == "duplicated_thinking"


def test_case_B03_a_short_answer_that_its_thinking_began_with_is_an_answer() -> None:
    row = THOUGHT | {"reasoning": "4. Let me check: yes", "content": "4"}
    assert flags(raw(**row), THINKING) == ["duplicated_thinking"]


@pytest.mark.parametrize(
    "content", ["c</think>Ans", "<think>b</think>", " </think> "], ids=["closing", "both", "closing-only"]
)
def test_case_B04_think_marker_in_content_is_flagged_and_needs_ids(content: str) -> None:
    row: dict[str, Any] = {"reasoning": "a", "content": content}
    assert flags(raw(**THOUGHT | row), THINKING) == ["think_marker_in_content"]
    assert broken(text(**row), THINKING, notes=TEXT) == (
        "think_marker_in_content",
        "flags think_marker_in_content, and no token ids",
    )


@pytest.mark.parametrize(
    ("token_ids", "value"),
    [
        pytest.param([THINK, 30, THINK, 31, END_THINK, 32, END_THINK, 33, END], "2 opening and 2", id="nested"),
        pytest.param([THINK, 30, END_THINK, 31, END_THINK, 32, END], "1 opening and 2", id="closed-twice"),
        pytest.param([THINK, 30, END_THINK, 31, THINK, 32, END], "2 opening and 1", id="opened-in-the-answer"),
    ],
)  # fmt: skip
def test_case_B04_markers_that_a_parser_swallowed_are_seen_in_the_ids(
    token_ids: list[int], value: str
) -> None:
    row = raw(**THOUGHT | {"token_ids": token_ids})
    found = judged([row], THINKING)
    assert found.validated["flags"].to_list() == [["think_marker_in_content"]]
    assert found.ledger["reasoning_tokens"].to_list() == [token_ids.index(END_THINK) - 1]
    strict = broken(row, THINKING, replace(PARAMS, allow_repeated_markers=False))
    assert strict is not None
    assert strict[0] == "think_markers_repeated"
    assert value in strict[1]


def test_case_B07_a_text_that_misses_what_was_generated_needs_ids() -> None:
    row: dict[str, Any] = {"reasoning": "r", "content": "Use  here", "flags": ["text_not_faithful"]}
    ids = [THINK, 30, END_THINK, 31, THINK, 32, END]
    assert "text_not_faithful" in flags(raw(**THOUGHT | row | {"token_ids": ids}), THINKING)
    assert broken(text(**row), THINKING, notes=TEXT) == (
        "text_not_faithful",
        "flags text_not_faithful, and no token ids",
    )


def test_case_B10_a_stop_string_cuts_the_turn() -> None:
    cut: dict[str, Any] = {"stop_reason": "\n\n", "reasoning": "R (cut", "content": None}
    found = judged([raw(**cut, token_ids=[THINK, 30, 31])], THINKING, EXPECTING).validated
    assert found["truncated"].to_list() == [True]
    assert found["token_ids"].to_list() == [[THINK, 30, 31]]
    stop_id = raw(stop_reason="33", token_ids=[30, 33])
    assert judged([stop_id], THINKING).validated["truncated"].to_list() == [True]
    without_ids = judged([text(**cut)], THINKING, EXPECTING, TEXT).ledger
    assert without_ids["truncated"].to_list() == [True]


@pytest.mark.parametrize(
    ("changes", "truncated"),
    [
        pytest.param({"content": "cut \ufffd", **CUT}, True, id="cut-inside-a-character"),
        pytest.param({"content": "an \ufffd inside"}, False, id="inside"),
        pytest.param({"reasoning": "\ufffd", "content": "fine"}, False, id="in-the-reasoning"),
    ],
)
def test_case_C05_a_broken_character_needs_ids(changes: dict[str, Any], truncated: bool) -> None:
    found = judged([raw(**changes)]).validated
    assert found["flags"].to_list() == [["lossy_text"]]
    assert found["truncated"].to_list() == [truncated]
    without = text(**{key: value for key, value in changes.items() if key != "token_ids"})
    assert broken(without, notes=TEXT) == ("lossy_text", "flags lossy_text, and no token ids")


def test_case_C05_a_character_of_the_prompt_may_be_quoted() -> None:
    row: dict[str, Any] = {
        "messages": [{"role": "user", "content": "what is \ufffd?"}],
        "content": "\ufffd is a sign",
    }
    assert flags(raw(**row)) == []
    assert flags(text(**row), notes=TEXT) == []


def test_case_C05_replaced_surrogates_are_lossy_too() -> None:
    row: dict[str, Any] = {"content": "half \ufffd", "flags": ["surrogates_replaced"]}
    assert flags(raw(**row)) == ["lossy_text", "surrogates_replaced"]
    assert (broken(text(**row), notes=TEXT) or ("",))[0] == "lossy_text"


@pytest.mark.parametrize("usage", [None, {}, {"prompt_tokens": 10}, {"reasoning_tokens": 3}])
def test_case_E01_usage_may_be_missing(usage: dict[str, int] | None) -> None:
    found = judged([raw(usage=usage)])
    assert found.validated["usage_completion_tokens"].to_list() == [None]
    assert found.ledger.select("generated_tokens", "has_usage").row(0) == (4, False)
    assert judged([text(usage=None)], notes=TEXT).ledger["generated_tokens"].to_list() == [None]


def test_case_E02_a_count_that_is_not_sent_is_null_and_judges_nothing() -> None:
    row = raw(usage={"prompt_tokens": 10, "completion_tokens": None, "reasoning_tokens": None})
    assert judged([row]).validated["usage_completion_tokens"].to_list() == [None]
    assert broken(raw(usage={"prompt_tokens": 11})) == (
        "prompt_ids_against_usage",
        "10 ids, usage says 11",
    )


def test_case_F01_a_tool_call_is_kept_with_its_calls_and_needs_ids() -> None:
    row: dict[str, Any] = {"content": None, "finish_reason": "tool_calls", "tool_calls": [CALL]}
    found = judged([raw(**row)]).validated
    assert found["tool_calls"].to_list() == [[CALL]]
    assert found["truncated"].to_list() == [False]
    assert broken(text(**row), notes=TEXT) == ("tool_calls_without_ids", "1 tool calls")
    spoken = row | {"content": "let me look", "tool_calls": [CALL, CALL]}
    assert broken(text(**spoken), notes=TEXT) == ("tool_calls_without_ids", "2 tool calls")


@pytest.mark.parametrize("reasoning", ["I call <tool_call>{}</tool_call>", "<tool_call>"])
def test_case_F03_a_tool_call_inside_thinking_is_kept_as_reasoning(reasoning: str) -> None:
    row: dict[str, Any] = {"reasoning": reasoning, "content": "so", "flags": ["tool_call_in_reasoning"]}
    assert flags(raw(**THOUGHT | row), THINKING, EXPECTING) == ["tool_call_in_reasoning"]
    kept = judged([text(**row)], THINKING, EXPECTING, TEXT).validated
    assert kept.select("reasoning", "flags").row(0) == (reasoning, ["tool_call_in_reasoning"])


def test_rows_of_text_are_whole_only_where_the_server_has_no_ids() -> None:
    assert (broken(text()) or ("",))[0] == "ids_missing"
    assert broken(text(), notes=TEXT) is None
    assert (broken(raw(prompt_token_ids=None), notes=TEXT) or ("",))[0] == "ids_missing"


def test_unknown_flags_stay() -> None:
    row = raw(flags=["of_tomorrow", "server_parser_missing"])
    assert flags(row) == ["server_parser_missing", "of_tomorrow"]


def test_rule_names_are_unique() -> None:
    for target in (PLAIN, THINKING, PREFILLED):
        for notes in (IDS, TEXT):
            names = [rule.name for rule in rules(target, EXPECTING, notes)]
            assert len(names) == len(set(names))
