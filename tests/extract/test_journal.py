from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eyas import paths
from eyas.errors import JournalInUse
from eyas.extract import journal as journal_module
from eyas.extract.journal import ExtractJournal, code_digest, fingerprint, leftovers, server_folder
from eyas.extract.params import ExtractParams
from eyas.published import forget_published
from eyas.sampling import GREEDY, Sampling
from eyas.target.spec import TargetProfile
from tests.extract.stored import meta
from tests.serving.example import server_params
from tests.tiny_target import profile_of, write_target


@pytest.fixture(autouse=True)
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def profile(tmp_path_factory: pytest.TempPathFactory) -> TargetProfile:
    return profile_of(write_target(tmp_path_factory.mktemp("t") / "tiny"))


SAMPLED = Sampling("vllm", 0.7, 1.0, 0)


def test_a_servers_arguments_may_decide_kernels(profile: TargetProfile) -> None:
    def folder(backend: str, *arguments: str) -> ExtractJournal:
        server = server_params(extra_args=list(arguments))
        params = ExtractParams(backend=backend)
        return ExtractJournal.of(fingerprint(profile, params, GREEDY, meta(), {"train": "x"}, server))

    assert folder("vllm", "--quantization", "fp8") != folder("vllm")
    assert folder("transformers", "--quantization", "fp8") == folder("transformers")


@pytest.mark.parametrize(
    ("change", "same"),
    [
        pytest.param({}, True, id="nothing"),
        pytest.param(
            {"params": ExtractParams(min_agreement=0.5, max_sampling_z=3.0)}, True, id="a threshold"
        ),
        pytest.param({"params": ExtractParams(dtype="bfloat16")}, False, id="storage type"),
        pytest.param({"params": ExtractParams(batch_tokens=17)}, False, id="batches"),
        pytest.param({"params": ExtractParams(shard_bytes=1 << 21)}, False, id="shards"),
        pytest.param({"params": ExtractParams(backend="vllm")}, False, id="backend"),
        pytest.param({"sampling": SAMPLED}, False, id="what the gate counts"),
        pytest.param({"meta": replace(meta(), versions={"torch": "3"})}, False, id="another torch"),
        pytest.param({"sources": {"train": "y"}}, False, id="sequences"),
    ],
)
def test_what_shards_depend_on(profile: TargetProfile, change: dict[str, Any], same: bool) -> None:
    given: dict[str, Any] = {
        "profile": profile, "params": ExtractParams(), "sampling": GREEDY, "meta": meta(), "sources": {"train": "x"},
    }  # fmt: skip
    ours, theirs = fingerprint(**given), fingerprint(**{**given, **change})
    assert (ExtractJournal.of(ours) == ExtractJournal.of(theirs)) is same
    assert json.loads(json.dumps(ours)) == ours


def test_the_code_that_decides_is_part_of_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "eyas"
    for name in ("extract/backend.py", "extract/progress.py", "serving/vllm.py", *journal_module.DECIDING):
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / name).write_text("1")
    monkeypatch.setattr(journal_module, "PACKAGE", package)
    before, served = code_digest(served=False), code_digest(served=True)
    (package / "extract/progress.py").write_text("2")
    (package / "serving/vllm.py").write_text("2")
    assert code_digest(served=False) == before
    assert code_digest(served=True) != served
    (package / "extract/backend.py").write_text("2")
    assert code_digest(served=False) != before


def test_modules_named_as_deciding_or_not_exist() -> None:
    root = journal_module.PACKAGE
    assert [name for name in journal_module.DECIDING if not (root / name).exists()] == []
    assert [name for name in journal_module.NEUTRAL if not (root / "extract" / f"{name}.py").exists()] == []


def opened(name: str = "a") -> ExtractJournal:
    journal = ExtractJournal.of({"name": name})
    journal.open({"name": name})
    return journal


def test_a_second_extraction_of_the_same_is_refused(tmp_path: Path) -> None:
    folder = ExtractJournal.of({"name": "a"}).folder
    code = "\n".join([
        "import sys, time; from pathlib import Path; from eyas import filelock",
        f"Path({str(folder)!r}).mkdir(parents=True)",
        f"lock = filelock.take(Path({str(folder / 'lock')!r})); print('taken', flush=True); time.sleep(60)",
    ])  # fmt: skip
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout is not None
            assert other.stdout.readline() == "taken\n"
            with pytest.raises(JournalInUse, match=f"pid {other.pid}") as caught:
                opened()
            assert "finished shards are kept" in str(caught.value.hint)
            (folder / "fingerprint.json").write_text("{}")
            assert leftovers(opened("b").folder) == [], "another one that is running is let alone"
        finally:
            other.kill()


def old(name: str, size: int, age_s: float) -> Path:
    """What an extraction that was killed has left."""
    folder = ExtractJournal.of({"name": name}).folder
    (folder / "train").mkdir(parents=True)
    (folder / "fingerprint.json").write_text("{}")
    (folder / "train" / "shard-00000.safetensors").write_bytes(bytes(size))
    for path in folder.rglob("*"):
        os.utime(path, (time.time() - age_s,) * 2)
    return folder


def test_leftovers_are_told_the_oldest_first() -> None:
    newer, older = old("newer", 1000, 50), old("older", 3000, 500)
    (paths.journal("extract") / "unknown").mkdir()
    journal = opened()
    found = leftovers(journal.folder)
    assert [leftover.folder for leftover in found] == [older, newer]
    assert [leftover.bytes for leftover in found] == [3002, 1002]
    found[0].remove()
    assert not older.exists()
    assert (paths.journal("extract") / "unknown").exists()


@pytest.mark.parametrize(("host", "age_s", "told"), [("a", 50, False), ("a", 90_000, True), ("b", 50, True)])
def test_what_another_machine_may_still_be_writing_is_let_alone(
    host: str, age_s: float, told: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a shared folder the locks of another machine can't be seen. This one is b."""
    monkeypatch.setattr("socket.gethostname", lambda: host)
    journal = opened("theirs")
    os.close(journal_lock(journal))
    for path in journal.folder.rglob("*"):
        os.utime(path, (time.time() - age_s,) * 2)
    monkeypatch.setattr("socket.gethostname", lambda: "b")
    assert [leftover.folder for leftover in leftovers(opened("ours").folder)] == [journal.folder] * told


def test_bytes_that_a_store_shares_are_not_counted() -> None:
    shard = old("a", 1000, 5) / "train" / "shard-00000.safetensors"
    os.link(shard, "published")
    assert [leftover.bytes for leftover in leftovers(opened("b").folder)] == [2]


def test_published_folders_of_others_are_removed() -> None:
    journal = opened("a")
    journal.finish(keep=True)
    os.close(journal_lock(journal))
    assert journal.folder.exists()
    assert leftovers(opened("b").folder) == []
    assert not journal.folder.exists()


def journal_lock(journal: ExtractJournal) -> int:
    """The descriptor that holds the lock, to let it go as the end of the process does."""
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if descriptor.readlink() == journal.folder / "lock":
                return int(descriptor.name)
        except OSError:
            continue
    raise AssertionError("no lock")


def test_a_folder_is_removed_or_kept_until_it_is_opened_again() -> None:
    journal = opened()
    journal.finish(keep=False)
    assert not journal.folder.exists()
    journal = opened("b")
    journal.finish(keep=True)
    assert (journal.folder / "published.json").exists()
    os.close(journal_lock(journal))
    opened("b")
    assert not (journal.folder / "published.json").exists()


def test_a_later_stage_forgets_what_is_published(monkeypatch: pytest.MonkeyPatch) -> None:
    published, unfinished = opened("a"), old("b", 10, 5)
    published.finish(keep=True)
    os.close(journal_lock(published))
    forget_published("extract")
    assert published.folder.exists(), "outside of dvc repro nobody knows that the output is cached"
    monkeypatch.setenv("DVC_STAGE", "train")
    forget_published("extract")
    assert not published.folder.exists()
    assert unfinished.exists()
    forget_published("nothing")


def test_a_file_system_without_locks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(path: Path) -> int:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("eyas.filelock.take", refuse)
    assert opened().folder.exists()
    assert "start no second extraction" in caplog.text


def test_what_a_killed_run_was_writing_is_removed() -> None:
    journal = opened()
    os.close(journal_lock(journal))
    shard, torn = (journal.parts("train") / f"shard-00000.safetensors{end}" for end in ("", ".17.tmp"))
    for path in (shard, torn):
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
    opened()
    assert shard.exists()
    assert not torn.exists()


def test_the_fixture_is_kept() -> None:
    journal = opened()
    assert journal.kept_fixture() is None
    journal.keep_fixture({"worst_difference": 1e-6})
    assert journal.kept_fixture() == {"worst_difference": 1e-6}


def test_folders_of_dead_servers_are_removed() -> None:
    root = paths.journal("extract")
    with subprocess.Popen(["true"]) as ended:
        ended.wait()
    mine = server_folder()
    dead, foreign = (root / mine.name.replace(str(os.getpid()), str(ended.pid)), root / "server-other-1")
    for folder in (mine, dead, foreign):
        folder.mkdir(parents=True)
    assert server_folder() == mine
    assert mine.exists()
    assert foreign.exists()
    assert not dead.exists()
