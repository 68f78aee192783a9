from __future__ import annotations

import json
from pathlib import Path

import pytest

from eyas.cli.main import main


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_page_of_what_is_there(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "reports").mkdir()
    (root / "reports/reassembly.json").write_text(json.dumps({"rows": 3, "exact_share": 1.0}))
    (root / "params.yaml").write_text("train:\n  lr: 0.25\n")
    assert main(["report", "-o", "out/page.html"]) == 0
    html = (root / "out/page.html").read_text()
    assert "100.0%" in html
    assert "<td>train.lr</td><td>0.25</td>" in html
    said = capsys.readouterr().out
    assert "wrote out/page.html" in said
    assert "reports/engine.json" in said


def test_nothing_there(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report"]) == 1
    assert "no report here" in capsys.readouterr().err
    assert not (root / "report.html").exists()


def test_a_page_that_can_not_be_written(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (root / "reports").mkdir()
    (root / "reports/reassembly.json").write_text(json.dumps({"rows": 3, "exact_share": 1.0}))
    (root / "file").write_text("")
    assert main(["report", "-o", "file/page.html"]) == 1
    assert "can't write the page" in capsys.readouterr().err
