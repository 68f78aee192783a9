"""Reading format entries, and that they are shipped and watched."""

from __future__ import annotations

import re
import tomllib
from fnmatch import fnmatch
from pathlib import Path

import pytest

from eyas.errors import ConfigError
from eyas.target.entry import FOLDER, chosen_entry, known_entries, load_entry
from tests.closure import ROOT, declared_stages

PLAIN = 'tail: "<|bot|>"\nend_of_turn: ["<|done|>"]\n'
THINKING = PLAIN + 'think: {start: "<a>", end: "</a>"}\n'


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    return path


def test_defaults(tmp_path: Path) -> None:
    entry = load_entry(written(tmp_path, THINKING))
    assert entry.family == "mine"
    assert entry.values.think is not None
    assert (entry.values.think.enabled.prefill, entry.values.think.disabled) == ("", None)
    assert entry.values.tools is None


@pytest.mark.parametrize(
    ("text", "message"),
    [
        pytest.param("tail: [", "not valid YAML", id="torn"),
        pytest.param("- tail", "`mine` must be a mapping", id="list"),
        pytest.param('tail: "x"\n', r"`mine.end_of_turn`", id="missing key"),
        pytest.param(PLAIN + "tial: x\n", r"`mine.tial`", id="unknown key"),
        pytest.param(THINKING.replace("start:", "begin:"), r"`mine.think.begin`", id="unknown nested key"),
        pytest.param(PLAIN + "tools: {starts: 3}\n", r"`mine.tools.starts`", id="wrong type"),
        pytest.param('tail: ""\nend_of_turn: ["x"]\n', r"`mine.tail`: ''", id="empty tail"),
        pytest.param('tail: "x"\nend_of_turn: []\n', r"`mine.end_of_turn`: \[\]", id="endless"),
        pytest.param(
            PLAIN + 'think: {start: "<a>\\n", end: "</a>"}\n', r"`mine.think.start`: '<a>\\n' is not a marker", id="gap"
        ),
        pytest.param(PLAIN + 'think: {start: "<a>", end: "<a>"}\n', r"`mine.think.end`: '<a>'", id="one marker"),
        pytest.param(
            PLAIN + 'think: {start: "<a>", end: "</a>", gaps: {after_end: "so "}}\n',
            r"`mine.think.gaps.after_end`: 'so ' is not whitespace", id="gap of words",
        ),
        pytest.param(
            PLAIN + 'think: {start: "<a>", end: "</a>", enabled: {prefill: "<b>"}}\n',
            r"`mine.think.enabled.prefill`: '<b>' does not hold the opening marker", id="prefill without marker",
        ),
        pytest.param(
            PLAIN + 'think: {start: "<a>", end: "</a>", disabled: {}}\n', r"`mine.think.disabled`", id="no difference"
        ),
        pytest.param(PLAIN + "tools: {starts: []}\n", r"`mine.tools.starts`: \[\]", id="tools without marker"),
        pytest.param(PLAIN + "parsers: {tgi: x}\n", r"`mine.parsers`: 'tgi'", id="unknown server"),
    ],
)  # fmt: skip
def test_errors_name_file_and_key(text: str, message: str, tmp_path: Path) -> None:
    path = written(tmp_path, text)
    with pytest.raises(ConfigError, match=message) as caught:
        load_entry(path)
    assert caught.value.where == str(path)


@pytest.mark.parametrize(
    ("choice", "message"),
    [
        pytest.param("qwen9", "'qwen9' is no family", id="family"),
        pytest.param("../target/spec", "is no family", id="path without suffix"),
        pytest.param("missing.yaml", "there is no such think format", id="file"),
    ],
)
def test_a_choice_that_does_not_exist(choice: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        chosen_entry(choice)
    assert "kimi-k2.5" in str(caught.value.hint)


def test_no_entry_holds_an_id() -> None:
    for entry in known_entries():
        assert not re.search(r":\s*\[?\d", entry.path.read_text()), f"{entry.path}: ids belong to tokenizers"


def test_entries_are_package_data() -> None:
    pyproject = tomllib.loads((ROOT / "pyproject.toml").read_text())
    (pattern,) = pyproject["tool"]["setuptools"]["package-data"]["eyas.target"]
    for path in FOLDER.iterdir():
        assert fnmatch(f"think_formats/{path.name}", pattern)


def test_the_target_stage_depends_on_the_entries() -> None:
    """They are no Python modules, so the import closure does not see them."""
    (stage,) = [stage for stage in declared_stages() if stage.name == "target"]
    folder = FOLDER.relative_to(ROOT)
    assert any(folder.is_relative_to(dependency) for dependency in stage.code)
