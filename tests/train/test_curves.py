from __future__ import annotations

import subprocess
from pathlib import Path

import psutil
import pytest

from eyas.train.curves import Curves


def test_no_file_of_the_repository_stays_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for command in (
        ["git", "init", "--quiet"],
        [
            "git",
            "-c",
            "user.name=a",
            "-c",
            "user.email=a@b.c",
            "commit",
            "--quiet",
            "--allow-empty",
            "-m",
            "a",
        ],
        ["git", "repack", "-a", "-d", "--quiet"],
        ["dvc", "init", "--quiet"],
    ):
        subprocess.run(command, cwd=tmp_path, check=True)
    monkeypatch.chdir(tmp_path)
    curves = Curves(tmp_path / "live", 0)
    assert open_packs(tmp_path) == []
    curves.row(1, {"loss": 2.0})
    curves.close()
    assert open_packs(tmp_path) == []
    assert (tmp_path / "live" / "plots" / "metrics" / "loss.tsv").read_text() == "step\tloss\n1\t2.0\n"


def open_packs(root: Path) -> list[str]:
    packs = root.resolve() / ".git" / "objects" / "pack"
    return [file.path for file in psutil.Process().open_files() if Path(file.path).parent == packs]
