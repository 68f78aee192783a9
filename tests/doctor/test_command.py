from __future__ import annotations

import json
from pathlib import Path

import pytest

from eyas.cli.main import main
from tests.doctor.tiny_run import TinyRun
from tests.pipeline.sabotage import flag_flipped, write_spoiled


def arguments(run: TinyRun, folder: Path, *more: str) -> list[str]:
    where = ["--target", str(run.target), "--hidden", str(run.store.directory)]
    return ["doctor", "drafter", str(folder), *where, *more]


def test_a_sound_drafter_with_the_numbers_of_a_log(run: TinyRun, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments(run, run.sound, "--json")) == 0
    simulated = json.loads(capsys.readouterr().out)["simulated"]
    rates = ",".join(str(simulated["acceptance"][f"at_{place}"]) for place in (1, 2, 3))
    numbers = ["--accepted-at", rates, "--drafts", str(int(simulated["drafts"]))]
    assert main(arguments(run, run.sound, *numbers)) == 0
    shown = capsys.readouterr().out
    assert "no integration fault: the engine accepts what the folder predicts" in shown.replace("\n", " ")
    assert "simulated, folder as it is" in shown


def test_a_spoiled_drafter_and_the_line_to_change(
    run: TinyRun, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spoiled = write_spoiled(tmp_path, run.sound, flag_flipped("norm_before_residual"))
    assert main(arguments(run, spoiled)) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "change: config.json: norm_before_residual: false -> true" in shown
    assert "times as likely as no fault" in shown
    assert main(arguments(run, spoiled, "--json")) == 1
    values = json.loads(capsys.readouterr().out)
    assert values["cause"] == "norm_before_residual"
    assert values["suspects"][0]["change"]["key"] == "norm_before_residual"
    assert values["suspects"][0]["log_ratio"] > 6.9


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--accepted-at", "0.5,0.2,0.1"], "needs --drafts"),
        (["--accepted-at", "half", "--drafts", "9"], "could not convert"),
        (["--accepted-at", "0.5,0.6", "--drafts", "9"], "makes no sense"),
        (["--accepted-at", "0.5,0.2", "--drafts", "9", "--draft-tokens", "3"], "another number of positions"),
        (["--dataset", "none"], "no stored answer is of the kind asked for"),
        (["--report", "nowhere.json"], "engine's report can't be read"),
    ],
)
def test_arguments_that_make_no_sense(
    run: TinyRun, capsys: pytest.CaptureFixture[str], more: list[str], message: str
) -> None:
    assert main(arguments(run, run.sound, *more)) == 1
    assert message in capsys.readouterr().err
