"""docs/think-formats.md against the code: its example is run, its table is compared with the entries."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from eyas.target.entry import (
    FormatEntry,
    FormatValues,
    Gaps,
    ThinkEntry,
    ToolEntry,
    known_entries,
)
from eyas.target.formats import resolve_format
from eyas.target.template import load_tokenizer
from eyas.target.think_check import main
from tests.closure import ROOT
from tests.golden import Family

TEXT = (ROOT / "docs" / "think-formats.md").read_text()
MARKERS = {
    "<|bot|>": 600,
    "<|human|>": 601,
    "<|done|>": 602,
    "<ponder>": 603,
    "</ponder>": 604,
    "<call>": 605,
    "</call>": 606,
}
TEMPLATE = (
    "{% for m in messages %}{% if m.role == 'assistant' %}<|bot|>{{ m.content }}<|done|>{% else %}<|human|>{{ m.content }}"
    "{% endif %}{% endfor %}{% if add_generation_prompt %}<|bot|>{% if ponder is defined and not ponder %}<ponder></ponder>\n"
    "{% else %}<ponder>{% endif %}{% endif %}"
)


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return Family("model", MARKERS, list(MARKERS)[:3], TEMPLATE, ["<|done|>"]).tokenizer_dir(tmp_path)


@pytest.fixture
def example(tmp_path: Path) -> Path:
    (block,) = re.findall(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    assert len(block.splitlines()) <= 10
    path = tmp_path / "ponderer.yaml"
    path.write_text(block)
    return path


def test_the_example_fits_its_target(example: Path, model: Path) -> None:
    found = resolve_format(load_tokenizer(model), str(example))
    assert found.think is not None
    assert (found.think.start_ids, found.think.end_ids, found.think.prefilled) == ([603], [604], True)
    assert (found.think.on_tail_ids, found.think.off_tail_ids) == ([600, 603], [600, 603, 604, 10])
    assert found.end_of_turn_ids == [602]


def test_the_example_shows_what_the_command_prints(
    example: Path, model: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(example), str(model)]) == 0
    (printed,) = re.findall(r"```\n\$ [^\n]*think_check[^\n]*\n(.*?)```", TEXT, flags=re.DOTALL)
    assert capsys.readouterr().out == printed


@pytest.mark.parametrize("entry", known_entries(), ids=lambda entry: entry.family)
def test_the_table_tells_what_the_entries_say(entry: FormatEntry) -> None:
    assert row(entry) in TEXT.splitlines()


def test_the_table_has_no_other_rows() -> None:
    table = TEXT.split("## Families")[1].split("\n\n")[1].splitlines()
    assert len(table) == 2 + len(known_entries())


def test_every_key_is_described() -> None:
    think = {f"think.{field.name}" for field in fields(ThinkEntry)}
    tools = {f"tools.{field.name}" for field in fields(ToolEntry)}
    keys = {field.name for field in fields(FormatValues)} - {"think", "tools"}
    keys |= think | tools | {field.name for field in fields(Gaps)}
    assert [key for key in sorted(keys) if f"`{key}`" not in TEXT] == []


def row(entry: FormatEntry) -> str:
    values, think = entry.values, entry.values.think
    ends = ", ".join(code(token) for token in values.end_of_turn)
    if think is None:
        return f"| {entry.family} | no thinking | {code(values.tail)} | – | {ends} |"
    off = "no switch"
    if think.disabled is not None:
        off = f"{code(arguments(think.disabled.kwargs))}: {code(values.tail + think.disabled.prefill)}"
    markers = f"{code(think.start)} {code(think.end)}"
    return f"| {entry.family} | {markers} | {code(values.tail + think.enabled.prefill)} | {off} | {ends} |"


def code(text: str) -> str:
    escaped = text.replace("\n", "\\n").replace("|", "\\|")
    return f"`{escaped}`"


def arguments(kwargs: dict[str, Any]) -> str:
    return ", ".join(f"{name}: {str(value).lower()}" for name, value in kwargs.items())
