"""Planted bugs: each must be caught, with a message that says what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import GateError
from eyas.reassemble.checks import check_sequences, find_differences, find_problems, refuse
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.sequences import candidates, chosen, index
from eyas.schema import Sequences, columns_of
from eyas.target.spec import TargetProfile, ToolFormat
from eyas.target.template import encode, load_tokenizer, render_text
from tests.families import FAMILIES
from tests.golden import Family, GoldenTurn
from tests.hand_made import END, END_THINK, PROMPT_IDS, THINK, raw
from tests.hand_made import THINKING as THINK_FORMAT
from tests.hand_made import profile as hand_made_profile
from tests.reassemble.golden_rows import row_of, table_of

PARAMS = ReassembleParams(val_share=0.1, max_length=1000, keep_truncated=True)
Row = dict[str, Any]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module")
def profiles(folder: Path) -> dict[str, TargetProfile]:
    return {name: family.profile(folder) for name, family in FAMILIES.items()}


def sequence_of(family: Family, turn: GoldenTurn, profile: TargetProfile) -> Row:
    lazy = candidates(table_of(row_of(family, turn)).lazy(), profile, PARAMS)
    return chosen(lazy).collect().row(0, named=True)


def index_of(family: Family, turn: GoldenTurn, profile: TargetProfile) -> pl.DataFrame:
    return index(candidates(table_of(row_of(family, turn)).lazy(), profile, PARAMS))


def table(row: Row) -> pl.DataFrame:
    return pl.DataFrame([row], schema=columns_of(Sequences))


def generated(row: Row) -> list[tuple[int, int]]:
    """Id and kind of each generated token."""
    prompt = row["num_prompt_tokens"]
    return list(zip(row["token_ids"][prompt:], row["kinds"][prompt:], strict=True))


def with_generated(row: Row, tokens: list[tuple[int, int]]) -> Row:
    """The row with another generated part; its columns agree with each other, as a consistent bug would leave them."""
    prompt = row["num_prompt_tokens"]
    return row | {
        "token_ids": [*row["token_ids"][:prompt], *(token for token, _ in tokens)],
        "kinds": [0] * prompt + [kind for _, kind in tokens],
        "num_generated_tokens": len(tokens),
    }


def markers(profile: TargetProfile) -> tuple[int, int]:
    assert profile.think is not None
    (start,), (end,) = profile.think.start_ids, profile.think.end_ids
    return start, end


@pytest.mark.parametrize("name", list(FAMILIES))
def test_golden_sequences_have_no_problem(name: str, profiles: dict[str, TargetProfile]) -> None:
    family, profile = FAMILIES[name], profiles[name]
    found = pl.DataFrame(sequences_of(family, profile), schema=columns_of(Sequences))
    assert found.height == len(family.turns)
    check_sequences(found, profile)
    answers = table_of(*(row_of(family, turn) for turn in family.turns)).lazy()
    assert find_differences(found, index(candidates(answers, profile, PARAMS))).is_empty()


THINKING = [
    (family, family.turn("thinking"))
    for name, family in FAMILIES.items()
    if name not in ("gpt-oss", "chatml", "llama-3")
]
thinking = pytest.mark.parametrize(("family", "turn"), THINKING, ids=[family.name for family, _ in THINKING])


def without(row: Row, gone: int) -> Row:
    return with_generated(row, [pair for pair in generated(row) if pair[0] != gone])


def problem_of(row: Row, profile: TargetProfile) -> str:
    with pytest.raises(GateError) as caught:
        check_sequences(table(row), profile)
    assert row["sequence_id"] in str(caught.value)
    return str(caught.value)


@thinking
def test_a_removed_end_marker(family: Family, turn: GoldenTurn, profiles: dict[str, TargetProfile]) -> None:
    profile = profiles[family.name]
    row = without(sequence_of(family, turn, profile), markers(profile)[1])
    assert "thinking has no end: the end marker is missing: 1" in problem_of(row, profile)


@thinking
def test_a_removed_opening_marker(
    family: Family, turn: GoldenTurn, profiles: dict[str, TargetProfile]
) -> None:
    profile = profiles[family.name]
    row = sequence_of(family, turn, profile)
    start, _ = markers(profile)
    if turn.opened:  # it is in the prompt
        prompt = row["token_ids"][: row["num_prompt_tokens"]]
        place = len(prompt) - 1 - prompt[::-1].index(start)
        for name in ("token_ids", "kinds"):
            row[name] = [*row[name][:place], *row[name][place + 1 :]]
        row["num_prompt_tokens"] -= 1
    else:
        row = without(row, start)
    assert "thinking ends that nothing opened: the opening marker is missing: 1" in problem_of(row, profile)


@thinking
def test_swapped_markers(family: Family, turn: GoldenTurn, profiles: dict[str, TargetProfile]) -> None:
    profile = profiles[family.name]
    row = sequence_of(family, turn, profile)
    start, end = markers(profile)
    swapped = {start: end, end: start}
    row = with_generated(row, [(swapped.get(token, token), kind) for token, kind in generated(row)])
    expected = "thinking has no end" if turn.opened else "the think markers are swapped: 1"
    assert expected in problem_of(row, profile)


@thinking
def test_both_markers_removed_is_not_what_the_server_sent(
    family: Family, turn: GoldenTurn, profiles: dict[str, TargetProfile]
) -> None:
    profile = profiles[family.name]
    row = sequence_of(family, turn, profile)
    for marker in markers(profile):
        row = without(row, marker)
    problems = find_differences(table(row), index_of(family, turn, profile))
    assert problems["problem"].to_list() == ["prompt and generated part are not as long as the server's"]
    assert f"the answer has {len(turn.prompt_ids)} and {len(turn.generated_ids)}" in problems["seen"][0]


def sequences_of(family: Family, profile: TargetProfile) -> list[Row]:
    rows = table_of(*(row_of(family, turn) for turn in family.turns))
    return chosen(candidates(rows.lazy(), profile, PARAMS)).collect().rows(named=True)


@pytest.mark.parametrize("step", [-1, 1], ids=["left", "right"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_mask_shifted_by_one(name: str, step: int, profiles: dict[str, TargetProfile]) -> None:
    rows = sequences_of(FAMILIES[name], profiles[name])
    for row in rows:
        kinds = row["kinds"]
        row["kinds"] = [*kinds[1:], kinds[-1]] if step < 0 else [kinds[0], *kinds[:-1]]
    problems = find_problems(pl.DataFrame(rows, schema=columns_of(Sequences)), profiles[name])
    assert problems["sequence_id"].to_list() == [row["sequence_id"] for row in rows]
    assert set(problems["problem"]) == {"the supervised part is not the generated part"}
    for row, seen in zip(rows, problems["seen"], strict=True):
        first = row["num_prompt_tokens"] + step
        assert f"supervised tokens from token {first}," in seen or not any(row["kinds"])
        assert seen.endswith(f"generated tokens from token {row['num_prompt_tokens']}")


@pytest.mark.parametrize("step", [-1, 1], ids=["left", "right"])
@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_prompt_that_is_one_longer_or_shorter_in_every_column(
    name: str, step: int, profiles: dict[str, TargetProfile]
) -> None:
    family, profile = FAMILIES[name], profiles[name]
    rows = sequences_of(family, profile)
    for row in rows:
        prompt, length = row["num_prompt_tokens"] + step, len(row["token_ids"])
        row |= {
            "num_prompt_tokens": prompt,
            "num_generated_tokens": length - prompt,
            "kinds": [0 if place < prompt else max(kind, 1) for place, kind in enumerate(row["kinds"])],
        }
    answers = table_of(*(row_of(family, turn) for turn in family.turns)).lazy()
    problems = find_differences(
        pl.DataFrame(rows, schema=columns_of(Sequences)), index(candidates(answers, profile, PARAMS))
    )
    assert problems["sequence_id"].to_list() == [row["sequence_id"] for row in rows]
    assert set(problems["problem"]) == {"prompt and generated part are not as long as the server's"}


@pytest.mark.parametrize("name", list(FAMILIES))
def test_a_dropped_end_of_turn(name: str, profiles: dict[str, TargetProfile]) -> None:
    rows = sequences_of(FAMILIES[name], profiles[name])
    end = profiles[name].end_of_turn_ids[0]
    cut = [row["truncated"] for row in rows]
    rows = [
        with_generated(row, [*generated(row), (end, 5)] if row["truncated"] else generated(row)[:-1])
        for row in rows
    ]
    problems = find_problems(pl.DataFrame(rows, schema=columns_of(Sequences)), profiles[name])
    assert problems["problem"].to_list() == [
        "a cut turn has an end-of-turn token"
        if was_cut
        else "the turn has no end-of-turn token and was not cut"
        for was_cut in cut
    ]
    assert problems["seen"].to_list() == [f"the last id is {row['token_ids'][-1]}" for row in rows]


@pytest.mark.parametrize("name", list(FAMILIES))
def test_an_appended_template_newline(name: str, profiles: dict[str, TargetProfile]) -> None:
    family = FAMILIES[name]
    turn = next(turn for turn in family.turns if not turn.truncated)
    row = sequence_of(family, turn, profiles[name])
    message = problem_of(with_generated(row, [*generated(row), (10, 3)]), profiles[name])
    assert f"tokens follow the end of the turn: 1 ({row['sequence_id']}), for example 1 tokens" in message


@pytest.mark.parametrize("name", list(FAMILIES))
def test_case_B09_a_finished_turn_rendered_through_the_template(
    name: str, profiles: dict[str, TargetProfile], folder: Path
) -> None:
    """Every family's template changes a finished turn that thinks, and most add something behind it."""
    family = FAMILIES[name]
    turn = family.turn("thinking" if profiles[name].think else "no_thinking")
    tokenizer = load_tokenizer(family.tokenizer_dir(folder))
    answer = {"role": "assistant", "content": turn.content, "reasoning": turn.reasoning}
    text = render_text(
        tokenizer, [*turn.messages, answer], generation_prompt=False, template_kwargs=turn.template_kwargs
    )
    rendered = encode(tokenizer, text)
    honest = sequence_of(family, turn, profiles[name])
    same = rendered == honest["token_ids"]
    assert same == (name == "llama-3")  # no thinking, and nothing behind the end of turn
    prompt = next(
        (
            place
            for place, pair in enumerate(zip(rendered, turn.prompt_ids, strict=False))
            if len(set(pair)) > 1
        ),
        min(len(rendered) - 1, len(turn.prompt_ids)),
    )
    row = with_generated(
        honest | {"token_ids": rendered, "num_prompt_tokens": prompt},
        [(token, 3) for token in rendered[prompt:]],
    )
    problems = find_differences(table(row), index_of(family, turn, profiles[name]))
    assert problems.is_empty() == same


@pytest.mark.parametrize("name", ["qwen3", "kimi-k2-thinking", "chatml"])
def test_a_rendered_turn_is_no_turn_by_itself_either(
    name: str, profiles: dict[str, TargetProfile], folder: Path
) -> None:
    """Where the template adds a newline or drops the thinking, the table alone says so."""
    family = FAMILIES[name]
    row = sequence_of(family, family.turns[0], profiles[name])
    tokens = generated(row)
    if name == "kimi-k2-thinking":
        empty = [(token, 2 if kind == 1 else kind) for token, kind in tokens if kind != 2]
        row = with_generated(row, empty)
        assert "the kinds do not say what the markers say: 1" in problem_of(row, profiles[name])
    else:
        assert "tokens follow the end of the turn" in problem_of(
            with_generated(row, [*tokens, (10, 3)]), profiles[name]
        )


def qwen(profiles: dict[str, TargetProfile]) -> Row:
    return sequence_of(FAMILIES["qwen3"], FAMILIES["qwen3"].turn("thinking"), profiles["qwen3"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda row: row | {"kinds": row["kinds"][:-1]}, "ids and kinds differ in length"),
        (lambda row: row | {"kinds": [1, *row["kinds"][1:]]}, "the supervised part is not the generated part"),
        (lambda row: row | {"kinds": [*row["kinds"][:-1], 0]}, "the supervised part is not the generated part"),
        (lambda row: row | {"kinds": [*row["kinds"][:-1], 6]}, "a token is of an unknown kind"),
        (lambda row: row | {"kinds": [*row["kinds"][:-1], 3]}, "the end-of-turn token is not marked as such"),
        (lambda row: row | {"kinds": [5 if kind == 3 else kind for kind in row["kinds"]]}, "not marked as such"),
        (lambda row: row | {"kinds": [3 if kind == 2 else kind for kind in row["kinds"]]}, "the kinds do not say"),
        (lambda row: row | {"kinds": [2 if kind == 3 else kind for kind in row["kinds"]]}, "the kinds do not say"),
        (lambda row: row | {"kinds": [3 if kind == 1 else kind for kind in row["kinds"]]}, "the kinds do not say"),
        (lambda row: row | {"token_ids": [*row["token_ids"][:-2], 1000, row["token_ids"][-1]]}, "vocabulary"),
        (lambda row: row | {"truncated": True}, "a cut turn has an end-of-turn token"),
    ],
)  # fmt: skip
def test_columns_that_contradict_each_other(
    change: Callable[[Row], Row], message: str, profiles: dict[str, TargetProfile]
) -> None:
    assert message in problem_of(change(qwen(profiles)), profiles["qwen3"])


def test_one_changed_id_is_not_the_server_s(profiles: dict[str, TargetProfile]) -> None:
    family = FAMILIES["qwen3"]
    answers = index_of(family, family.turn("thinking"), profiles["qwen3"])
    row = qwen(profiles)
    for place, problem in ((1, "the prompt ids are not the server's"), (-3, "the generated ids are not")):
        ids = list(row["token_ids"])
        ids[place] = 999
        found = find_differences(table(row | {"token_ids": ids}), answers)
        assert found["problem"][0].startswith(problem)
    foreign = find_differences(table(row | {"sequence_id": "other:1"}), answers)
    assert foreign["problem"].to_list() == ["no answer has this sequence_id"]


def test_problems_are_counted_with_examples(profiles: dict[str, TargetProfile]) -> None:
    good = qwen(profiles)
    rows = [good | {"sequence_id": f"qwen3:{number}"} for number in range(6)]
    for row in rows[:4]:
        row |= with_generated(row, generated(row)[:-1])
    rows[4] |= {"truncated": True}
    both = pl.DataFrame(rows, schema=columns_of(Sequences))
    problems = find_problems(both, profiles["qwen3"])
    with pytest.raises(GateError) as caught:
        refuse(problems, both.height)
    message = str(caught.value)
    assert "5 of 6 sequences are not what the target produced" in message
    assert "was not cut: 4 (qwen3:0, qwen3:1, qwen3:2), for example the last id is" in message
    assert "a cut turn has an end-of-turn token: 1 (qwen3:4)" in message
    refuse(problems.clear(), 6)


TOKENS = st.sampled_from([10, 20, 30, 31, THINK, END_THINK, 15, 16])
WRITES = replace(
    THINK_FORMAT, on_tail_ids=[1, 9, 10], off_tail_ids=[1, 9, 10, THINK, END_THINK],
    implicit_ends=["<tool_call>"], implicit_end_ids=[[15]],
)  # fmt: skip
WITH_GAP = replace(WRITES, gap_after_start="\n", gap_after_start_ids=[10])
FORMATS = st.sampled_from(
    [None, WRITES, WITH_GAP, replace(WRITES, prefilled=True, on_tail_ids=[1, 9, 10, THINK])]
)
TAILS = st.sampled_from([[], [THINK], [THINK, 10], [THINK, END_THINK]])


@pytest.mark.parametrize(("think", "tail"), [(WRITES, [THINK]), (WITH_GAP, [THINK]), (WITH_GAP, [THINK, 10])])
def test_thinking_that_a_template_argument_opens_is_judged_by_the_prompt(think: Any, tail: list[int]) -> None:
    target = hand_made_profile(think=think)
    good = raw(prompt_token_ids=[*PROMPT_IDS, *tail], token_ids=[30, END_THINK, 31, END])
    row = chosen(candidates(table_of(good).lazy(), target, PARAMS)).collect().row(0, named=True)
    check_sequences(table(row), target)
    assert "the kinds do not say" in problem_of(
        with_generated(row, [(token, max(kind, 3)) for token, kind in generated(row)]), target
    )
    unopened = row | {"token_ids": [*PROMPT_IDS, *[30] * len(tail), 30, END_THINK, 31, END]}
    assert "the opening marker is missing" in problem_of(unopened, target)
    one_token = row | {"token_ids": [THINK, 30, END_THINK, 31, END], "num_prompt_tokens": 1}
    one_token |= {"kinds": [0, 2, 1, 3, 5]}
    check_sequences(table(one_token), target)


@given(st.lists(TOKENS, min_size=1, max_size=10), FORMATS, TAILS, st.booleans())
def test_two_ways_to_read_a_turn_agree(ids: list[int], think: Any, tail: list[int], cut: bool) -> None:
    """What the making of sequences accepts, the checks accept, and what it refuses for its markers, they refuse."""
    target = hand_made_profile(think=think, tools=ToolFormat(["<tool_call>"], [[15]], "</tool_call>", [16]))
    answer = raw(
        prompt_token_ids=[*PROMPT_IDS, *tail],
        token_ids=ids if cut else [*ids, END],
        truncated=cut,
        finish_reason="length" if cut else "stop",
    )
    made = candidates(table_of(answer).lazy(), target, PARAMS)
    reason = index(made)["reason"].item()
    accepted = made.with_columns(reason=pl.lit(None, dtype=pl.String))
    problems = find_problems(chosen(accepted).collect(), target)["problem"].to_list()
    if reason is None:
        assert problems == []
    else:
        assert len(problems) == 1
        assert ("nothing opened" in problems[0] or "swapped" in problems[0]) == (
            reason == "thinking_not_opened"
        )
