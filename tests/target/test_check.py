from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel

from eyas.errors import GateError
from eyas.target.check import (
    Answer,
    check_answer,
    check_head,
    check_modes,
    check_round_trips,
    check_template,
    greedy_answer,
)
from eyas.target.model import TargetHead, load_target
from eyas.target.template import load_tokenizer
from tests.families import FAMILIES
from tests.tiny_target import make_tokenizer, profile_of

IDS = [1, 40, 41, 42, 2, 50, 1, 60]


def test_a_byte_level_tokenizer_round_trips(folder: Path) -> None:
    check_round_trips(load_tokenizer(folder))


def test_a_tokenizer_that_adds_a_space_is_caught() -> None:
    tokenizer = make_tokenizer()
    tokenizer.backend_tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=True)
    with pytest.raises(GateError, match="comes back as ' plain words"):
        check_round_trips(tokenizer)


def test_template(folder: Path) -> None:
    check_template(load_tokenizer(folder), profile_of(folder))


def test_a_template_that_keeps_only_the_last_message_is_caught(llama: Path) -> None:
    template = "{{ messages[-1]['content'] }}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    tokenizer = make_tokenizer(template=template)
    with pytest.raises(GateError, match="drops or reorders"):
        check_template(tokenizer, profile_of(llama))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"generation_prompt_ids": [1, 5]}, "not with the generation prompt", id="other tail"),
        pytest.param({"end_of_turn_ids": []}, "end-of-turn ids", id="endless"),
        pytest.param({"end_of_turn_ids": [300]}, "end-of-turn ids", id="no such token"),
    ],
)
def test_a_profile_that_does_not_fit(llama: Path, change: dict[str, Any], message: str) -> None:
    with pytest.raises(GateError, match=message):
        check_template(load_tokenizer(llama), replace(profile_of(llama), **change))


def test_head(folder: Path) -> None:
    profile = profile_of(folder)
    check_head(load_target(folder, "float32"), TargetHead.read(folder, profile, "float32"), profile, IDS)


def test_a_head_with_another_norm_is_caught(folder: Path) -> None:
    """As of models that scale by 1 + weight."""
    profile = profile_of(folder)
    head = TargetHead.read(folder, profile, "float32")
    with pytest.raises(GateError, match="no plain RMSNorm"):
        check_head(
            load_target(folder, "float32"), replace(head, norm_weight=head.norm_weight + 1), profile, IDS
        )


def test_scaled_logits_are_caught(folder: Path) -> None:
    profile = profile_of(folder)
    head = TargetHead.read(folder, profile, "float32")
    with pytest.raises(GateError, match="scaled or capped"):
        check_head(load_target(folder, "float32"), replace(head, lm_head=head.lm_head / 2), profile, IDS)


def test_greedy_answer_follows_the_argmax(llama: Path) -> None:
    model = load_target(llama, "float32")
    answer = greedy_answer(model, load_tokenizer(llama), profile_of(llama), IDS, max_tokens=6)
    ids = list(IDS)
    for token in answer.token_ids:
        assert token == int(model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        ids.append(token)
    assert answer.ended == (answer.token_ids[-1] in {0, 2})
    assert answer.ended or len(answer.token_ids) == 6


@pytest.mark.parametrize("name", FAMILIES)
def test_modes_of_thinking(name: str, tmp_path: Path) -> None:
    family = FAMILIES[name]
    check_modes(load_tokenizer(family.tokenizer_dir(tmp_path)), family.profile(tmp_path))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(
            {"start_ids": [621]}, r"with chat_template_kwargs \{\} .* inside thinking", id="other marker"
        ),
        pytest.param(
            {"default_on": False},
            r"with chat_template_kwargs \{\} .* expects \[604, 258, 606, 620, 621\]",
            id="default",
        ),
        pytest.param(
            {"on_tail_ids": [604, 258, 620]}, r"inside thinking; .* expects \[604, 258, 620\]", id="tail on"
        ),
        pytest.param(
            {"off_tail_ids": [604]}, r"kwargs \{'thinking': False\} .* expects \[604\]", id="tail off"
        ),
    ],
)
def test_modes_that_a_wrong_format_tells(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    family = FAMILIES["kimi-k2.5"]
    profile = family.profile(tmp_path)
    assert profile.think is not None
    wrong = replace(profile, think=replace(profile.think, **change))
    with pytest.raises(GateError, match=message):
        check_modes(load_tokenizer(family.tokenizer_dir(tmp_path)), wrong)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer([2], "", ended=True), id="empty"),
        pytest.param(Answer([5] * 48, "the" * 48, ended=False), id="one word"),
        pytest.param(Answer([5, 6, 7], "a\ufffdb", ended=True), id="broken bytes"),
    ],
)
def test_senseless_answers(answer: Answer) -> None:
    with pytest.raises(GateError, match="makes no sense"):
        check_answer(answer)


@pytest.mark.parametrize(
    "answer",
    [
        pytest.param(Answer([5, 5, 2], "ha ha", ended=True), id="short"),
        pytest.param(Answer(list(range(48)), "words", ended=False), id="long"),
    ],
)
def test_sensible_answers(answer: Answer) -> None:
    check_answer(answer)
