"""The stage script as DVC runs it, with a local folder as source."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml
from stages import target

from eyas import paths
from eyas.errors import ChangedWhileRunning, GateError
from eyas.target import check
from eyas.target.spec import TargetProfile
from tests.tiny_target import profile_of


@pytest.fixture
def project(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory whose params name the tiny target; its random weights give no sensible answer."""
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["target"] = {"source": "folder", "name": str(llama)}
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)
    return llama


def test_a_senseless_target_is_not_published(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths.TARGET.mkdir(parents=True)
    (paths.TARGET / "old").touch()
    senseless = check.Answer([5] * 48, "the" * 48, ended=False)
    monkeypatch.setattr(check, "greedy_answer", lambda *args, **kwargs: senseless)
    with pytest.raises(GateError, match="makes no sense"):
        target.main()
    assert [path.name for path in paths.TARGET.iterdir()] == ["old"]
    assert not paths.TARGET_PROFILE.exists()


def test_target_and_profile(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "check_answer", lambda answer: None)
    target.main()
    assert TargetProfile.read(paths.TARGET_PROFILE) == profile_of(project)
    for path in project.iterdir():
        assert (paths.TARGET / path.name).read_bytes() == path.read_bytes()
    assert sorted(path.name for path in Path("models").iterdir()) == ["profile.json", "target"]


def test_the_turn_format_is_shown(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(check, "check_answer", lambda answer: None)
    with caplog.at_level("INFO", "eyas.target"):
        target.main()
    assert "turns are written as in family chatml" in caplog.messages
    assert "a turn ends with '<|endoftext|>' [0], '<|im_end|>' [2]" in caplog.messages


def test_params_changed_while_it_ran(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def edit(answer: check.Answer) -> None:
        text = Path("params.yaml").read_text()
        Path("params.yaml").write_text(text.replace("source: folder", "source: folder\n  dtype: bfloat16"))

    monkeypatch.setattr(check, "check_answer", edit)
    with pytest.raises(ChangedWhileRunning, match="`target`"):
        target.main()
    assert not paths.TARGET.exists()
