from __future__ import annotations

from pathlib import Path

import pytest

from eyas.errors import ChangedWhileRunning
from eyas.hashing import Guard

BEFORE = "train: {rate: 1}\ngenerate: {temperature: 0.5, seed: 1}\n"


@pytest.mark.parametrize(
    ("after", "changed"),
    [
        pytest.param(BEFORE, None, id="nothing"),
        pytest.param(BEFORE.replace("seed: 1", "seed: 2"), None, id="a key of another stage"),
        pytest.param(BEFORE.replace("rate: 1", "rate: 2"), "`train`", id="the section"),
        pytest.param(BEFORE.replace("0.5", "0.6"), "`generate.temperature`", id="the key"),
        pytest.param(
            BEFORE.replace("temperature: 0.5, ", ""), "`generate.temperature`", id="the key is gone"
        ),
    ],
)
def test_a_stage_sees_changes_of_what_it_depends_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, after: str, changed: str | None
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("params.yaml").write_text(BEFORE)
    guard = Guard.start("train", "generate.temperature")
    Path("params.yaml").write_text(after)
    if changed is None:
        guard.check()
        return
    with pytest.raises(ChangedWhileRunning, match=changed):
        guard.check()
