"""Golden turns of every family: kinds from ids, ids from text, and prompts from messages, against hand-made ids."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import polars as pl
import pytest

from eyas.reassemble.checks import check_sequences
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.rendering import Mismatch, Renderer, mismatches
from eyas.reassemble.sequences import candidates, chosen
from eyas.reassemble.text import TextRebuilder
from eyas.schema import Sequences, check
from eyas.target.spec import TargetProfile
from eyas.target.template import load_tokenizer
from tests.families import FAMILIES
from tests.golden import Family, GoldenTurn
from tests.reassemble.golden_rows import ALL_TURNS, NAMES, row_of, table_of

PARAMS = ReassembleParams(val_share=0.1, max_length=1000, keep_truncated=True)
every_turn = pytest.mark.parametrize(("family", "turn"), ALL_TURNS, ids=NAMES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.fixture(scope="module")
def profiles(folder: Path) -> dict[str, TargetProfile]:
    return {name: family.profile(folder) for name, family in FAMILIES.items()}


@pytest.fixture(scope="module")
def rebuilders(folder: Path, profiles: dict[str, TargetProfile]) -> dict[str, TextRebuilder]:
    return {
        name: TextRebuilder(load_tokenizer(family.tokenizer_dir(folder)), profiles[name])
        for name, family in FAMILIES.items()
    }


def sequence(family: Family, turn: GoldenTurn, profile: TargetProfile, **changes: Any) -> pl.DataFrame:
    table = chosen(candidates(table_of(row_of(family, turn, **changes)).lazy(), profile, PARAMS)).collect()
    check(Sequences, table, "sequences")
    check_sequences(table, profile)
    return table


@every_turn
def test_kinds_are_those_written_by_hand(
    family: Family, turn: GoldenTurn, profiles: dict[str, TargetProfile]
) -> None:
    row = sequence(family, turn, profiles[family.name]).row(0, named=True)
    assert row["token_ids"] == [*turn.prompt_ids, *turn.generated_ids]
    assert row["kinds"] == turn.kinds
    assert sum(kind > 0 for kind in row["kinds"]) == len(turn.generated_ids)  # = completion_tokens


@every_turn
def test_text_gives_the_golden_ids(
    family: Family, turn: GoldenTurn, rebuilders: dict[str, TextRebuilder]
) -> None:
    rebuilt = rebuilders[family.name].rebuild(row_of(family, turn), turn.prompt_ids)
    if turn.tool_calls:
        assert (rebuilt.token_ids, rebuilt.refused) == (None, "tool_calls")
    else:
        assert rebuilt.token_ids == turn.generated_ids


@every_turn
def test_prompts_are_rendered_as_written_by_hand(folder: Path, family: Family, turn: GoldenTurn) -> None:
    renderer = Renderer(family.tokenizer_dir(folder), turn.template_kwargs)
    rows = table_of(row_of(family, turn))
    assert list(mismatches([rows], renderer)) == []
    changed = [*turn.prompt_ids[:-1], 7]
    found = list(mismatches([table_of(row_of(family, turn, prompt_token_ids=changed))], renderer))
    position = len(turn.prompt_ids) - 1
    assert found == [Mismatch(f"{family.name}:{turn.name}", position, 7, turn.prompt_ids[-1])]


@pytest.mark.parametrize("name", [name for name, family in FAMILIES.items() if len(family.turns) > 3])
def test_case_J01_one_row_per_generation_and_the_history_as_the_server_saw_it(
    name: str, profiles: dict[str, TargetProfile]
) -> None:
    """Two turns of one conversation: the second one's prompt has lost the thinking of the first, its answer has not."""
    family, profile = FAMILIES[name], profiles[name]
    earlier = family.turn("thinking" if profile.think else "no_thinking")
    later = family.turn("history")
    rows = [row_of(family, earlier, sample_id="talk:1"), row_of(family, later, sample_id="talk:1", turn=1)]
    table = chosen(candidates(table_of(*rows).lazy(), profile, PARAMS)).collect()
    check_sequences(table, profile)
    assert table["sequence_id"].to_list() == ["talk:1", "talk:1#1"]
    assert table["token_ids"].to_list() == [
        [*turn.prompt_ids, *turn.generated_ids] for turn in (earlier, later)
    ]
    assert table["kinds"].to_list() == [earlier.kinds, later.kinds]
    assert table["num_prompt_tokens"].to_list() == [len(earlier.prompt_ids), len(later.prompt_ids)]


@pytest.mark.parametrize(
    "name", ["kimi-k2.5", "kimi-k2-thinking", "qwen3.5", "qwen3", "deepseek-r1", "gpt-oss"]
)
def test_case_J02_the_mask_begins_behind_the_prompt_and_ends_with_the_end_of_turn(
    name: str, profiles: dict[str, TargetProfile]
) -> None:
    family = FAMILIES[name]
    turn = family.turn("thinking")
    row = sequence(family, turn, profiles[name]).row(0, named=True)
    supervised = [token for token, kept in zip(row["token_ids"], row["kinds"], strict=True) if kept]
    assert supervised == turn.generated_ids
    assert (
        sum(kind > 0 for kind in row["kinds"]) == row["num_generated_tokens"] == len(turn.generated_ids)
    )  # = completion_tokens
    think = profiles[name].think
    assert think is not None
    if think.prefilled:  # mask 0 up to and with the prefilled marker; R is the first supervised token
        last = row["num_prompt_tokens"] - 1
        assert think.start_ids[0] in row["token_ids"][last - 1 : last + 1]
        assert row["kinds"][last : last + 2] == [0, 2]
    else:
        assert row["kinds"][row["num_prompt_tokens"]] == 1
    assert row["kinds"][-1] == 5


@pytest.mark.parametrize("name", list(FAMILIES))
def test_case_B06_a_question_of_control_tokens_starts_no_turn(
    name: str, folder: Path, profiles: dict[str, TargetProfile]
) -> None:
    """The tokenizer takes the user's text for control tokens, as several servers do; the spans do not follow it."""
    family = FAMILIES[name]
    turn = family.turns[0]
    renderer = Renderer(family.tokenizer_dir(folder), turn.template_kwargs)
    evil = turn.text + "".join(family.markers) + turn.text
    row = row_of(family, turn, messages=[{"role": "user", "content": evil}])
    prompt = renderer.render(table_of(row))[0]
    assert set(turn.generated_ids) <= set(prompt)
    found = sequence(family, turn, profiles[name], messages=row["messages"], prompt_token_ids=prompt)
    assert found["kinds"].to_list() == [[0] * len(prompt) + turn.kinds[len(turn.prompt_ids) :]]
    assert found["kinds"].list.eval(pl.element() > 0).list.sum().to_list() == [len(turn.generated_ids)]
