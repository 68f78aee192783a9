"""Failures that users of generation pipelines reported: each has its test, named `test_case_<ID>_...`."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

TESTS = Path(__file__).parent

GENERATION = [
    "A01",
    "A02",
    "A04",
    "A06",
    "A07",
    "A09",
    "A10",
    "D01",
    "D02",
    "D03",
    "D05",
    "D06",
    "D08",
    "D09",
    "D10",
    "D12",
    "D13",
    "D15",
    "D17",
    "D19",
    "D20",
    "E01",
    "E02",
    "E04",
    "F01",
    "F03",
    "G01",
    "G02",
    "G04",
    "G06",
    "G08",
    "G10",
    "G12",
    "H02",
    "H06",
    "H08",
]
"""Reading replies, transport, usage, content, JSONL, resume."""

SEQUENCES = [
    "B01",
    "B03",
    "B04",
    "B07",
    "B09",
    "B10",
    "C01",
    "C02",
    "C04",
    "C05",
    "C07",
    "C09",
    "J01",
    "J02",
    "J04",
]
"""Think markers, white space and tokens, masks and templates."""

PROMPT_FILES = ["B06", "F04", "F06", "H01", "H04", "I01", "I02", "I04", "I06", "I08", "I10"]
"""Dirt in prompt files. Not all of these have their test yet."""

NAME = re.compile(r"test_case_([A-Z]\d\d)_\w+$")


def cases_tested() -> Counter[str]:
    """Case -> number of tests named after it."""
    found: Counter[str] = Counter()
    for path in TESTS.rglob("test_*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (match := NAME.match(node.name)):
                found[match[1]] += 1
    return found


def test_the_lists_hold_every_case_once() -> None:
    listed = [*GENERATION, *SEQUENCES, *PROMPT_FILES]
    assert len(listed) == len(set(listed)) == 62


def test_every_reported_case_has_its_test() -> None:
    tested = cases_tested()
    assert [case for case in [*GENERATION, *SEQUENCES] if case not in tested] == []


def test_no_test_names_an_unknown_case() -> None:
    assert set(cases_tested()) <= {*GENERATION, *SEQUENCES, *PROMPT_FILES}
