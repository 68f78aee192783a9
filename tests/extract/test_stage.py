"""The stage script as DVC runs it, on a tiny target."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from stages import extract

from eyas import paths
from eyas.errors import ArtifactError, GateError
from eyas.extract.backend import TransformersBackend
from eyas.extract.extractor import Computed, Extractor
from eyas.extract.table import Sequences
from eyas.extract.work import Work
from eyas.published import forget_published
from eyas.shards import HiddenStore
from eyas.target.model import TargetHead, TargetStates
from eyas.target.spec import TargetProfile
from tests.extract.greedy import greedy_sequences, write_table
from tests.extract.test_run import with_another_last_token
from tests.tiny_target import profile_of, write_target


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sequences:
    """A working directory before the stage; returns the training sequences."""
    params = yaml.safe_load(Path("params.yaml").read_text())
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the extractor takes all cores otherwise
    profile_of(write_target(paths.TARGET)).write(paths.TARGET_PROFILE)
    sequences = greedy_sequences(paths.TARGET)
    for split in paths.SPLITS:
        write_table(sequences, paths.sequences(split))
    return sequences


def test_stores_and_report(project: Sequences) -> None:
    extract.main()
    report = json.loads(Path("reports/extraction.json").read_text())
    assert list(report) == [*paths.SPLITS, "fixture"]
    assert report["fixture"]["worst_difference"] < 1e-4
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    for split in paths.SPLITS:
        store = HiddenStore(paths.hidden(split))
        store.verify()
        store.check_target(profile)
        assert store.sequence_ids == project.sequence_ids
        assert report[split]["bytes"] == store.bytes
        assert report[split]["datasets"]["a"]["agreement"] == 1.0
    assert sorted(path.name for path in paths.HIDDEN.iterdir()) == ["eval", "train", "val"]


def test_a_rerun_gives_the_same_bytes(project: Sequences) -> None:
    extract.main()
    outputs = [Path("reports/extraction.json"), *sorted(paths.HIDDEN.rglob("*.*"))]
    first = [path.read_bytes() for path in outputs]
    let_go_of_locks()
    shutil.rmtree(paths.journal("extract"))
    extract.main()
    assert [path.read_bytes() for path in outputs] == first


def test_nothing_is_published_when_a_split_is_wrong(project: Sequences) -> None:
    write_table(with_another_last_token(project, 1), paths.sequences("eval"))
    with pytest.raises(GateError, match="b:1"):
        extract.main()
    assert not paths.HIDDEN.exists()
    assert not Path("reports/extraction.json").exists()


def test_a_missing_table(project: Sequences) -> None:
    paths.sequences("val").unlink()
    with pytest.raises(ArtifactError, match="sequences can't be read"):
        extract.main()


def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Shards that are computed from now on."""
    compute, begun = Extractor.compute, []

    def counting(self: Extractor, work: Work, number: int, advance: Any) -> Computed:
        begun.append(f"{work.split} {number}")
        return compute(self, work, number, advance)

    monkeypatch.setattr(Extractor, "compute", counting)
    return begun


def journals() -> list[Path]:
    return [path for path in paths.journal("extract").iterdir() if path.is_dir()]


def let_go_of_locks() -> None:
    """As the end of the process does."""
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            if descriptor.readlink().name == "lock":
                os.close(int(descriptor.name))
        except OSError:
            continue


def edit(**extract: Any) -> None:
    params = yaml.safe_load(Path("params.yaml").read_text())
    params["extract"] |= extract
    Path("params.yaml").write_text(yaml.safe_dump(params))


def test_a_lower_threshold_uses_what_was_computed(
    project: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The gate stopped at the last split; the first two are finished and are not computed again."""
    write_table(with_another_last_token(project, 1), paths.sequences("eval"))
    with pytest.raises(GateError, match="b:1"):
        extract.main()
    let_go_of_locks()
    edit(min_agreement=0.9)
    begun = counted(monkeypatch)
    extract.main()
    assert begun == ["eval 0"]
    report = json.loads(Path("reports/extraction.json").read_text())
    assert report["eval"]["datasets"]["b"]["agreement"] < 1.0


def test_until_dvc_has_the_output_the_journal_keeps_the_shards(
    project: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    """DVC hashes the output when the stage has ended, and deletes it before the next run if that is interrupted.

    With torchrun the stage runs outside of DVC, and `dvc commit` comes after it.
    """
    extract.main()
    let_go_of_locks()
    outputs = [Path("reports/extraction.json"), *sorted(paths.HIDDEN.rglob("*.*"))]
    first = [path.read_bytes() for path in outputs]
    (folder,) = journals()
    shard = paths.hidden("train") / "shard-00000.safetensors"
    assert shard.samefile(folder / "train" / shard.name), "no space is taken twice"
    shutil.rmtree(paths.HIDDEN)
    begun = counted(monkeypatch)
    extract.main()
    let_go_of_locks()
    assert begun == []
    assert [path.read_bytes() for path in outputs] == first
    forget_published("extract")
    assert journals() == [folder], "who runs a later stage by hand may not have committed the output"
    monkeypatch.setenv("DVC_STAGE", "train")
    forget_published("extract")
    assert journals() == []


def test_what_a_killed_run_was_publishing_is_removed(project: Sequences) -> None:
    torn = paths.HIDDEN / "train.17.tmp"
    torn.mkdir(parents=True)
    (torn / "shard-00000.safetensors").write_bytes(b"x")
    extract.main()
    assert sorted(path.name for path in paths.HIDDEN.iterdir()) == ["eval", "train", "val"]


def test_other_params_use_nothing_of_it(project: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DVC_STAGE", "extract")
    extract.main()
    let_go_of_locks()
    edit(dtype="bfloat16")
    begun = counted(monkeypatch)
    extract.main()
    assert begun == ["train 0", "val 0", "eval 0"]
    assert len(journals()) == 1, "the published one of the other params is gone"
    report = json.loads(Path("reports/extraction.json").read_text())
    assert 0.0 < report["train"]["storage_error"]["last"]["mean"] < 2**-8


def test_a_flipped_byte_in_the_journal_after_a_crash(
    project: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DVC_STAGE", "extract")
    extract.main()
    let_go_of_locks()
    first = (paths.hidden("val") / "shard-00000.safetensors").read_bytes()
    (folder,) = journals()
    shutil.rmtree(paths.HIDDEN)
    content = bytearray(first)
    content[-100] ^= 1
    (folder / "val" / "shard-00000.safetensors").write_bytes(content)
    monkeypatch.setattr("eyas.extract.parts.boot_id", lambda: "the next boot")
    begun = counted(monkeypatch)
    with monkeypatch.context() as faulty:
        faulty.setattr(TransformersBackend, "states", shifted(TransformersBackend.states))
        with pytest.raises(GateError, match="the comparison at the start of extraction"):
            extract.main()
    assert begun == [], "what is computed late is compared too"
    let_go_of_locks()
    extract.main()
    assert begun == ["val 0"]
    assert (paths.hidden("val") / "shard-00000.safetensors").read_bytes() == first


def shifted(states: Callable[..., list[TargetStates]]) -> Callable[..., list[TargetStates]]:
    """Each row of a sequence is that of the token before."""

    def wrong(self: TransformersBackend, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        return [
            TargetStates(aux=found.aux.roll(1, dims=0), last=found.last.roll(1, dims=0))
            for found in states(self, sequences)
        ]

    return wrong


def test_too_little_disk_stops_before_any_work(project: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    begun = counted(monkeypatch)
    monkeypatch.setattr("eyas.extract.budget.free_bytes", lambda path: 1 << 20)
    with pytest.raises(GateError, match="the hidden states need"):
        extract.main()
    assert begun == []


def test_old_journals_make_room_where_it_is_needed(
    project: Sequences, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = paths.journal("extract") / "0123456789abcdef"
    (old / "train").mkdir(parents=True)
    (old / "fingerprint.json").write_text("{}")
    extract.main()
    let_go_of_locks()
    assert old.exists()
    edit(dtype="bfloat16")  # so that disk is needed
    monkeypatch.setattr("eyas.extract.budget.free_bytes", lambda path: 0 if old.exists() else 1 << 40)
    shutil.rmtree(paths.HIDDEN)
    extract.main()
    assert not old.exists()


def test_too_little_memory_stops_before_any_work(project: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    """The sequence with the most tokens is tried first."""
    begun = counted(monkeypatch)

    def exhausted(self: TransformersBackend, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")

    monkeypatch.setattr(TransformersBackend, "states", exhausted)
    edit(batch_tokens=30)
    with pytest.raises(
        GateError, match="1 sequences of 42 tokens together, the longest of 42: CUDA"
    ) as caught:
        extract.main()
    assert caught.value.where == "b:1"
    assert "reassemble.max_length" in str(caught.value.hint)
    assert begun == []


def test_a_head_that_does_not_fit(project: Sequences, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside the layers, on their GPU."""

    def exhausted(self: TargetHead, device: torch.device) -> TargetHead:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1.00 GiB.")

    monkeypatch.setattr(TargetHead, "to", exhausted)
    with pytest.raises(
        GateError, match="the target's head, beside its layers, does not fit on cpu"
    ) as caught:
        extract.main()
    assert "device_map" in str(caught.value.hint)
