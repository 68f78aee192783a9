from __future__ import annotations

import pickle
import shutil
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.errors import ArtifactError
from eyas.manifest import Manifest
from eyas.shards import (
    HiddenStore,
    SequenceStates,
    ShardWriter,
    finish_store,
    label_positions,
    sequence_bytes,
    shard_name,
    to_stored,
    write_shard,
)
from eyas.states import from_stored
from eyas.storage import STORAGE_TYPES
from tests.stores import HIDDEN, LAYERS, META, assert_equal, edit_manifest, flip, make_states, write_store


@pytest.fixture
def sequences() -> list[SequenceStates]:
    masks = [[False, False, True, True, True], [False, True], [True] * 12, [False] * 3]
    return [make_states(f"set:{number}", mask, number) for number, mask in enumerate(masks)]


@pytest.fixture
def store(sequences: list[SequenceStates], tmp_path: Path) -> Path:
    return write_store(tmp_path / "store", sequences)


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
    assert opened.weights == [1.0, 1.5, 2.0, 2.5]
    assert opened.meta == META
    assert opened.bytes == sum(path.stat().st_size for path in store.glob("shard-*"))
    for place, (ours, theirs) in enumerate(zip(opened, sequences, strict=True)):
        assert_equal(ours, theirs)
        assert torch.equal(opened.kinds(place), theirs.kinds)
    assert_equal(opened[-2], sequences[2])
    assert opened[0].loss_mask.tolist() == [False, False, True, True, True]
    opened.verify()
    for wrong in (4, -5):
        with pytest.raises(IndexError):
            opened[wrong]


@settings(max_examples=40)
@given(
    masks=st.lists(st.lists(st.booleans(), min_size=1, max_size=30), max_size=12),
    shard_bytes=st.integers(1, 6000),
    dtype=st.sampled_from(list(STORAGE_TYPES)),
    hidden_size=st.sampled_from([1, 4, 6, 64]),
)
def test_any_set_comes_back(
    masks: list[list[bool]],
    shard_bytes: int,
    dtype: str,
    hidden_size: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    meta = replace(META, dtype=dtype)
    sequences = [make_states(f"s:{place}", mask, place, hidden_size) for place, mask in enumerate(masks)]
    directory = write_store(tmp_path_factory.mktemp("store"), sequences, shard_bytes, meta)
    opened = HiddenStore(directory, mapped_bytes=1)
    opened.verify()
    for ours, theirs in zip(opened, sequences, strict=True):
        assert_equal(ours, from_stored(to_stored(theirs, meta)))
    shutil.rmtree(directory)


def test_types_of_the_states(sequences: list[SequenceStates], tmp_path: Path) -> None:
    for dtype, read in (("float32", torch.float32), ("bfloat16", torch.bfloat16), ("int8", torch.float32)):
        directory = write_store(tmp_path / dtype, sequences, meta=replace(META, dtype=dtype))
        states = HiddenStore(directory)[0]
        assert (states.aux.dtype, states.last.dtype) == (read, read)
        assert states.aux.shape == (5, LAYERS, HIDDEN)


@pytest.mark.parametrize("dtype", STORAGE_TYPES)
def test_shards_are_bounded_and_sizes_exact(tmp_path: Path, dtype: str) -> None:
    """What is planned for the disk is what is written, but for the headers."""
    sequences = [make_states(f"s:{place}", [True] * 10, place, 64) for place in range(20)]
    size = sequence_bytes(10, 9, LAYERS, 64, dtype)
    write_store(tmp_path / "s", sequences, shard_bytes=3 * size + 1, meta=replace(META, dtype=dtype))
    shards = sorted((tmp_path / "s").glob("shard-*"))
    assert len(shards) == 7  # three in each, two in the last
    headers = [8 + int.from_bytes(path.read_bytes()[:8], "little") for path in shards]
    assert [path.stat().st_size - header for path, header in zip(shards, headers, strict=True)] == [
        *[3 * size] * 6,
        2 * size,
    ]
    assert max(headers) < 3000


def test_bytes_per_token(tmp_path: Path) -> None:
    """At the default target's width: the aux states everywhere, the last one where a label needs it, 2 % beside them."""
    hidden_size, tokens, labels = 576, 0, 0
    sequences = []
    for place, (prompt, answer) in enumerate([(60, 90), (200, 40), (20, 300), (150, 0), (1, 120)]):
        sequences.append(make_states(f"s:{place}", [False] * prompt + [True] * answer, place, hidden_size))
        tokens, labels = tokens + prompt + answer, labels + max(answer - 1, 0)
    sizes = {
        dtype: HiddenStore(
            write_store(tmp_path / dtype, sequences, 1 << 20, replace(META, dtype=dtype))
        ).bytes
        for dtype in STORAGE_TYPES
    }
    share = labels / tokens
    assert sizes["bfloat16"] / tokens <= 1.02 * (3 + share) * hidden_size * 2
    assert sizes["int8"] <= 0.53 * sizes["bfloat16"]


def test_same_bytes_every_time(sequences: list[SequenceStates], store: Path, tmp_path: Path) -> None:
    again = write_store(tmp_path / "again", sequences)
    for path in store.iterdir():
        assert (again / path.name).read_bytes() == path.read_bytes()


def mapped_ranges(directory: Path) -> list[tuple[int, int]]:
    with Path("/proc/self/maps").open() as maps:
        ranges = [line.split()[0].split("-") for line in maps if str(directory) in line]
    return [(int(low, 16), int(high, 16)) for low, high in ranges]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_reading_maps_and_copies_nothing(sequences: list[SequenceStates], tmp_path: Path, dtype: str) -> None:
    directory = write_store(tmp_path / "store", sequences, meta=replace(META, dtype=dtype))
    opened = HiddenStore(directory)
    states = opened[2]
    ranges = mapped_ranges(directory)
    for name in ("token_ids", "kinds", "aux", "label_positions", "last", "argmax", "logsumexp"):
        address = getattr(states, name).data_ptr()
        assert any(low <= address < high for low, high in ranges), name
    assert opened[2].aux.data_ptr() == states.aux.data_ptr()


def test_maps_are_bounded(sequences: list[SequenceStates], store: Path) -> None:
    assert len(list(store.glob("shard-*"))) == 3
    opened = HiddenStore(store, mapped_bytes=1)
    held = opened[0]
    opened[2], opened[3]
    assert len(opened._open) == 1
    assert len(mapped_ranges(store)) == 2  # what is open, and what is held
    assert_equal(held, sequences[0])  # views outlive the closing
    del held
    assert len(mapped_ranges(store)) == 1
    everything = HiddenStore(store)
    list(everything)
    assert len(everything._open) == 3


def test_the_least_recently_used_map_is_closed(store: Path) -> None:
    sizes = [path.stat().st_size for path in sorted(store.glob("shard-*"))]
    opened = HiddenStore(store, mapped_bytes=sum(sizes) - 1)
    opened[0], opened[2], opened[0], opened[3]
    assert list(opened._open) == [0, 2]


def test_a_worker_process_opens_the_files_itself(store: Path, sequences: list[SequenceStates]) -> None:
    opened = HiddenStore(store)
    opened[0]
    assert_equal(pickle.loads(pickle.dumps(opened))[2], sequences[2])


def test_threads_may_share_a_store(store: Path, sequences: list[SequenceStates]) -> None:
    opened = HiddenStore(store, mapped_bytes=1)
    wrong: list[str] = []

    def read(start: int) -> None:
        for place in range(start, start + 200):
            states = opened[place % 4]
            if not torch.equal(states.aux, sequences[place % 4].aux):
                wrong.append(states.sequence_id)

    threads = [threading.Thread(target=read, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_an_empty_store(tmp_path: Path) -> None:
    assert len(HiddenStore(write_store(tmp_path, []))) == 0


def read_all(directory: Path) -> None:
    list(HiddenStore(directory))


def drop_last(index: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {name: column[:-1] for name, column in index.items()}


def swap_ids(index: dict[str, list[Any]]) -> dict[str, list[Any]]:
    first, second, *others = index["sequence_id"]
    return {**index, "sequence_id": [second, first, *others]}


def double_weights(index: dict[str, list[Any]]) -> dict[str, list[Any]]:
    return {**index, "weight": [2 * weight for weight in index["weight"]]}


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        pytest.param(
            lambda d: (d / "manifest.json").unlink(), "manifest.json", "missing or unfinished", id="no manifest"
        ),
        pytest.param(lambda d: (d / "manifest.json").write_text("{"), "manifest.json", "damaged", id="torn manifest"),
        pytest.param(shutil.rmtree, "manifest.json", "missing or unfinished", id="no directory"),
        pytest.param(
            lambda d: edit_manifest(d, meta=lambda meta: {**meta, "extra": 1}),
            "manifest.json", "damaged", id="unknown field",
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
        pytest.param(lambda d: (d / "x.tmp").write_bytes(b""), "x.tmp", "does not belong", id="left-over"),
    ],
)  # fmt: skip
def test_refused_when_opened(store: Path, damage: Any, name: str, message: str) -> None:
    damage(store)
    with pytest.raises(ArtifactError, match=message) as caught:
        HiddenStore(store)
    assert caught.value.where == str(store / name)
    assert f"dvc pull {store.as_posix()}" in str(caught.value.hint)


@pytest.mark.parametrize(
    ("damage", "name", "message"),
    [
        pytest.param(
            lambda d: edit_manifest(d, sequences=swap_ids),
            "shard-00000.safetensors", "name different sequences", id="sequences swapped in the index",
        ),
        pytest.param(
            lambda d: edit_manifest(d, sequences=double_weights),
            "shard-00000.safetensors", "name different sequences", id="other weights in the index",
        ),
        pytest.param(
            lambda d: edit_manifest(d, meta=lambda meta: {**meta, "source_digest": "s2"}),
            "shard-00000.safetensors", r"other settings: \['source_digest'\]", id="manifest of other sequences",
        ),
        pytest.param(
            lambda d: edit_manifest(d, meta=lambda meta: {**meta, "aux_layer_ids": [1, 3, 4]}),
            "shard-00000.safetensors", r"other settings: \['aux_layer_ids'\]", id="other layers in the manifest",
        ),
        pytest.param(lambda d: flip(d / "shard-00001.safetensors", -5),
            "shard-00001.safetensors", "set:2: the stored bytes differ", id="flipped byte"),
        pytest.param(
            lambda d: (d / "shard-00002.safetensors").write_bytes(
                b"\xff" * (d / "shard-00002.safetensors").stat().st_size
            ),
            "shard-00002.safetensors", "can't be read", id="broken header",
        ),
    ],
)  # fmt: skip
def test_refused_when_read(store: Path, damage: Any, name: str, message: str) -> None:
    damage(store)
    for refused in (read_all, lambda directory: HiddenStore(directory).verify()):
        with pytest.raises(ArtifactError, match=message if refused is read_all else None) as caught:
            refused(store)
        assert caught.value.where == str(store / name)
        assert f"dvc pull {store.as_posix()}" in str(caught.value.hint)


@settings(max_examples=150)
@given(place=st.integers(0), bit=st.integers(0, 7), dtype=st.sampled_from(list(STORAGE_TYPES)))
def test_any_flipped_bit_is_found(
    place: int, bit: int, dtype: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """In a header or in the data: by reading, or at least by verify (a space of the header may become a tab)."""
    sequences = [make_states("a", [False, True, True, True]), make_states("b", [True] * 5, 1)]
    directory = write_store(tmp_path_factory.mktemp("s"), sequences, 10**6, replace(META, dtype=dtype))
    shard = directory / shard_name(0)
    size = shard.stat().st_size
    header = 8 + int.from_bytes(shard.read_bytes()[:8], "little")
    flip(shard, place % size, bit)
    with pytest.raises(ArtifactError):
        HiddenStore(directory).verify()
    if place % size >= header:
        with pytest.raises(ArtifactError, match="differ from their checksum"):
            read_all(directory)
    shutil.rmtree(directory)


def test_checksums_can_be_left_out(store: Path) -> None:
    flip(store / "shard-00001.safetensors", -5)
    assert len(list(HiddenStore(store, checksums=False))) == 4


def test_only_what_is_read_is_checked_and_only_once(store: Path) -> None:
    flip(store / "shard-00001.safetensors", -5)
    opened = HiddenStore(store)
    opened[0], opened.kinds(2)
    read = opened[0]
    with pytest.raises(ArtifactError, match="set:2"):
        opened[2]
    read.aux[0, 0, 0] += 1  # a private map: the file stays, and a second look is not compared
    assert opened[0].aux[0, 0, 0] == read.aux[0, 0, 0]
    assert HiddenStore(store)[0].aux[0, 0, 0] != read.aux[0, 0, 0]


def test_a_shard_of_another_target_of_the_same_size(
    store: Path, sequences: list[SequenceStates], tmp_path: Path
) -> None:
    other = write_store(tmp_path / "other", sequences, meta=replace(META, target_digest="d2"))
    shutil.copyfile(other / shard_name(0), store / shard_name(0))
    with pytest.raises(ArtifactError, match=r"another target .*\['target_digest'\]") as caught:
        HiddenStore(store)[0]
    assert caught.value.where == str(store / shard_name(0))


def test_another_targets_manifest(store: Path, sequences: list[SequenceStates], tmp_path: Path) -> None:
    other = write_store(tmp_path / "other", sequences, meta=replace(META, target_digest="d2"))
    shutil.copyfile(other / "manifest.json", store / "manifest.json")
    opened = HiddenStore(store)  # every size is right
    with pytest.raises(ArtifactError, match="made from target d2"):
        opened.check_target(SimpleNamespace(name="tiny", digest="d1", aux_layer_ids=[2, 4, 5]))
    with pytest.raises(ArtifactError, match="another target") as caught:
        opened[0]
    assert caught.value.where == str(store / shard_name(0))


def test_a_shard_in_another_place(tmp_path: Path) -> None:
    twins = [make_states("a", [True] * 10), make_states("b", [True] * 10, 1)]
    directory = write_store(tmp_path / "store", twins, shard_bytes=1)
    first, second = directory / shard_name(0), directory / shard_name(1)
    assert first.stat().st_size == second.stat().st_size
    shutil.copyfile(first, second)
    with pytest.raises(ArtifactError, match="number 0 of its store") as caught:
        HiddenStore(directory)[1]
    assert caught.value.where == str(second)


def test_check_target(store: Path) -> None:
    opened = HiddenStore(store)
    opened.check_target(SimpleNamespace(name="tiny", digest="d1", aux_layer_ids=[2, 4, 5]))
    with pytest.raises(ArtifactError, match="target d1"):
        opened.check_target(SimpleNamespace(name="other", digest="d2", aux_layer_ids=[2, 4, 5]))
    with pytest.raises(ArtifactError, match=r"aux layers \[2, 4, 5\]") as caught:
        opened.check_target(SimpleNamespace(name="tiny", digest="d1", aux_layer_ids=[1, 3, 4]))
    assert caught.value.hint == "dvc repro extract"


def test_check_source(store: Path) -> None:
    opened = HiddenStore(store)
    opened.check_source("s1")
    with pytest.raises(ArtifactError, match=r"of other sequences .*s1, now s2") as caught:
        opened.check_source("s2")
    assert caught.value.hint == "dvc repro extract"


def test_an_unfinished_store_is_none(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, META, 1)
    writer.add(make_states("a", [True] * 5))
    writer.add(make_states("b", [True] * 5))
    assert list(tmp_path.glob("shard-*"))
    with pytest.raises(ArtifactError, match="unfinished"):
        HiddenStore(tmp_path)


def test_parts_make_a_store(sequences: list[SequenceStates], store: Path, tmp_path: Path) -> None:
    """Shards written in any order, and finished later, are the writer's store."""
    directory = tmp_path / "parts"
    groups = [sequences[:2], sequences[2:3], sequences[3:]]
    parts = {
        number: write_shard(directory / shard_name(number), META, number, groups[number])
        for number in (2, 0, 1)
    }
    size = finish_store(directory, META, [parts[number] for number in range(3)])
    assert size == HiddenStore(directory).bytes
    assert Manifest.read(directory) == Manifest.read(store)
    for path in store.iterdir():
        assert (directory / path.name).read_bytes() == path.read_bytes()


def test_finishing_checks_the_parts(sequences: list[SequenceStates], tmp_path: Path) -> None:
    parts = [
        write_shard(tmp_path / shard_name(number), META, number, [states])
        for number, states in enumerate(sequences)
    ]
    for wrong in (parts[1:], parts[::-1], [*parts, parts[0]]):
        with pytest.raises(ValueError, match="missing or there twice"):
            finish_store(tmp_path, META, wrong)
    with pytest.raises(ArtifactError, match="does not belong"):
        finish_store(tmp_path, META, parts[:3])
    (tmp_path / shard_name(3)).unlink()
    with pytest.raises(ArtifactError, match="is missing") as caught:
        finish_store(tmp_path, META, parts)
    assert caught.value.where == str(tmp_path / shard_name(3))
    assert not (tmp_path / "manifest.json").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param({"kinds": torch.zeros(4, dtype=torch.uint8)}, "does not fit", id="kinds"),
        pytest.param({"aux": torch.zeros(5, 2, HIDDEN)}, "does not fit", id="layers"),
        pytest.param({"aux": torch.zeros(4, LAYERS, HIDDEN)}, "does not fit", id="short aux"),
        pytest.param({"last": torch.zeros(5, HIDDEN)}, "does not fit", id="last"),
        pytest.param({"argmax": torch.zeros(1, dtype=torch.int32)}, "does not fit", id="argmax"),
        pytest.param({"weight": float("nan")}, "weight nan", id="weight"),
        pytest.param({"weight": -1.0}, "weight -1", id="negative weight"),
    ],
)
def test_the_writer_refuses_misfits(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    writer = ShardWriter(tmp_path, META, 1000)
    with pytest.raises(ValueError, match=f"a: .*{message}"):
        writer.add(replace(make_states("a", [False, False, True, True, True]), **change))


def test_the_writer_refuses_a_second_sequence_of_the_same_id(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path, META, 1000)
    writer.add(make_states("a", [True, True]))
    with pytest.raises(ValueError, match="a was added before"):
        writer.add(make_states("a", [True, True]))
