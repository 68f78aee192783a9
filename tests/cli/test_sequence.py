from __future__ import annotations

import io
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from rich.console import Console

from eyas import paths
from eyas.cli.sequence import STYLES, show
from eyas.errors import ArtifactError
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.sequences import candidates, chosen
from eyas.tokenkinds import NAMES
from tests.families import FAMILIES
from tests.reassemble.golden_rows import row_of, table_of

FAMILY = FAMILIES["qwen3"]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with a target and the sequences of its golden turns."""
    directory = tmp_path_factory.mktemp("repository")
    tokenizer = FAMILY.tokenizer_dir(directory)
    profile = FAMILY.profile(directory)
    (directory / "models").mkdir()
    shutil.copytree(tokenizer, directory / paths.TARGET)
    profile.write(directory / paths.TARGET_PROFILE)
    rows = [row_of(FAMILY, turn) for turn in FAMILY.turns]
    rows.append(
        row_of(
            FAMILY, FAMILY.turn("thinking"), sample_id="qwen3:smile", token_ids=[0xF0, 0x9F, 0x98, 0x80, 642]
        )
    )
    params = ReassembleParams(val_share=0.1, max_length=1000, keep_truncated=True)
    table = chosen(
        candidates(table_of(*[row | {"reasoning": None} for row in rows]).lazy(), profile, params)
    ).collect()
    (directory / paths.SEQUENCES).mkdir(parents=True)
    for split, part in (("train", table[:2]), ("val", table[2:4]), ("eval", table[4:])):
        part.write_parquet(directory / paths.sequences(split))
    return directory


@pytest.fixture(autouse=True)
def inside(repository: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(repository)


def shown(sequence_id: str, *, ids: bool = False, width: int = 100) -> str:
    console = Console(width=width, record=True, file=io.StringIO())
    assert show(sequence_id, console, ids=ids) == 0
    return console.export_text(styles=False)


def test_every_kind_is_a_section_with_its_places() -> None:
    text = shown("qwen3:tool_call")
    sections = [line.split(" ·")[0] for line in text.splitlines() if " ···" in line]
    assert sections == [
        "prompt  tokens 0 to 11 (12)",
        "think_marker  tokens 12 to 12 (1)",
        "reasoning  tokens 13 to 18 (6)",
        "think_marker  tokens 19 to 19 (1)",
        "answer  tokens 20 to 20 (1)",
        "tool_call  tokens 21 to 54 (34)",
        "end_of_turn  tokens 55 to 55 (1)",
    ]
    assert "12 prompt, 2 think_marker, 6 reasoning, 1 answer, 34 tool_call, 1 end_of_turn" in text
    for name in NAMES:
        assert f" {name} " in text.split("tokens 0 to")[0]  # the legend
    assert "val" in text


def test_newlines_are_written_out_and_end_lines() -> None:
    lines = shown("qwen3:thinking").splitlines()
    assert "<|im_start|>user\\n" in lines
    assert "It is easy.\\n" in lines


def test_ids_stand_behind_their_tokens() -> None:
    text = shown("qwen3:thinking", ids=True)
    assert "It⟨274⟩ is⟨275⟩ easy⟨276⟩.⟨46⟩\\n⟨10⟩" in text
    assert "<|im_end|>⟨642⟩" in text
    assert "⟨" not in shown("qwen3:thinking")


def test_a_character_of_several_tokens_is_shown_once() -> None:
    assert "·⟨240⟩·⟨159⟩·⟨152⟩😀⟨128⟩" in shown("qwen3:smile", ids=True)
    assert "😀" in shown("qwen3:smile")


def test_colours_tell_the_kinds_apart() -> None:
    assert len(set(STYLES)) == len(NAMES) == len(STYLES)
    console = Console(
        width=100, record=True, force_terminal=True, color_system="standard", file=io.StringIO()
    )
    show("qwen3:thinking", console)
    text = console.export_text(styles=True)
    assert "\x1b[33m is" in text  # yellow: reasoning
    assert "\x1b[32m.\x1b" in text or "\x1b[4;32m.\x1b" in text  # green: answer


def test_long_sequences_wrap() -> None:
    lines = shown("qwen3:tool_call", ids=True, width=40).splitlines()
    assert max(map(len, lines)) <= 40
    whole = "".join(lines)
    assert "<tool_call>⟨645⟩" in whole


def test_an_unknown_id_says_so_and_fails() -> None:
    console = Console(width=100, record=True, file=io.StringIO())
    assert show("qwen3:none", console) == 1
    assert "no sequence has the id qwen3:none" in console.export_text()


def test_no_sequences_at_all_say_what_to_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ArtifactError, match="dvc repro reassemble"):
        show("a:1", Console())


def test_torch_is_not_loaded(repository: Path) -> None:
    code = (
        "import sys; from rich.console import Console; from eyas.cli.sequence import show; "
        "show('qwen3:thinking', Console()); sys.exit('torch' in sys.modules)"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": "/usr/bin:/bin"},
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
