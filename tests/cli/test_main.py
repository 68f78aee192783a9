"""The command itself: exit codes, help, what it must not import."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.runs import command, make_run
from tests.generate.counted import answer, outcome


def eyas(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """`python -m eyas.cli.main` in a process of its own."""
    return subprocess.run(
        [sys.executable, *python, "-m", "eyas.cli.main", *arguments],
        capture_output=True,
        text=True,
        check=False,
    )


def test_help_names_the_commands() -> None:
    done = eyas("--help")
    assert done.returncode == 0
    assert "status" in done.stdout
    assert "peek" in done.stdout


@pytest.mark.parametrize("arguments", [[], ["nothing"], ["status", "--nothing"]])
def test_wrong_arguments_end_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        command(*arguments)
    assert caught.value.code == 2
    assert "usage: eyas" in capsys.readouterr().err


def test_status_and_peek_start_without_heavy_packages(repository: Path) -> None:
    make_run("a", [outcome(answer())], total=1)
    for arguments in (("status",), ("status", "a", "--json"), ("peek", "a")):
        done = eyas(*arguments, python=("-X", "importtime"))
        assert done.returncode == 0
        imported = {line.rpartition("|")[2].strip().partition(".")[0] for line in done.stderr.splitlines()}
        assert "eyas" in imported
        heavy = {
            "torch",
            "transformers",
            "polars",
            "pandera",
            "openai",
            "httpx2",
            "aiohttp",
            "omegaconf",
            "numpy",
        }
        assert not imported & heavy


def test_a_closed_pipe_is_no_error(repository: Path) -> None:
    make_run("a", [outcome(answer(), sample_id=f"a:{number}") for number in range(300)], total=300)
    reader = subprocess.Popen(
        [sys.executable, "-m", "eyas.cli.main", "peek", "a", "-n", "300"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert reader.stdout is not None
    assert reader.stderr is not None
    reader.stdout.readline()
    reader.stdout.close()
    assert reader.stderr.read() == b""
    assert reader.wait(30) in (0, 1)  # rich ends a program whose reader is gone with 1
    reader.stderr.close()
