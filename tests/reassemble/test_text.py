"""The text path: ids of a turn from its texts, against golden ids, with and without what servers do to texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.answers import LOSSY_TEXT, MISFILED_REASONING, SERVER_PARSER_MISSING, TEXT_FLAGS, TEXT_NOT_FAITHFUL
from eyas.reassemble.completion import complete
from eyas.reassemble.inputs import ValidatedTable
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.rendering import Renderer
from eyas.reassemble.sequences import candidates, chosen, index
from eyas.reassemble.text import Rebuilt, TextRebuilder
from eyas.target.spec import TargetProfile
from eyas.target.template import load_tokenizer
from tests.families import FAMILIES
from tests.golden import Family, GoldenTurn
from tests.hand_made import raw
from tests.reassemble.golden_rows import row_of, table_of

THINKING = [name for name in FAMILIES if name not in ("gpt-oss", "chatml", "llama-3")]
WITH_GAPS = ["qwen3", "qwen3.5", "deepseek-r1", "deepseek-r1-0528"]


class Target:
    """A golden family with what the text path needs of it."""

    def __init__(self, family: Family, folder: Path) -> None:
        self.family = family
        self.directory = family.tokenizer_dir(folder)
        self.profile: TargetProfile = family.profile(folder)
        self.tokenizer = load_tokenizer(self.directory)
        self.rebuilder = TextRebuilder(self.tokenizer, self.profile)

    def rebuild(self, turn: GoldenTurn, **changes: Any) -> Rebuilt:
        return self.rebuilder.rebuild(row_of(self.family, turn, **changes), turn.prompt_ids)

    def sequences(
        self, tmp_path: Path, *rows: dict[str, Any], keep_truncated: bool = True
    ) -> tuple[pl.DataFrame, dict[str, str]]:
        """The sequences of rows by the text path, and why others became none."""
        path = tmp_path / "rows.parquet"
        table_of(*rows).write_parquet(path)
        table = complete(
            ValidatedTable("d", path, {}),
            tmp_path / "completed",
            Renderer(self.directory, {}),
            self.rebuilder,
        )
        params = ReassembleParams(val_share=0.5, max_length=1000, keep_truncated=keep_truncated)
        made = candidates(table.rows(), self.profile, params)
        refused = index(made).filter(pl.col("reason").is_not_null())
        return chosen(made).collect(), dict(refused.select("sequence_id", "reason").rows())


@pytest.fixture(scope="module")
def targets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Target]:
    folder = tmp_path_factory.mktemp("families")
    return {name: Target(family, folder) for name, family in FAMILIES.items()}


def textual(family: Family, turn: GoldenTurn, /, **changes: Any) -> dict[str, Any]:
    """The row of a server that sends text and counts only."""
    usage = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(turn.generated_ids)}
    without = {"prompt_token_ids": None, "token_ids": None, "usage": usage | {"reasoning_tokens": None}}
    return row_of(family, turn, **(without | changes))


@pytest.mark.parametrize("name", FAMILIES)
def test_rows_without_ids_become_the_golden_sequences(
    name: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    target = targets[name]
    turns = [turn for turn in target.family.turns if not turn.template_kwargs]
    rows = [textual(target.family, turn) for turn in turns]
    rows[0] |= {"prompt_token_ids": turns[0].prompt_ids, "token_ids": turns[0].generated_ids}  # one has ids
    table, refused = target.sequences(tmp_path, *rows)
    usable = [turn for turn in turns if not turn.tool_calls]
    assert table["token_ids"].to_list() == [[*turn.prompt_ids, *turn.generated_ids] for turn in usable]
    assert table["kinds"].to_list() == [turn.kinds for turn in usable]
    assert table["origin"].to_list() == ["ids", *["text"] * (len(usable) - 1)]
    assert set(refused.values()) == ({"tool_calls"} if len(usable) < len(turns) else set())


@pytest.mark.parametrize("keep_truncated", [True, False])
@pytest.mark.parametrize("with_ids", [True, False], ids=["ids", "text"])
@pytest.mark.parametrize("name", THINKING)
def test_case_B01_cut_inside_the_thinking(
    name: str, with_ids: bool, keep_truncated: bool, targets: dict[str, Target], tmp_path: Path
) -> None:
    target = targets[name]
    turn = target.family.turn("cut")
    row = row_of(target.family, turn) if with_ids else textual(target.family, turn)
    if name == "deepseek-v3.1":
        row["token_ids"], row["prompt_token_ids"] = turn.generated_ids, turn.prompt_ids  # off by default
    table, refused = target.sequences(tmp_path, row, keep_truncated=keep_truncated)
    if not keep_truncated:
        assert refused == {row["sample_id"]: "truncated"}
        return
    found = table.row(0, named=True)
    generated = found["token_ids"][len(turn.prompt_ids) :]
    think = target.profile.think
    assert think is not None
    assert generated == turn.generated_ids
    assert found["truncated"]
    assert not set(generated) & {*think.end_ids, *target.profile.end_of_turn_ids}
    assert (think.start_ids[0] in generated) == (not turn.opened)


@pytest.mark.parametrize("with_ids", [True, False], ids=["ids", "text"])
@pytest.mark.parametrize(("stop", "cut"), [("\n\n", "It is"), (" easy", "It is"), ("128", "It")])
def test_case_B10_a_stop_string_cuts_the_turn(
    stop: str, cut: str, with_ids: bool, targets: dict[str, Target], tmp_path: Path
) -> None:
    """`128` is a stop string too: no end-of-turn id, though it looks like an id."""
    target = targets["qwen3"]
    turn = target.family.turn("thinking")
    ids = [650, 10, 274, 275][: 3 + (cut == "It is")]
    changes = {
        "reasoning": cut,
        "content": None,
        "finish_reason": "stop",
        "stop_reason": stop,
        "truncated": True,
    }
    usage = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(ids), "reasoning_tokens": None}
    row = row_of(target.family, turn, token_ids=ids, usage=usage, **changes)
    if not with_ids:
        row |= {"token_ids": None, "prompt_token_ids": None}
    table, refused = target.sequences(tmp_path, row)
    assert refused == {}
    assert table["token_ids"].to_list() == [[*turn.prompt_ids, *ids]]
    assert table["truncated"].to_list() == [True]


@pytest.mark.parametrize(
    ("reasoning", "content"),
    [(" It is easy. ", " Four."), ("It is easy. ", "Four."), ("It is easy.", " Four.")],
    ids=["both", "reasoning", "content"],
)
@pytest.mark.parametrize("name", ["kimi-k2-thinking", "kimi-k2.5"])
def test_case_C01_phantom_spaces_are_longer_than_the_answer(
    name: str, reasoning: str, content: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    target = targets[name]
    turn = target.family.turn("thinking")
    row = textual(target.family, turn, reasoning=reasoning, content=content)
    exact = row_of(target.family, turn, reasoning=reasoning, content=content, turn=1)
    table, refused = target.sequences(tmp_path, row, exact)
    assert refused == {row["sample_id"]: TEXT_NOT_FAITHFUL}
    assert table["token_ids"].to_list() == [[*turn.prompt_ids, *turn.generated_ids]]
    rebuilt = target.rebuild(turn, reasoning=reasoning, content=content).token_ids
    assert rebuilt is not None
    assert len(rebuilt) > len(turn.generated_ids)


@pytest.mark.parametrize("name", WITH_GAPS)
@pytest.mark.parametrize("frame", ["stripped", "kept", "reasoning-stripped", "content-stripped"])
def test_case_C02_whitespace_that_a_parser_took_away_is_put_back(
    name: str, frame: str, targets: dict[str, Target]
) -> None:
    target = targets[name]
    turn = target.family.turn("thinking")
    before = "" if turn.opened else "\n"
    reasoning = "It is easy." if frame in ("stripped", "reasoning-stripped") else before + "It is easy.\n"
    content = "Four." if frame in ("stripped", "content-stripped") else "\n\nFour."
    assert target.rebuild(turn, reasoning=reasoning, content=content).token_ids == turn.generated_ids


@pytest.mark.parametrize("content", ["It is", "\nIt is"], ids=["indent", "newline-and-indent"])
def test_case_C04_a_lost_indentation_is_found_by_the_length(
    content: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    """The target wrote four spaces before the answer; a parser stripped them, with ids it does not matter."""
    target = targets["kimi-k2.5"]
    turn = target.family.turn("thinking")
    ids = [*turn.generated_ids[:5], *target.tokenizer("    It is")["input_ids"], turn.generated_ids[-1]]
    usage = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": len(ids), "reasoning_tokens": None}
    stripped = textual(target.family, turn, content=content, usage=usage)
    whole = textual(target.family, turn, content="    It is", usage=usage, turn=1)
    exact = row_of(target.family, turn, content=content, token_ids=ids, usage=usage, turn=2)
    table, refused = target.sequences(tmp_path, stripped, whole, exact)
    assert refused == {stripped["sample_id"]: TEXT_NOT_FAITHFUL}
    assert table["token_ids"].to_list() == [[*turn.prompt_ids, *ids]] * 2


@pytest.mark.parametrize("where", ["reasoning", "content"])
@pytest.mark.parametrize("text", ["It \ufffd", "\ufffd It", "It\ufffd\ufffd is"])
def test_case_C05_broken_characters_need_ids(
    where: str, text: str, targets: dict[str, Target], tmp_path: Path
) -> None:
    target = targets["qwen3"]
    turn = target.family.turn("cut")
    ids = [*turn.generated_ids, 0xF0]  # the first byte of a character
    row = textual(target.family, turn, **{where: text})
    exact = row_of(target.family, turn, token_ids=ids, turn=1, **{where: text})
    table, refused = target.sequences(tmp_path, row, exact)
    assert refused == {row["sample_id"]: LOSSY_TEXT}
    assert table["token_ids"].to_list() == [[*turn.prompt_ids, *ids]]


@pytest.mark.parametrize("flag", TEXT_FLAGS)
def test_flagged_texts_are_refused_by_the_flag(flag: str, targets: dict[str, Target]) -> None:
    target = targets["qwen3"]
    turn = target.family.turn("thinking")
    assert target.rebuild(turn, flags=[SERVER_PARSER_MISSING]).token_ids == turn.generated_ids
    assert target.rebuild(turn, flags=[SERVER_PARSER_MISSING, flag]) == Rebuilt(None, flag)


def test_a_row_of_no_text_and_a_row_of_tool_calls_are_refused(targets: dict[str, Target]) -> None:
    target = targets["qwen3"]
    turn = target.family.turn("thinking")
    assert target.rebuild(turn, reasoning=None, content=" \n").refused == "no_text"
    called = target.rebuild(turn, tool_calls=target.family.turn("tool_call").tool_calls)
    assert called.refused == "tool_calls"
    assert target.rebuild(turn, flags=[MISFILED_REASONING]).refused == MISFILED_REASONING


def test_other_lengths_are_refused_and_unknown_ones_are_not(
    targets: dict[str, Target], tmp_path: Path
) -> None:
    target = targets["chatml"]
    turn = target.family.turn("no_thinking")
    counts = {"prompt_tokens": len(turn.prompt_ids), "completion_tokens": 3, "reasoning_tokens": None}
    usages: list[dict[str, int | None] | None] = [
        counts, None, counts | {"prompt_tokens": None}, counts | {"completion_tokens": 4}, counts | {"prompt_tokens": 1}
    ]  # fmt: skip
    rows = [textual(target.family, turn, usage=usage, turn=number) for number, usage in enumerate(usages)]
    table, refused = target.sequences(tmp_path, *rows)
    assert table["turn"].to_list() == [0, 1, 2]
    assert list(refused.values()) == [TEXT_NOT_FAITHFUL, "prompt_rendered_differently"]


def test_the_server_says_which_end_of_turn_it_was(targets: dict[str, Target]) -> None:
    target = targets["glm-4.5"]  # the template ends no turn
    turn = target.family.turn("thinking")
    for marker in ("<|user|>", "<|observation|>", "<|endoftext|>"):
        end = target.family.markers[marker]
        rebuilt = target.rebuild(turn, stop_reason=str(end)).token_ids
        assert rebuilt == [*turn.generated_ids[:-1], end]
    assert target.rebuild(turn, stop_reason=None).refused == "end_of_turn_unknown"
    assert target.rebuild(turn, stop_reason=None, truncated=True).token_ids == turn.generated_ids[:-1]


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("where", ["reasoning", "content"])
def test_literal_markers_are_ordinary_text(name: str, where: str, targets: dict[str, Target]) -> None:
    target = targets[name]
    turn = target.family.turns[0]
    text = "".join(f"It{marker} is{marker}" for marker in target.family.markers)
    rebuilt = target.rebuild(turn, **{where: text}).token_ids
    assert rebuilt is not None
    control = set(target.family.markers.values())
    honest = [token for token in turn.generated_ids if token in control]
    assert [token for token in rebuilt if token in control] == honest
    assert text in target.tokenizer.decode(rebuilt, skip_special_tokens=False)


words = st.lists(
    st.sampled_from(["It", " is", " easy", ".", "Four", " two", "\n", " ", "é", "<think>"]), min_size=1
)
plain = words.map("".join).map(str.strip).filter(bool)


@given(plain, plain, st.sampled_from([*THINKING, "gpt-oss"]), st.booleans())
def test_text_of_canonical_turns_gives_their_ids(
    targets: dict[str, Target], reasoning: str, content: str, name: str, cut: bool
) -> None:
    """Random turns, written as the family writes them, by another way: spans of ids between the markers."""
    target = targets[name]
    turn, think = target.family.turn("thinking"), target.profile.think
    assert think is not None
    before = "" if turn.opened and name in ("qwen3.5", "deepseek-r1") else think.gap_after_start
    head = [] if turn.opened else [*spans(target, think.gap_before_start), *think.start_ids]
    ids = [*head, *spans(target, before + reasoning + ("" if cut else think.gap_before_end))]
    if not cut:
        ids += [*think.end_ids, *spans(target, think.gap_after_end + content), turn.generated_ids[-1]]
    row = row_of(target.family, turn, token_ids=ids, reasoning=reasoning, truncated=cut)
    row |= {"content": None if cut else content}
    assert target.rebuilder.rebuild(row, turn.prompt_ids).token_ids == ids


def spans(target: Target, text: str) -> list[int]:
    """Ids of ordinary text: the markers in it are broken up by what no vocabulary joins."""
    if "<think>" not in text:
        return list(target.tokenizer(text, add_special_tokens=False)["input_ids"])
    left, right = text.split("<think>", maxsplit=1)
    alphabet = pl.Series(["<", "think", ">"])
    marker = [token for part in alphabet for token in part.encode()]
    return [*spans(target, left), *marker, *spans(target, right)]


def test_hand_made_row_helper_counts_from_ids() -> None:
    """The rows of these tests say in usage what their ids are, unless told otherwise."""
    assert raw(token_ids=[1, 2])["usage"]["completion_tokens"] == 2
