from __future__ import annotations

import json
import pickle
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.errors import ArtifactError
from eyas.shards import (
    KINDS,
    HiddenStore,
    SequenceStates,
    ShardWriter,
    StoreMeta,
    label_positions,
    sequence_bytes,
)

LAYERS, HIDDEN = 3, 4
META = StoreMeta(
    target_digest="d1",
    target_name="tiny",
    dtype="float32",
    aux_layer_ids=[2, 4, 5],
    backend="transformers",
    versions={"torch": "2", "transformers": "5"},
)


def make_states(name: str, mask: list[bool], seed: int = 0) -> SequenceStates:
    random = torch.Generator().manual_seed(seed)
    tokens = len(mask)
    positions = [q for q in range(tokens - 1) if mask[q] and mask[q + 1]]
    return SequenceStates(
        sequence_id=name,
        token_ids=torch.randint(0, 1000, (tokens,), generator=random, dtype=torch.int32),
        loss_mask=torch.tensor(mask, dtype=torch.bool),
        aux=torch.randn(tokens, LAYERS, HIDDEN, generator=random),
        label_positions=torch.tensor(positions, dtype=torch.int32),
        last=torch.randn(len(positions), HIDDEN, generator=random),
        argmax=torch.randint(0, 1000, (len(positions),), generator=random, dtype=torch.int32),
        logsumexp=torch.randn(len(positions), generator=random),
    )


def write(
    directory: Path, sequences: list[SequenceStates], shard_bytes: int = 500, meta: StoreMeta = META
) -> Path:
    writer = ShardWriter(directory, meta, shard_bytes)
    for states in sequences:
        writer.add(states)
    writer.close()
    return directory


def assert_equal(ours: SequenceStates, theirs: SequenceStates) -> None:
    assert ours.sequence_id == theirs.sequence_id
    for kind in KINDS:
        mine, other = getattr(ours, kind), getattr(theirs, kind)
        assert mine.dtype == other.dtype
        assert torch.equal(mine, other), kind


@pytest.fixture
def sequences() -> list[SequenceStates]:
    masks = [[False, False, True, True, True], [False, True], [True] * 12, [False] * 3]
    return [make_states(f"set:{number}", mask, number) for number, mask in enumerate(masks)]


@pytest.fixture
def store(sequences: list[SequenceStates], tmp_path: Path) -> Path:
    return write(tmp_path / "store", sequences)


def test_label_positions_by_hand() -> None:
    mask = torch.tensor([0, 0, 1, 1, 1, 0, 1, 0, 1, 1], dtype=torch.bool)
    assert label_positions(mask).tolist() == [2, 3, 8]
    assert label_positions(mask).dtype == torch.int32
    assert label_positions(torch.tensor([True])).tolist() == []


def test_round_trip(sequences: list[SequenceStates], store: Path) -> None:
    opened = HiddenStore(store)
    assert len(opened) == 4
    assert opened.sequence_ids == ["set:0", "set:1", "set:2", "set:3"]
    assert opened.lengths == [5, 2, 12, 3]
    assert opened.label_counts == [2, 0, 11, 0]
    assert opened.meta == META
    assert opened.bytes == sum(path.stat().st_size for path in store.glob("shard-*"))
    for ours, theirs in zip(opened, sequences, strict=True):
        assert_equal(ours, theirs)
    assert_equal(opened[-2], sequences[2])
    opened.verify()
    with pytest.raises(IndexError):
        opened[4]


@settings(deadline=None, max_examples=40)
@given(
    masks=st.lists(st.lists(st.booleans(), min_size=1, max_size=30), max_size=12),
    shard_bytes=st.integers(1, 6000),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_any_set_comes_back(
    masks: list[list[bool]], shard_bytes: int, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    sequences = [make_states(f"s:{number}", mask, number) for number, mask in enumerate(masks)]
    directory = tmp_path_factory.mktemp("store")
    write(directory, sequences, shard_bytes, replace(META, dtype=dtype))
    opened = HiddenStore(directory)
    opened.verify()
    kind: torch.dtype = getattr(torch, dtype)
    for ours, theirs in zip(opened, sequences, strict=True):
        assert_equal(ours, replace(theirs, aux=theirs.aux.to(kind), last=theirs.last.to(kind)))
    shutil.rmtree(directory)


def test_shards_are_bounded(tmp_path: Path) -> None:
    sequences = [make_states(f"s:{number}", [True] * 10, number) for number in range(20)]
    size = sequence_bytes(10, 9, LAYERS, HIDDEN, "float32")
    write(tmp_path, sequences, shard_bytes=3 * size + 1)
    shards = sorted(tmp_path.glob("shard-*"))
    assert len(shards) == 7  # three in each, two in the last
    header = 2000
    assert all(path.stat().st_size <= 3 * size + header for path in shards)


def test_bytes_per_sequence(tmp_path: Path) -> None:
    """What is planned for the disk is what is written, but for the header."""
    for dtype in ("float32", "bfloat16"):
        directory = write(
            tmp_path / dtype, [make_states("s", [True] * 50)], 1 << 20, replace(META, dtype=dtype)
        )
        planned = sequence_bytes(50, 49, LAYERS, HIDDEN, dtype)
        assert 0 <= HiddenStore(directory).bytes - planned < 2000


def test_same_bytes_every_time(sequences: list[SequenceStates], store: Path, tmp_path: Path) -> None:
    again = write(tmp_path / "again", sequences)
    for path in store.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def test_reading_maps_and_copies_nothing(store: Path) -> None:
    opened = HiddenStore(store)
    first, again = opened[0], opened[0]
    assert first.aux.data_ptr() == again.aux.data_ptr()
    with Path("/proc/self/maps").open() as maps:
        ranges = [line.split()[0].split("-") for line in maps if str(store) in line]
    assert any(int(low, 16) <= first.aux.data_ptr() < int(high, 16) for low, high in ranges)


def test_a_worker_process_opens_the_files_itself(store: Path, sequences: list[SequenceStates]) -> None:
    opened = HiddenStore(store)
    opened[0]
    assert_equal(pickle.loads(pickle.dumps(opened))[2], sequences[2])


def test_an_empty_store(tmp_path: Path) -> None:
    assert len(HiddenStore(write(tmp_path, []))) == 0


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)


def edit_manifest(directory: Path, **changes: Any) -> None:
    path = directory / "manifest.json"
    values = json.loads(path.read_text())
    for key, change in changes.items():
        values[key] = change(values[key])
    path.write_text(json.dumps(values))


def drop_last_id(index: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**index, "sequence_id": index["sequence_id"][:-1]}


def drop_last(index: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: column[:-1] for name, column in index.items()}


def shift_rows(index: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**index, "row": [row + 1 for row in index["row"]]}


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        pytest.param(
            lambda d: (d / "manifest.json").unlink(), "manifest.json", "missing or unfinished", id="no manifest"
        ),
        pytest.param(lambda d: (d / "manifest.json").write_text("{"), "manifest.json", "damaged", id="torn manifest"),
        pytest.param(shutil.rmtree, "manifest.json", "missing or unfinished", id="no directory"),
        pytest.param(
            lambda d: edit_manifest(d, meta=lambda meta: {**meta, "format_version": 99}),
            "manifest.json", "format version 99", id="other format",
        ),
        pytest.param(
            lambda d: edit_manifest(d, meta=lambda meta: {**meta, "extra": 1}),
            "manifest.json", "damaged", id="unknown field",
        ),
        pytest.param(
            lambda d: edit_manifest(d, sequences=drop_last_id),
            "manifest.json", "columns differ", id="ragged index",
        ),
        pytest.param(
            lambda d: edit_manifest(d, sequences=shift_rows),
            "manifest.json", "damaged at set:0", id="shifted rows",
        ),
        pytest.param(
            lambda d: edit_manifest(d, sequences=drop_last),
            "shard-00002.safetensors", "account for all rows", id="lost sequence",
        ),
        pytest.param(
            lambda d: (d / "shard-00001.safetensors").unlink(),
            "shard-00001.safetensors", "is missing", id="missing shard",
        ),
        pytest.param(
            lambda d: (d / "shard-00001.safetensors").write_bytes((d / "shard-00001.safetensors").read_bytes()[:-1]),
            "shard-00001.safetensors", "instead of", id="truncated shard",
        ),
        pytest.param(
            lambda d: (d / "shard-00009.safetensors").write_bytes(b""),
            "shard-00009.safetensors", "does not belong", id="extra shard",
        ),
        pytest.param(lambda d: (d / "x.tmp").write_bytes(b""), r"x\.tmp", "does not belong", id="left-over"),
    ],
)  # fmt: skip
def test_refused_when_opened(store: Path, damage: Any, name: str, message: str) -> None:
    assert len(list(store.glob("shard-*"))) == 3
    damage(store)
    with pytest.raises(ArtifactError, match=message) as caught:
        HiddenStore(store)
    assert caught.value.where == str(store / name.replace("\\", ""))
    assert "dvc " in str(caught.value.hint)


def test_a_flipped_byte_is_found_by_verify(store: Path) -> None:
    flip(store / "shard-00001.safetensors")
    opened = HiddenStore(store)
    with pytest.raises(ArtifactError, match="differs from its checksum") as caught:
        opened.verify()
    assert str(caught.value.where).endswith("shard-00001.safetensors")


def test_a_shard_of_another_target_of_the_same_size(
    store: Path, sequences: list[SequenceStates], tmp_path: Path
) -> None:
    other = write(tmp_path / "other", sequences, meta=replace(META, target_digest="d2"))
    shutil.copyfile(other / "shard-00000.safetensors", store / "shard-00000.safetensors")
    with pytest.raises(ArtifactError, match="another target"):
        HiddenStore(store)[0]


def test_a_broken_header(store: Path) -> None:
    path = store / "shard-00000.safetensors"
    path.write_bytes(b"\xff" * path.stat().st_size)
    with pytest.raises(ArtifactError, match="can't be read"):
        HiddenStore(store)[0]


def test_check_target(store: Path) -> None:
    opened = HiddenStore(store)
    opened.check_target(SimpleNamespace(name="tiny", digest="d1", aux_layer_ids=[2, 4, 5]))
    with pytest.raises(ArtifactError, match="target d1"):
        opened.check_target(SimpleNamespace(name="other", digest="d2", aux_layer_ids=[2, 4, 5]))
    with pytest.raises(ArtifactError, match=r"aux layers \[2, 4, 5\]"):
        opened.check_target(SimpleNamespace(name="tiny", digest="d1", aux_layer_ids=[1, 3, 4]))


def test_an_unfinished_store_is_none(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, META, 1)
    writer.add(make_states("a", [True] * 5))
    writer.add(make_states("b", [True] * 5))
    assert list(tmp_path.glob("shard-*"))
    with pytest.raises(ArtifactError, match="unfinished"):
        HiddenStore(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"loss_mask": torch.zeros(4, dtype=torch.bool)}, id="mask"),
        pytest.param({"aux": torch.zeros(5, 2, HIDDEN)}, id="layers"),
        pytest.param({"aux": torch.zeros(4, LAYERS, HIDDEN)}, id="short aux"),
        pytest.param({"last": torch.zeros(5, HIDDEN)}, id="last"),
        pytest.param({"argmax": torch.zeros(1, dtype=torch.int32)}, id="argmax"),
    ],
)
def test_the_writer_refuses_misfits(tmp_path: Path, change: dict[str, Any]) -> None:
    writer = ShardWriter(tmp_path, META, 1000)
    with pytest.raises(ValueError, match=r"a: .* does not fit"):
        writer.add(replace(make_states("a", [False, False, True, True, True]), **change))


def test_the_writer_refuses_a_second_sequence_of_the_same_id(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, META, 1000)
    writer.add(make_states("a", [True, True]))
    with pytest.raises(ValueError, match="a was added before"):
        writer.add(make_states("a", [True, True]))


def test_a_manifest_is_read_without_torch(store: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from eyas.shards import HiddenStore;"
        "assert len(HiddenStore(Path(sys.argv[1]))) == 4; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(store)], check=False).returncode == 0
