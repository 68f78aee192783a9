"""Every family's normal turns are valid, and every fault planted in them is found under its own rule."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.target.formats import resolve_format
from eyas.target.spec import TargetProfile
from eyas.target.template import encode, generation_prompt_ids, load_tokenizer, render_text
from eyas.tokenkinds import ANSWER, REASONING, THINK_MARKER
from eyas.validate.comparison import compare
from eyas.validate.params import ValidateParams
from eyas.validate.responses import ServerNotes
from tests.families import FAMILIES
from tests.golden import VOCAB_SIZE, Family, GoldenTurn
from tests.hand_made import profile, prompts, raw
from tests.validate.judging import PARAMS, judged

ONE_TOKEN = replace(PARAMS, min_tokens=1)
EXPECTING = replace(ONE_TOKEN, expect_reasoning=True)
THINKING = [name for name in FAMILIES if name not in ("chatml", "llama-3")]
SAMPLING = replace(ONE_TOKEN, text_sample=100)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(params=FAMILIES)
def family(request: pytest.FixtureRequest) -> Family:
    return FAMILIES[request.param]


_PROFILES: dict[str, TargetProfile] = {}


def profile_of(family: Family, folder: Path) -> TargetProfile:
    """What the target stage finds out about the formats; sizes, for which it would import torch, are made up."""
    if family.name not in _PROFILES:
        tokenizer = load_tokenizer(family.tokenizer_dir(folder).resolve())
        turns = resolve_format(tokenizer, None)
        _PROFILES[family.name] = profile(
            vocab_size=VOCAB_SIZE,
            end_of_turn_ids=sorted(
                {*(family.markers[token] for token in family.eos), *turns.end_of_turn_ids}
            ),
            generation_prompt_ids=generation_prompt_ids(tokenizer),
            think=turns.think,
            tools=turns.tools,
            family=turns.family,
        )
    return _PROFILES[family.name]


@dataclass
class Case:
    """A golden turn with changes."""

    turn: GoldenTurn
    changes: dict[str, Any]

    def row(self, number: int) -> dict[str, Any]:
        """As a server with token ids sends it; without usage, so that nothing but structure can tell."""
        turn = self.turn
        answers = sum(message["role"] == "assistant" for message in turn.messages)
        return raw(
            f"talk:{number}",
            **{
                "messages": turn.messages,
                "reasoning": turn.reasoning,
                "content": turn.content,
                "tool_calls": turn.tool_calls,
                "finish_reason": turn.finish_reason,
                "turn": answers if in_tool_loop(turn) else 0,
                "prompt_token_ids": turn.prompt_ids,
                "token_ids": turn.generated_ids,
                "usage": None,
            }
            | self.changes,
        )


def case(turn: GoldenTurn, **changes: Any) -> Case:
    return Case(turn, changes)


def in_tool_loop(turn: GoldenTurn) -> bool:
    """Its earlier turn was generated too; in the others given answers are history."""
    return bool(turn.messages[-1]["role"] == "tool")


def judged_cases(
    cases: list[Case], profile: TargetProfile, params: ValidateParams = ONE_TOKEN
) -> list[dict[str, Any]]:
    """The ledger rows of cases, in their order; judged together where the template arguments are the same."""
    found: dict[int, dict[str, Any]] = {}
    kwargs = [one.turn.template_kwargs for one in cases]
    for distinct in [given for place, given in enumerate(kwargs) if given not in kwargs[:place]]:
        numbers = [number for number, given in enumerate(kwargs) if given == distinct]
        rows = [cases[number].row(number) for number in numbers]
        judgement = judged(rows, profile, params, ServerNotes(distinct, text_only=False), prompts=asked(rows))
        found |= dict(zip(numbers, judgement.ledger.to_dicts(), strict=True))
    return [found[number] for number in range(len(cases))]


def asked(rows: list[dict[str, Any]]) -> pl.DataFrame:
    """The prompt table: the earlier answers of a tool loop were generated, and are not in it."""
    given = [
        [message for message in row["messages"] if not row["turn"] or message["role"] != "assistant"]
        for row in rows
    ]
    return prompts([row | {"messages": messages} for row, messages in zip(rows, given, strict=True)])


def rules_of(cases: list[Case], profile: TargetProfile) -> list[str | None]:
    return [row["rule"] for row in judged_cases(cases, profile)]


def usage_of(turn: GoldenTurn) -> dict[str, int | None]:
    counts = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(turn.generated_ids)}
    return counts | {"reasoning_tokens": None}


def test_normal_turns_are_valid_without_flags(family: Family, folder: Path) -> None:
    profile = profile_of(family, folder)
    cases = [case(turn, usage=usage_of(turn)) for turn in family.turns]
    for turn, row in zip(family.turns, judged_cases(cases, profile), strict=True):
        assert (turn.name, row["rule"], row["flags"]) == (turn.name, None, [])
        assert row["truncated"] == turn.truncated
        assert row["reasoning_tokens"] == (turn.kinds.count(REASONING) if profile.think else None)


@pytest.mark.parametrize("name", THINKING)
def test_expected_reasoning_is_seen_in_text_and_in_ids(name: str, folder: Path) -> None:
    thinking, instant = (FAMILIES[name].turn(kind) for kind in ("thinking", "no_thinking"))
    cases = [case(thinking), case(thinking, reasoning=None), case(instant)]
    found = judged_cases(cases, profile_of(FAMILIES[name], folder), EXPECTING)
    assert [row["rule"] for row in found] == [None, None, "reasoning_missing"]


def test_texts_agree_with_decoded_ids(family: Family, folder: Path) -> None:
    profile = profile_of(family, folder)
    tokenizer = load_tokenizer(family.tokenizer_dir(folder).resolve())
    for kwargs in {str(turn.template_kwargs): turn.template_kwargs for turn in family.turns}.values():
        turns = [turn for turn in family.turns if turn.template_kwargs == kwargs]
        rows = [case(turn).row(number) for number, turn in enumerate(turns)]
        notes = ServerNotes(kwargs, text_only=False)
        sample = judged(rows, profile, SAMPLING, notes, prompts=asked(rows)).sample
        assert sample.height == sum(turn.tool_calls is None for turn in turns)
        assert compare(sample, tokenizer, profile).different == 0
        other = sample.with_columns(content=sample["content"].fill_null("") + "x")
        assert compare(other, tokenizer, profile).different == sample.height


def test_bad_ends_of_turn_are_found(family: Family, folder: Path) -> None:
    profile = profile_of(family, folder)
    newline = encode(load_tokenizer(family.tokenizer_dir(folder).resolve()), "\n")
    whole = [turn for turn in family.turns if not turn.truncated]
    cut = [
        *(case(turn, finish_reason="length") for turn in whole),
        *(
            case(turn, token_ids=[*turn.generated_ids, end])
            for turn in family.turns
            for end in profile.end_of_turn_ids
            if turn.truncated
        ),
    ]
    assert set(rules_of(cut, profile)) == {"end_of_turn_after_cut"}
    dropped = [case(turn, token_ids=turn.generated_ids[:-1]) for turn in whole]
    assert set(rules_of(dropped, profile)) == {"end_of_turn_missing"}
    appended = [case(turn, token_ids=[*turn.generated_ids, *newline]) for turn in whole]
    for row in judged_cases(appended, profile):
        assert row["rules"][:2] == ["end_of_turn_missing", "end_of_turn_inside"]


@pytest.mark.parametrize("shift", [-1, 1])
def test_a_mask_shifted_by_one_is_found(family: Family, shift: int, folder: Path) -> None:
    """By the counts of usage always; without usage by how the prompt ends, where a user was answered."""
    profile = profile_of(family, folder)
    turns = [turn for turn in family.turns if len(turn.generated_ids) > 1]
    counted, uncounted = [], []
    for turn in turns:
        ids, place = turn.prompt_ids + turn.generated_ids, len(turn.prompt_ids) + shift
        shifted = {"prompt_token_ids": ids[:place], "token_ids": ids[place:]}
        counted.append(case(turn, usage=usage_of(turn), **shifted))
        if not in_tool_loop(turn):
            uncounted.append(case(turn, **shifted))
    for row in judged_cases(counted, profile):
        assert row["rules"][:2] == ["prompt_ids_against_usage", "ids_against_usage"]
    for row in judged_cases(uncounted, profile):
        assert "generation_prompt" in row["rules"]


def marker_runs(turn: GoldenTurn) -> list[list[int]]:
    """Places of the generated think markers, one list for each marker."""
    runs: list[list[int]] = []
    for place, kind in enumerate(turn.kinds[len(turn.prompt_ids) :]):
        if kind == THINK_MARKER:
            if runs and runs[-1][-1] == place - 1:
                runs[-1].append(place)
            else:
                runs.append([place])
    return runs


def without_markers(turn: GoldenTurn, *numbers: int) -> list[int]:
    runs = marker_runs(turn)
    dropped = {place for number in numbers for place in runs[number]}
    return [token for place, token in enumerate(turn.generated_ids) if place not in dropped]


def without_kind(turn: GoldenTurn, dropped: int) -> list[int]:
    kinds = turn.kinds[len(turn.prompt_ids) :]
    return [token for token, kind in zip(turn.generated_ids, kinds, strict=True) if kind != dropped]


def swapped(turn: GoldenTurn, profile: TargetProfile) -> list[int]:
    """Opening and closing marker change places; where the prompt has the opening one, it takes the closing one's."""
    assert profile.think is not None
    runs, ids = marker_runs(turn), turn.generated_ids
    start, end = profile.think.start_ids, profile.think.end_ids
    if turn.opened:
        return [*ids[: runs[0][0]], *start, *ids[runs[0][-1] + 1 :]]
    first, last = runs
    return [*ids[: first[0]], *end, *ids[first[-1] + 1 : last[0]], *start, *ids[last[-1] + 1 :]]


FAULTS: dict[str, Callable[[GoldenTurn, TargetProfile], list[int]]] = {
    "think_end_missing": lambda turn, _: without_markers(turn, -1),
    "think_start_missing": lambda turn, _: without_markers(turn, 0),
    "reasoning_not_in_ids": lambda turn, _: without_markers(turn, *range(len(marker_runs(turn)))),
    "think_markers_swapped": swapped,
}
"""Rule -> the fault in the generated ids that breaks it."""


@pytest.mark.parametrize("rule", FAULTS)
@pytest.mark.parametrize("name", THINKING)
def test_removed_and_swapped_markers_are_found_by_name(name: str, rule: str, folder: Path) -> None:
    profile, turn = profile_of(FAMILIES[name], folder), FAMILIES[name].turn("thinking")
    # where the prompt has the opening marker, each of these faults loses the only generated one
    expected = "think_end_missing" if turn.opened else rule
    assert rules_of([case(turn, token_ids=FAULTS[rule](turn, profile))], profile) == [expected]


@pytest.mark.parametrize("name", THINKING)
def test_texts_that_the_ids_do_not_hold_are_found(name: str, folder: Path) -> None:
    turn = FAMILIES[name].turn("thinking")
    cases = [case(turn, token_ids=without_kind(turn, kind)) for kind in (REASONING, ANSWER)]
    found = rules_of(cases, profile_of(FAMILIES[name], folder))
    assert found == ["reasoning_not_in_ids", "content_not_in_ids"]


@pytest.mark.parametrize("name", THINKING)
def test_an_opening_marker_in_prompt_and_answer_is_found(name: str, folder: Path) -> None:
    profile, turn = profile_of(FAMILIES[name], folder), FAMILIES[name].turn("thinking")
    assert profile.think is not None
    (row,) = judged_cases([case(turn, token_ids=[*profile.think.start_ids, *turn.generated_ids])], profile)
    assert row["rule"] == ("think_start_repeated" if turn.opened else None)
    assert row["flags"] == ["think_marker_in_content"]


def test_a_finished_turn_rendered_through_the_template_is_found(family: Family, folder: Path) -> None:
    """What templates do to it: thinking dropped, an empty block added, a newline appended, no end of turn."""
    turn = family.turn("thinking" if family.name in THINKING else "no_thinking")
    tokenizer = load_tokenizer(family.tokenizer_dir(folder).resolve())
    answer = {"role": "assistant", "content": turn.content, "reasoning_content": turn.reasoning}
    text = render_text(
        tokenizer, [*turn.messages, answer], generation_prompt=False, template_kwargs=turn.template_kwargs
    )
    ids = encode(tokenizer, text)
    pairs = enumerate(zip(turn.prompt_ids, ids, strict=False))
    place = next((place for place, (ours, theirs) in pairs if ours != theirs), len(turn.prompt_ids))
    rendered = case(turn, prompt_token_ids=ids[:place], token_ids=ids[place:])
    found = rules_of([rendered], profile_of(family, folder))[0]
    if ids == turn.prompt_ids + turn.generated_ids:
        assert (
            family.name == "llama-3"
        )  # the one template here that renders a finished turn as it was generated
        assert found is None
    else:
        assert found in (
            "end_of_turn_missing",
            "reasoning_not_in_ids",
            "think_start_missing",
            "generation_prompt",
        )
