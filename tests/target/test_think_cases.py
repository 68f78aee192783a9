"""Reported failures of templates and masks, on the golden families."""

from __future__ import annotations

from pathlib import Path

import pytest

from eyas.target.template import encode, load_tokenizer, render_prompt, render_text
from eyas.target.think import opens_thinking, prompt_tail
from tests.families import FAMILIES
from tests.golden import HISTORY, assistant, user


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def rendered_to_the_end(name: str, folder: Path, **message: str) -> str:
    """What must never be trained on: question and finished turn through the template."""
    tokenizer = load_tokenizer(FAMILIES[name].tokenizer_dir(folder))
    return render_text(tokenizer, [user(), assistant(**message)], generation_prompt=False)


@pytest.mark.parametrize(
    "name", ["kimi-k2.5", "kimi-k2-thinking", "deepseek-r1", "deepseek-r1-0528", "deepseek-v3.1", "gpt-oss"]
)
def test_case_B09_rendering_the_finished_turn_removes_its_thinking(name: str, folder: Path) -> None:
    family = FAMILIES[name]
    tokenizer = load_tokenizer(family.tokenizer_dir(folder))
    turn = family.turn("thinking")
    rendered = rendered_to_the_end(name, folder)
    assert "It is easy." not in rendered
    assert "Four." in rendered
    prompt = render_prompt(family.tokenizer_dir(folder), turn.messages, turn.template_kwargs)
    sequence = prompt + turn.generated_ids
    assert sequence != encode(tokenizer, rendered)
    text = tokenizer.decode(sequence, skip_special_tokens=False)
    assert text.endswith(turn.text)
    assert text.count("It is easy.") == 1


def test_case_B09_kimi_leaves_an_empty_block_in_its_place(folder: Path) -> None:
    assert rendered_to_the_end("kimi-k2.5", folder).endswith(
        "<|im_assistant|>assistant<|im_middle|><think></think>Four.<|im_end|>"
    )
    family = FAMILIES["kimi-k2.5"]
    turn = family.turn("thinking")
    text = load_tokenizer(family.tokenizer_dir(folder)).decode(turn.prompt_ids + turn.generated_ids)
    assert text.endswith("<|im_assistant|>assistant<|im_middle|><think>It is easy.</think>Four.<|im_end|>")


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5"])
def test_case_J01_one_rendering_of_two_turns_loses_the_first_thinking(name: str, folder: Path) -> None:
    family = FAMILIES[name]
    tokenizer = load_tokenizer(family.tokenizer_dir(folder))
    both = render_text(tokenizer, [*HISTORY, assistant("Hi!")], generation_prompt=False)
    assert both.count("It is easy.") == 1
    assert "assistant\nFour.<|im_end|>" in both
    for turn in (family.turn("thinking"), family.turn("history")):  # one row each
        prompt = render_prompt(family.tokenizer_dir(folder), turn.messages, turn.template_kwargs)
        assert prompt == turn.prompt_ids
        row = tokenizer.decode(prompt + turn.generated_ids)
        assert row.count("It is easy.\n</think>") == 1
        assert row.endswith(turn.text)
        assert row.count("</think>") == 1


@pytest.mark.parametrize("name", ["qwen3", "qwen3.5"])
def test_case_J01_the_template_adds_an_empty_block_that_was_not_generated(name: str, folder: Path) -> None:
    family = FAMILIES[name]
    rendered = rendered_to_the_end(name, folder, reasoning="")
    assert rendered.endswith("<think>\n\n</think>\n\nFour.<|im_end|>\n")
    turn = family.turn("no_thinking")
    assert "think" not in turn.text
    assert not rendered.endswith("<|im_end|>")  # and a newline that no target generates
    assert turn.text.endswith("<|im_end|>")


def test_case_J02_kimi_k2_5_opens_in_the_prompt_and_learns_the_rest(folder: Path) -> None:
    family = FAMILIES["kimi-k2.5"]
    profile, turn = family.profile(folder), family.turn("thinking")
    assert profile.think is not None
    prompt = render_prompt(family.tokenizer_dir(folder), turn.messages, turn.template_kwargs)
    assert prompt[-4:] == [604, 258, 606, 620]  # <|im_assistant|> assistant <|im_middle|> <think>
    assert opens_thinking(profile.think, prompt)
    supervised = [kind != 0 for kind in turn.kinds]
    assert supervised == [False] * len(prompt) + [True] * len(turn.generated_ids)
    assert turn.generated_ids == [
        274,
        275,
        276,
        46,
        621,
        273,
        46,
        602,
    ]  # It is easy . </think> Four . <|im_end|>
    assert sum(supervised) == 4 + 1 + 2 + 1  # R, </think>, C, <|im_end|>


@pytest.mark.parametrize("name", FAMILIES)
def test_case_J02_the_mask_begins_behind_the_whole_generation_prompt(name: str, folder: Path) -> None:
    family = FAMILIES[name]
    profile = family.profile(folder)
    for turn in family.turns:
        prompt = render_prompt(family.tokenizer_dir(folder), turn.messages, turn.template_kwargs)
        tail = prompt_tail(profile, turn.template_kwargs)
        if turn.messages[-1]["role"] == "user":
            assert prompt[-len(tail) :] == tail
        assert [kind == 0 for kind in turn.kinds] == [True] * len(prompt) + [False] * len(turn.generated_ids)
        ends = [token in profile.end_of_turn_ids for token in turn.generated_ids]
        assert ends == [False] * (len(ends) - 1) + [not turn.truncated]
        assert (turn.kinds[-1] == 5) == (not turn.truncated)


def test_case_J02_one_token_more_where_the_target_opens_itself() -> None:
    prefilled, generated = (
        FAMILIES["kimi-k2.5"].turn("thinking"),
        FAMILIES["kimi-k2-thinking"].turn("thinking"),
    )
    assert generated.generated_ids == [620, *prefilled.generated_ids]
    assert generated.kinds[len(generated.prompt_ids) :] == [1, *prefilled.kinds[len(prefilled.prompt_ids) :]]
