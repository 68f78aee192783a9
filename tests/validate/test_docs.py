"""docs/validation.md lists every rule, flag and limit."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path

from eyas.answers import FLAGS
from eyas.validate.params import ValidateParams
from eyas.validate.rules import rules
from tests.validate.judging import EXPECTING, IDS, PREFILLED, TEXT

DOCS = Path(__file__).parents[2] / "docs/validation.md"


def first_column(heading: str) -> list[str]:
    section = DOCS.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_every_rule_is_described_in_the_order_of_application() -> None:
    strict = replace(EXPECTING, allow_repeated_markers=False)
    found = [rule.name for notes in (IDS, TEXT) for rule in rules(PREFILLED, strict, notes)]
    described = first_column("Rules")
    assert set(described) == set(found)
    assert len(described) == len(set(described))
    ordered = [rule.name for rule in rules(PREFILLED, strict, IDS)]
    assert [name for name in described if name in ordered] == sorted(ordered, key=described.index)


def test_every_flag_and_every_limit_is_described() -> None:
    assert sorted(first_column("Flags")) == sorted(FLAGS)
    limits = [field.name for field in fields(ValidateParams) if field.name.startswith("max_")]
    assert first_column("Limits") == limits
