"""Choosing a think format by what tokenizer and template do."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from eyas.errors import ConfigError, InputError
from eyas.target.derive import derive_think
from eyas.target.entry import FOLDER, known_entries, load_entry
from eyas.target.formats import TurnFormat, misfits, resolve_format
from eyas.target.spec import TargetProfile, ThinkFormat, ToolFormat
from eyas.target.template import load_tokenizer
from tests import family_templates as templates
from tests.families import FAMILIES
from tests.golden import Family

DERIVABLE = [name for name in FAMILIES if name not in ("gpt-oss", "chatml", "llama-3")]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def resolved(family: Family, folder: Path, choice: str | None = None) -> TurnFormat:
    return resolve_format(load_tokenizer(family.tokenizer_dir(folder)), choice)


@pytest.mark.parametrize("name", FAMILIES)
def test_exactly_one_entry_fits_each_family(name: str, folder: Path) -> None:
    tokenizer = load_tokenizer(FAMILIES[name].tokenizer_dir(folder))
    fitting = [entry.family for entry in known_entries() if not misfits(entry, tokenizer)]
    plain_chatml = ["chatml"] if name == "qwen3" else []  # its tail without a switch; think markers decide
    assert fitting == [*plain_chatml, name]


def test_every_entry_has_a_golden_family() -> None:
    assert {path.stem for path in FOLDER.iterdir()} == set(FAMILIES)


def test_ids_are_those_of_the_tokenizer(folder: Path) -> None:
    kimi = resolved(FAMILIES["kimi-k2.5"], folder)
    assert kimi == TurnFormat(
        "kimi-k2.5",
        ThinkFormat(
            "kimi-k2.5",
            "<think>",
            "</think>",
            [620],
            [621],
            prefilled=True,
            implicit_ends=["<|tool_calls_section_begin|>"],
            implicit_end_ids=[[611]],
            on_kwargs={"thinking": True},
            off_kwargs={"thinking": False},
            default_on=True,
            on_tail_ids=[604, 258, 606, 620],
            off_tail_ids=[604, 258, 606, 620, 621],
            off_prefill="<think></think>",
            parsers={"vllm": "kimi_k2", "sglang": "kimi_k2"},
        ),
        ToolFormat(["<|tool_calls_section_begin|>"], [[611]], "<|tool_calls_section_end|>", [612]),
        [602],
    )


def test_the_same_markers_at_other_ids(folder: Path, tmp_path: Path) -> None:
    family = FAMILIES["kimi-k2.5"]
    moved = replace(family, markers={token: id_ + 50 for token, id_ in family.markers.items()})
    think = resolved(moved, tmp_path).think
    assert think is not None
    assert (think.family, think.start_ids, think.end_ids) == ("kimi-k2.5", [670], [671])


def test_channels(folder: Path) -> None:
    harmony = resolved(FAMILIES["gpt-oss"], folder)
    assert harmony.think is not None
    assert harmony.think.start_ids == [622, 261, 625]  # <|channel|> analysis <|message|>
    assert harmony.think.end_ids == [
        624,
        623,
        258,
        622,
        263,
        625,
    ]  # <|end|><|start|>assistant<|channel|>final<|message|>
    assert harmony.think.answer_start_ids == [622, 263, 625]
    assert harmony.end_of_turn_ids == [620, 626]  # <|return|>, <|call|>, not <|end|>


def test_end_of_turn_of_the_profile(folder: Path) -> None:
    """Eos ids of the configuration and those of the entry; a message's <|end|> is not one of them."""
    assert FAMILIES["gpt-oss"].profile(folder).end_of_turn_ids == [620, 626, 627]
    assert FAMILIES["glm-4.5"].profile(folder).end_of_turn_ids == [683, 685, 686]
    assert FAMILIES["llama-3"].profile(folder).end_of_turn_ids == [601, 608, 609]


def test_an_eos_id_that_stands_within_turns_is_refused(folder: Path, tmp_path: Path) -> None:
    family = FAMILIES["gpt-oss"]
    copy = replace(family, name="copy")
    copied = shutil.copytree(family.tokenizer_dir(folder), tmp_path / "copy")
    (copied / "generation_config.json").write_text(json.dumps({"eos_token_id": [620, 624]}))
    with pytest.raises(InputError, match=r"end-of-turn id 624 \('<\|end\|>'\) also stands within turns"):
        copy.profile(tmp_path)


def test_a_profile_with_a_think_format_is_read_as_it_was_written(folder: Path, tmp_path: Path) -> None:
    for family in FAMILIES.values():
        profile = family.profile(folder)
        profile.write(tmp_path / "profile.json")
        assert TargetProfile.read(tmp_path / "profile.json") == profile


def test_a_chosen_family_that_fits(folder: Path) -> None:
    assert resolved(FAMILIES["qwen3"], folder, "qwen3") == resolved(FAMILIES["qwen3"], folder)


def test_a_chosen_family_that_does_not_fit_says_all_that_differs(folder: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(FAMILIES["qwen3"], folder, "kimi-k2.5")
    message = str(caught.value)
    assert "think format kimi-k2.5 does not fit the target" in message
    assert "`end_of_turn`" not in message  # <|im_end|> is a token of both
    assert (
        "`think.enabled`: the prompt should end with '<|im_assistant|>assistant<|im_middle|><think>'"
        in message
    )
    assert "with {'thinking': True} appends '<|im_start|>assistant\\n'" in message
    assert "`think.disabled`" in message


def test_markers_that_are_ordinary_text_are_named(folder: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"`think.start`: '<think>' is not a token of its own: .* ids \[60, 116,"
    ):
        resolved(FAMILIES["chatml"], folder, "qwen3")


def test_an_entry_without_the_switch_that_the_template_has(folder: Path) -> None:
    tokenizer = load_tokenizer(FAMILIES["kimi-k2.5"].tokenizer_dir(folder))
    problems = misfits(load_entry(FOLDER / "kimi-k2-thinking.yaml"), tokenizer)
    assert any(
        "`think.disabled` is missing, but the template has a switch" in problem for problem in problems
    )


def test_none(folder: Path) -> None:
    assert resolved(FAMILIES["qwen3"], folder, "none") == TurnFormat("none", None, None, [642])
    profile = FAMILIES["qwen3"].profile(folder, think_format="none")
    assert (profile.family, profile.think) == ("none", None)


def test_a_file_of_the_user(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(
        (FOLDER / "qwen3.yaml").read_text().replace("parsers: {vllm: qwen3,", "parsers: {vllm: mine,")
    )
    profile = FAMILIES["qwen3"].profile(folder, think_format=str(path))
    assert profile.think is not None
    assert (profile.family, profile.think.family) == ("mine", "mine")
    assert profile.think.parsers == {"vllm": "mine", "sglang": "qwen3"}


@pytest.mark.parametrize("name", DERIVABLE)
def test_what_is_derived_agrees_with_the_entry(name: str, folder: Path) -> None:
    """Without the entries of its own kind, tokenizer and template alone give the same markers, tails and switch."""
    tokenizer = load_tokenizer(FAMILIES[name].tokenizer_dir(folder))
    expected = resolve_format(tokenizer).think
    assert expected is not None
    derived = derive_think(tokenizer, known_entries())
    assert derived is not None
    learnt = {
        "kimi-k2-thinking",
        "kimi-k2.5",
        "qwen3",
        "qwen3.5",
        "glm-4.5",
    }  # whose templates render thinking
    unseen = {"implicit_ends": [], "implicit_end_ids": [], "parsers": {}, "family": "derived"}
    if name not in learnt:
        unseen |= {"gap_before_end": "", "gap_after_end": ""}
    if name == "deepseek-r1-0528":  # for the others the prompt's end shows it
        unseen |= {"gap_after_start": "", "gap_after_start_ids": []}
    assert derived == replace(expected, **unseen)  # type: ignore[arg-type]


def test_an_unknown_target_is_derived(tmp_path: Path) -> None:
    markers = {"<|bot|>": 600, "<|human|>": 601, "<|done|>": 602, "<ponder>": 603, "</ponder>": 604}
    template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}<|bot|>{% if m.reasoning_content %}<ponder>"
        "{{ m.reasoning_content }}</ponder>\n{% endif %}{{ m.content }}<|done|>{% else %}<|human|>{{ m.content }}{% endif %}"
        "{% endfor %}{% if add_generation_prompt %}<|bot|>{% if thinking is defined and not thinking %}<ponder></ponder>\n"
        "{% else %}<ponder>{% endif %}{% endif %}"
    )
    profile = Family("odd", markers, list(markers)[:3], template, ["<|done|>"]).profile(tmp_path)
    assert profile.family == "derived"
    assert profile.end_of_turn_ids == [602]
    assert profile.think == ThinkFormat(
        "derived",
        "<ponder>",
        "</ponder>",
        [603],
        [604],
        prefilled=True,
        gap_after_end="\n",
        on_kwargs={"thinking": True},
        off_kwargs={"thinking": False},
        on_tail_ids=[600, 603],
        off_tail_ids=[600, 603, 604, 10],
        off_prefill="<ponder></ponder>\n",
    )


def test_a_channel_with_a_name_of_its_own_is_derived(tmp_path: Path) -> None:
    """Thinking is opened by a token and a word on the same line."""
    markers = {"<|turn>": 600, "<turn|>": 601, "<|channel>": 602, "<channel|>": 603}
    template = (
        "{% for m in messages %}<|turn>{{ m.role }}\n{% if m.reasoning %}<|channel>final\n{{ m.reasoning }}\n<channel|>{% endif %}"
        "{{ m.content }}<turn|>\n{% endfor %}{% if add_generation_prompt %}<|turn>assistant\n{% endif %}"
    )
    think = resolved(Family("channel", markers, list(markers), template, ["<turn|>"]), tmp_path).think
    assert think is not None
    assert (think.start, think.start_ids, think.gap_after_start) == ("<|channel>final", [602, 263], "\n")
    assert (think.end, think.end_ids, think.gap_before_end) == ("<channel|>", [603], "\n")


def test_thinking_between_ordinary_words_can_not_be_derived(tmp_path: Path) -> None:
    family = FAMILIES["qwen3"]
    markers = {token: id_ for token, id_ in family.markers.items() if "think" not in token}
    with pytest.raises(InputError, match=r"not between two tokens of its own: .*<think>.n' before it"):
        resolved(replace(family, name="words", markers=markers), tmp_path)
    with_none = replace(family, name="words", markers=markers).profile(tmp_path, think_format="none")
    assert with_none.think is None


def test_channels_can_not_be_derived(folder: Path) -> None:
    tokenizer = load_tokenizer(FAMILIES["gpt-oss"].tokenizer_dir(folder))
    with pytest.raises(InputError, match=r"opens other things than thinking with '<\|message\|>' too"):
        derive_think(tokenizer, known_entries())


def test_chatml_with_think_markers_is_not_plain_chatml(tmp_path: Path) -> None:
    """As of models whose template never mentions the markers that their tokenizer has."""
    markers = FAMILIES["chatml"].markers | {"<think>": 635, "</think>": 636}
    family = Family("instruct", markers, ["<|im_start|>", "<|im_end|>"], templates.CHATML, ["<|im_end|>"])
    found = resolved(family, tmp_path)
    assert (found.family, found.end_of_turn_ids) == ("derived", [632])
    assert found.think is not None
    assert (found.think.start_ids, found.think.end_ids, found.think.prefilled) == ([635], [636], False)
    assert found.tools == ToolFormat(["<tool_call>"], [[633]], "</tool_call>", [634])


def test_a_template_that_drops_answers(tmp_path: Path) -> None:
    template = "{% for m in messages if m.role == 'user' %}<|im_start|>{{ m.content }}{% endfor %}"
    template += "{% if add_generation_prompt %}<|im_end|>{% endif %}"
    family = replace(FAMILIES["chatml"], name="deaf", template=template)
    with pytest.raises(InputError, match="drops or changes the assistant's answer"):
        resolved(family, tmp_path)
