from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from eyas.cli import summary
from eyas.cli.summary import dataset_table, result_table


def write(path: Path, value: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def shown(*tables: Any) -> list[list[str]]:
    """The cells of each printed line."""
    console = Console(width=160, force_terminal=False)
    with console.capture() as capture:
        for table in tables:
            console.print(table)
    lines = capture.get().splitlines()
    return [
        [cell.strip() for cell in line.strip("│┃").replace("┃", "│").split("│")]
        for line in lines
        if "│" in line
    ]


@pytest.fixture
def reports(tmp_path: Path) -> Path:
    for name, quarantined in (("held", 0), ("rg", 3)):
        write(
            tmp_path / f"validation/{name}.json",
            {"validated": 1200, "quarantined": quarantined, "tokens": {"generated": {"total": 34567}}},
        )
    write(
        tmp_path / "vocab.json",
        {
            "coverage": {"eval": 0.973},
            "coverage_by_dataset": {"train": {"rg": 0.999}, "eval": {"held": 0.973}},
        },
    )
    write(
        tmp_path / "reassembly.json",
        {
            "splits": {
                "train": {"rows": 1128, "generated_tokens": 32000},
                "val": {"rows": 72, "generated_tokens": 2567},
            }
        },
    )
    write(
        tmp_path / "acceptance.json",
        {
            "draft_tokens": 3,
            "datasets": {"held": {"acceptance": {"length": 1.75}}},
            "overall": {"acceptance": {"length": 1.7512}},
        },
    )
    write(
        tmp_path / "engine.json",
        {
            "answers": {"with_drafter_as_without": {"answers": 98, "identical": 97}},
            "datasets": {"held": {"acceptance": {"length": 1.74}}},
            "overall": {"acceptance": {"length": 1.7409}, "difference": {"length": -0.00588}},
        },
    )
    without, with_drafter = {"tokens_per_s": 105.04}, {"tokens_per_s": 130.2}
    write(
        tmp_path / "speed.json",
        {
            "by_concurrency": {
                "8": {"without_drafter": without, "with_drafter": with_drafter, "speedup": 1.2395},
                "1": {"without_drafter": without, "with_drafter": None, "speedup": None},
            }
        },
    )
    return tmp_path


def test_datasets_side_by_side(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(reports)
    assert shown(dataset_table(reports)) == [
        ["held", "1,200", "0", "34,567", "97.3%", "1.750", "1.740"],
        ["rg", "1,200", "3", "34,567", "99.9%", "-", "-"],
    ]


def test_a_removed_dataset_is_not_shown(reports: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    datasets = "{held: {source: mt_bench, role: eval}, new: {source: mt_bench, role: train}}"
    (reports / "params.yaml").write_text(f"datasets: {datasets}\n")
    monkeypatch.chdir(reports)
    assert [row[0] for row in shown(dataset_table(reports))] == ["held", "new"]


def test_results_and_what_is_missing(reports: Path) -> None:
    assert shown(result_table(reports)) == [
        ["train sequences / generated tokens", "1,128 / 32,000"],
        ["val sequences / generated tokens", "72 / 2,567"],
        ["eval sequences / generated tokens", "- / -"],
        ["held-out tokens in the draft vocabulary", "97.3%"],
        ["draft tokens per target step", "3"],
        ["acceptance length, simulated", "1.751"],
        ["acceptance length, engine", "1.741"],
        ["engine against simulation", "-0.59%"],
        ["identical answers with the drafter", "97 of 98"],
        ["tokens/s without and with it, 1 in flight", "105.0 / -  (-)"],
        ["tokens/s without and with it, 8 in flight", "105.0 / 130.2  (1.24x)"],
    ]


def test_a_run_without_any_report_shows_dashes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    summary.main()
    printed = capsys.readouterr().out
    assert "acceptance length, engine" in printed
    assert "- of -" in printed
