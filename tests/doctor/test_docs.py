from __future__ import annotations

import re
from pathlib import Path

from eyas.doctor.causes import CAUSES

DOCS = (Path(__file__).parents[2] / "docs" / "doctor.md").read_text()


def test_the_table_of_causes_is_that_of_the_code() -> None:
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|(.*)\|(.*)\|$", DOCS, flags=re.MULTILINE)
    assert [name for name, *_ in rows] == list(CAUSES)
    for name, _, _, source in rows:
        for thread in re.findall(r"[\w-]+/[\w.-]+#\d+|#\d+", source):
            assert thread in CAUSES[name].source, name


def test_every_option_stands_there() -> None:
    for option in ("--target", "--hidden", "--learned", "--engine", "--dataset", "--trained", "--report",
                   "--accepted-at", "--drafts", "--metrics-url", "--json"):  # fmt: skip
        assert f"`{option}" in DOCS or f"{option} " in DOCS, option
