from __future__ import annotations

from pathlib import Path

import pytest

from eyas.errors import ArtifactError
from eyas.reports import counted_alike, read_report


def test_a_report_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.json").write_text('{"a": [1]}')
    assert read_report(tmp_path / "r.json", "dvc repro x") == {"a": [1]}


@pytest.mark.parametrize("text", [None, "{", "[1]"])
def test_a_report_that_can_not_be_read_says_what_to_run(tmp_path: Path, text: str | None) -> None:
    if text is not None:
        (tmp_path / "r.json").write_text(text)
    with pytest.raises(ArtifactError, match="dvc repro x"):
        read_report(tmp_path / "r.json", "dvc repro x")


def test_what_was_cut_at_the_ends_of_answers_is_compared() -> None:
    whole, cut = {"acceptance": {"length": 2.5}}, {"acceptance": {"length": 2.4}}
    assert counted_alike({**whole, "in_answers": cut}) == cut
    assert counted_alike({**whole, "in_answers": None}) == {**whole, "in_answers": None}
    assert counted_alike(whole) == whole
