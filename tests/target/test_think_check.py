"""The words in which a format is shown, and the command that tries one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eyas.target.entry import FOLDER
from eyas.target.think_check import main, profile_findings
from tests.families import FAMILIES

TAIL = "<|im_assistant|>assistant<|im_middle|>"
ON, OFF = "chat_template_kwargs {'thinking': True}", "chat_template_kwargs {'thinking': False}"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("families")


def test_findings_of_a_profile(folder: Path) -> None:
    family = FAMILIES["kimi-k2.5"]
    assert profile_findings(family.tokenizer_dir(folder), family.profile(folder)) == [
        "turns are written as in family kimi-k2.5",
        "thinking stands between '<think>' [620] and '</think>' [621]; the prompt ends with the opening marker",
        "thinking also ends with '<|tool_calls_section_begin|>' [611]",
        f"thinking on by {ON}, the default: prompts end with '{TAIL}<think>' [604, 258, 606, 620]",
        f"thinking off by {OFF}: prompts end with '{TAIL}<think></think>' [604, 258, 606, 620, 621]",
        "reasoning parser of vllm: kimi_k2",
        "reasoning parser of sglang: kimi_k2",
        "rendering a finished turn drops its thinking: only prompts are ever rendered",
        "a turn ends with '<|im_end|>' [602]",
        "tool calls stand between '<|tool_calls_section_begin|>' [611] and '<|tool_calls_section_end|>' [612]",
    ]


@pytest.mark.parametrize("name", FAMILIES)
def test_the_command_accepts_what_fits(name: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = str(FAMILIES[name].tokenizer_dir(folder))
    assert main([str(FOLDER / f"{name}.yaml"), model]) == 0
    by_file = capsys.readouterr().out
    assert by_file.startswith(f"turns are written as in family {name}\n")
    assert main(["auto", model]) == 0
    assert capsys.readouterr().out == by_file


def test_the_command_says_what_does_not_fit(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["glm-4.5", str(FAMILIES["kimi-k2.5"].tokenizer_dir(folder))]) == 1
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "think format glm-4.5 does not fit the target" in shown.err
    assert "`think.disabled`" in shown.err
    assert "where: " in shown.err


def test_wrong_arguments(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["auto"]) == 2
    assert "usage" in capsys.readouterr().err


def test_as_a_command(folder: Path) -> None:
    model = FAMILIES["chatml"].tokenizer_dir(folder)
    command = [sys.executable, "-m", "eyas.target.think_check", "none", str(model)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={"PYTHONPATH": "src"})
    assert done.stdout.splitlines()[:2] == ["turns are written as in family none", "no thinking"]
