"""The stage script as DVC runs it, on a tiny target."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from stages import extract

from eyas import paths
from eyas.errors import ArtifactError, GateError
from eyas.extract.table import Sequences
from eyas.shards import HiddenStore
from eyas.target.spec import TargetProfile
from tests.extract.greedy import greedy_sequences, write_table
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
    assert list(report) == list(paths.SPLITS)
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
    extract.main()
    assert [path.read_bytes() for path in outputs] == first


def test_nothing_is_published_when_a_split_is_wrong(project: Sequences) -> None:
    ids = [list(row) for row in project.token_ids]
    ids[1][-1] = (ids[1][-1] + 1) % 290
    write_table(replace(project, token_ids=ids), paths.sequences("eval"))
    with pytest.raises(GateError, match="b:1"):
        extract.main()
    assert not list(paths.HIDDEN.iterdir())
    assert not Path("reports/extraction.json").exists()


def test_a_missing_table(project: Sequences) -> None:
    paths.sequences("val").unlink()
    with pytest.raises(ArtifactError, match="sequences can't be read"):
        extract.main()
