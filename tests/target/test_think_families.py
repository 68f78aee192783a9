"""The golden families: tokenizer and template of each against ids written down by hand, and the format found."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.target.spec import TargetProfile, ThinkFormat
from eyas.target.template import encode, load_tokenizer, render_prompt
from eyas.target.think import opens_thinking
from tests.families import FAMILIES
from tests.golden import Family, GoldenTurn

TURNS = [
    pytest.param(family, turn, id=f"{family.name}-{turn.name}")
    for family in FAMILIES.values()
    for turn in family.turns
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


@pytest.mark.parametrize(("family", "turn"), TURNS)
def test_prompts_are_rendered_to_the_golden_ids(family: Family, turn: GoldenTurn, folder: Path) -> None:
    ids = render_prompt(family.tokenizer_dir(folder), turn.messages, turn.template_kwargs)
    assert ids == turn.prompt_ids


@pytest.mark.parametrize(("family", "turn"), TURNS)
def test_the_tokenizer_agrees_with_the_golden_ids(family: Family, turn: GoldenTurn, folder: Path) -> None:
    tokenizer = load_tokenizer(family.tokenizer_dir(folder))
    assert tokenizer.decode(turn.generated_ids, skip_special_tokens=False) == turn.text
    assert encode(tokenizer, turn.text) == turn.generated_ids


@pytest.mark.parametrize("family", FAMILIES.values(), ids=FAMILIES)
def test_the_family_is_found(family: Family, folder: Path) -> None:
    assert family.profile(folder).family == family.name


@pytest.mark.parametrize(("family", "turn"), TURNS)
def test_the_format_is_enough_to_tell_the_kinds(family: Family, turn: GoldenTurn, folder: Path) -> None:
    """A plain walk over the ids with nothing but the profile gives the kinds that were written down by hand."""
    assert walked(turn, family.profile(folder)) == turn.kinds


def walked(turn: GoldenTurn, profile: TargetProfile) -> list[int]:
    ids = turn.generated_ids
    kinds = [3] * len(ids)
    behind = 0
    if profile.think is not None:
        behind = _walk_thinking(
            ids, kinds, profile.think, opened=opens_thinking(profile.think, turn.prompt_ids)
        )
    if profile.tools is not None:
        found = [at for start in profile.tools.start_ids if (at := position(ids, start, behind)) is not None]
        if found:
            kinds[min(found) :] = [4] * (len(ids) - min(found))
    if ids[-1] in profile.end_of_turn_ids:
        kinds[-1] = 5
    return [0] * len(turn.prompt_ids) + kinds


def _walk_thinking(ids: list[int], kinds: list[int], think: ThinkFormat, *, opened: bool) -> int:
    """Fill in marker and reasoning kinds; returns where the thinking ends."""
    begin = 0
    if not opened:
        gap = len(think.gap_before_start)  # a newline is one token in all families
        if ids[gap : gap + len(think.start_ids)] != think.start_ids:
            header = think.answer_start_ids
            if header and ids[: len(header)] == header:
                kinds[: len(header)] = [1] * len(header)
            return 0
        begin = gap + len(think.start_ids)
        kinds[gap:begin] = [1] * (begin - gap)
    explicit = position(ids, think.end_ids, begin)
    implicit = [at for end in think.implicit_end_ids if (at := position(ids, end, begin)) is not None]
    end = min([at for at in (explicit, *implicit) if at is not None], default=len(ids))
    kinds[begin:end] = [2] * (end - begin)
    if end == explicit:
        kinds[end : end + len(think.end_ids)] = [1] * len(think.end_ids)
    return end


def position(ids: list[int], part: list[int], begin: int) -> int | None:
    size = len(part)
    return next((at for at in range(begin, len(ids) - size + 1) if ids[at : at + size] == part), None)
