from __future__ import annotations

from pathlib import Path

import pytest
import torch

from eyas import paths
from eyas.cli.main import main
from eyas.drafter.formats.reading import read_drafter
from eyas.drafter.formats.writing import FORMATS
from tests.drafter.formats.example import eagle_head, written
from tests.export.conftest import PROFILE


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    paths.TARGET_PROFILE.parent.mkdir()
    PROFILE.write(paths.TARGET_PROFILE)
    return tmp_path


@pytest.mark.parametrize("name", FORMATS)
def test_a_published_head_becomes_any_format(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    source = read_drafter(eagle_head(Path("head")), PROFILE)
    assert main(["convert", "head", "new", "--format", name]) == 0
    said = capsys.readouterr().out
    assert "assumed: rope_theta is 10000" in said
    assert f"new: {name}, float16; head was vllm" in said
    read = read_drafter(Path("new"), PROFILE)
    assert (read.format, read.config, read.assumptions) == (name, source.config, [])
    assert all(torch.equal(read.state[key], tensor) for key, tensor in source.state.items())


def test_what_can_not_be_converted(capsys: pytest.CaptureFixture[str]) -> None:
    written(Path("drafter"), "vllm", norm_before_residual=True)
    assert main(["convert", "drafter", "new", "--format", "sglang"]) == 1
    assert "sglang can't serve this drafter" in capsys.readouterr().err
    assert not Path("new").exists()
    assert main(["convert", "drafter", "drafter"]) == 1
    assert "it exists already" in capsys.readouterr().err
    assert main(["convert", "none", "new"]) == 1
    assert "no such folder" in capsys.readouterr().err
