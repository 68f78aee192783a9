"""docs/generation.md names every reason, flag, gate parameter and dialect that the code knows."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from eyas.answers import FLAGS, REASONING_CONFLICT
from eyas.generate.history import ENDINGS
from eyas.generate.params import DIALECTS, GenerateParams

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs/generation.md").read_text()
CALL = re.compile(r"\b(transient|permanent|content)\(\s*\"(\w+)\"")


def section(kind: str) -> str:
    """From the bold heading of a kind to the next one."""
    return re.split(r"\n\*\*|\n## ", TEXT.split(f"**{kind.capitalize()}**", 1)[1], maxsplit=1)[0]


def reasons() -> set[tuple[str, str]]:
    """(kind, reason) of every literal in the package."""
    sources = (ROOT / "src/eyas/generate").rglob("*.py")
    found = {match.groups() for path in sources for match in CALL.finditer(path.read_text())}
    return {(kind, reason) for kind, reason in found if reason not in ENDINGS} | {
        ("content", REASONING_CONFLICT)
    }


def test_the_search_finds_the_reasons() -> None:
    assert {("transient", "timeout"), ("permanent", "context_length"), ("content", "token_count")} < reasons()


@pytest.mark.parametrize(("kind", "reason"), sorted(reasons()))
def test_every_reason_is_listed_under_its_kind(kind: str, reason: str) -> None:
    assert f"`{reason}`" in section(kind)


@pytest.mark.parametrize("name", [*FLAGS, *ENDINGS, *DIALECTS, "earlier_turn_failed", "not_asked"])
def test_every_flag_ending_and_dialect_is_explained(name: str) -> None:
    assert f"`{name}`" in TEXT


def test_every_parameter_of_a_gate_is_explained() -> None:
    names = [
        name
        for name in GenerateParams.__dataclass_fields__
        if name.startswith(("gate_", "accept_", "expect_"))
    ]
    assert [name for name in names if name not in TEXT] == []
