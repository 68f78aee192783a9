"""Kill -9 at 20 random moments of an extraction: the store is that of an undisturbed run, and little is repeated."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections import Counter
from pathlib import Path

import pytest

from eyas.published import is_published
from eyas.shards import HiddenStore
from tests.extract.lives import computed
from tests.extract.project import store_bytes, write_project
from tests.nursery import nursery

pytestmark = pytest.mark.pipeline

KILLS = 20
IN_FLIGHT = 2
"""The shard that is computed, and the one before it, which is written meanwhile."""


def finished(directory: Path) -> set[str]:
    """Shards in the journal that have a record."""
    records = directory.glob("data/.journal/extract/*/*/shard-*.json")
    return {f"{path.parent.name} {int(path.stem.removeprefix('shard-'))}" for path in records}


def wait_for(directory: Path, begun: int) -> None:
    """Until so many shards have been begun in all."""
    deadline = time.monotonic() + 60
    while len(computed(directory)) < begun:
        assert time.monotonic() < deadline
        time.sleep(0.002)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", [1, pytest.param(2, marks=pytest.mark.stress)])
def test_kill_9_at_20_random_moments(tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    undisturbed, killed = tmp_path / "undisturbed", tmp_path / "killed"
    splits = write_project(killed, {"train": 40, "val": 2, "eval": 6})
    shutil.copytree(killed, undisturbed)
    known: set[str] = set()
    with nursery("tests.extract.lives") as lives:
        lives.start(undisturbed)
        assert lives.wait() == 0
        for _ in range(KILLS):
            before = computed(killed)
            pid = lives.start(killed, delay_s=0.02)
            wait_for(killed, len(before) + chance.choice([0, 1, 1, 2, 3, 4]))  # 0: while it starts
            time.sleep(chance.uniform(0.0, 0.2))
            os.kill(pid, signal.SIGKILL)
            assert lives.wait() == -signal.SIGKILL, "it ended before it was killed: more shards are needed"
            now, begun = finished(killed), computed(killed)[len(before) :]
            assert now >= known, "a finished shard is gone"
            assert set(begun) & known == set(), "a finished shard was computed again"
            assert len(set(begun) - now) <= IN_FLIGHT, "more was lost than was in flight"
            known = now
        before = computed(killed)
        lives.start(killed)
        assert lives.wait() == 0
    assert not set(computed(killed)[len(before) :]) & known
    shards = {
        f"{split} {number}"
        for split in splits
        for number in range(len(list((killed / "data/hidden" / split).glob("shard-*"))))
    }
    assert set(computed(killed)) == shards
    assert Counter(computed(killed)).total() <= len(shards) + IN_FLIGHT * KILLS
    assert 10 < len(known) < len(shards), "the kills fell into the run, not before or behind it"
    assert store_bytes(killed) == store_bytes(undisturbed)
    for split, sequences in splits.items():
        store = HiddenStore(killed / "data/hidden" / split)
        store.verify()
        assert store.sequence_ids == list(sequences.sequence_ids)
    assert [is_published(folder) for folder in killed.glob("data/.journal/extract/*")] == [True]
