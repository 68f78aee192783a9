from __future__ import annotations

import hashlib
import zlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from eyas.errors import ArtifactError
from eyas.shardfile import verify_shard, write_shard
from eyas.shards import SequenceStates, ShardPart, StoredStates, to_stored
from eyas.storage import STORAGE_TYPES
from tests.stores import META, flip, make_states

SEQUENCES = [make_states("a", [False, True, True]), make_states("b", [True] * 4, 1)]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "shard-00003.safetensors"


@pytest.mark.parametrize("dtype", STORAGE_TYPES)
def test_the_format_is_safetensors(path: Path, dtype: str) -> None:
    """Its library reads what is written here, and it is the sequences one after another."""
    meta = replace(META, dtype=dtype)
    write_shard(path, meta, 3, SEQUENCES)
    tensors = load_file(path)
    parts = [to_stored(states, meta).tensors for states in SEQUENCES]
    assert set(tensors) == set(parts[0])
    for name, tensor in tensors.items():
        assert torch.equal(tensor, torch.cat([part[name] for part in parts])), name
        assert tensor.data_ptr() % tensor.itemsize == 0


def test_the_part_tells_what_was_written(path: Path) -> None:
    part = write_shard(path, META, 3, SEQUENCES)
    content = path.read_bytes()
    assert (part.number, part.name, part.bytes) == (3, path.name, len(content))
    assert part.sha256 == hashlib.sha256(content).hexdigest()
    assert (part.sequence_id, part.tokens, part.labels, part.weight) == (
        ["a", "b"],
        [3, 4],
        [1, 3],
        [1.0, 1.5],
    )
    tensors = to_stored(SEQUENCES[1], META).tensors
    assert part.crc32[1] == zlib.crc32(b"".join(tensors[name].numpy().tobytes() for name in sorted(tensors)))
    assert ShardPart.from_json(part.to_json()) == part


def test_stored_sequences_give_the_same_file(path: Path) -> None:
    first = write_shard(path, META, 3, SEQUENCES)
    assert write_shard(path, META, 3, [to_stored(states, META) for states in SEQUENCES]) == first


def test_what_is_kept_of_a_sequence_holds_no_batch() -> None:
    batch = torch.randn(100, 3, 4)
    states = replace(make_states("a", [True] * 5), aux=batch[10:15])
    kept = to_stored(states, META).tensors["aux"]
    assert kept.untyped_storage().nbytes() == kept.nbytes
    assert torch.equal(kept, batch[10:15])


def test_verify_one_shard(path: Path) -> None:
    part = write_shard(path, META, 3, SEQUENCES)
    verify_shard(path, META, part)
    content = path.read_bytes()
    with pytest.raises(ArtifactError, match="another target"):
        verify_shard(path, replace(META, dtype="bfloat16"), part)
    flip(path, -1)
    with pytest.raises(ArtifactError, match="differs from its checksum"):
        verify_shard(path, META, part)
    path.write_bytes(content[:-1])
    with pytest.raises(ArtifactError, match="instead of"):
        verify_shard(path, META, part)
    path.unlink()
    with pytest.raises(ArtifactError, match="is missing") as caught:
        verify_shard(path, META, part)
    assert caught.value.where == str(path)


def test_another_programs_safetensors(path: Path) -> None:
    from safetensors.torch import save_file

    part = write_shard(path, META, 3, SEQUENCES)
    save_file({"weights": torch.zeros(2)}, path, metadata={"eyas": "{}"})
    with pytest.raises(ArtifactError, match="no shard of hidden states"):
        verify_shard(path, META, replace(part, bytes=path.stat().st_size))


def test_what_can_not_be_one_shard(path: Path) -> None:
    wide = make_states("wide", [True] * 3, hidden_size=8)
    half = to_stored(make_states("half", [True] * 3), replace(META, dtype="bfloat16"))
    cases: list[tuple[list[SequenceStates | StoredStates], str]] = [
        ([], "no sequence"),
        ([SEQUENCES[0], SEQUENCES[0]], "one twice"),
        ([*SEQUENCES, wide], r"wide: aux is torch.float32 \[3, 3, 8\]"),
        ([*SEQUENCES, half], "half: aux"),
    ]
    for wrong, message in cases:
        with pytest.raises(ValueError, match=message):
            write_shard(path, META, 3, wrong)
    assert list(path.parent.iterdir()) == []


def test_a_state_that_is_not_finite_is_named(path: Path) -> None:
    states = replace(SEQUENCES[0], last=torch.full((1, 4), float("nan")))
    with pytest.raises(ValueError, match="a: last: a hidden state is not finite"):
        write_shard(path, replace(META, dtype="int8"), 3, [states])
