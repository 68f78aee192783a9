from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, fields, replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eyas.errors import ArtifactError
from eyas.manifest import Manifest, SequenceIndex, ShardPart, StoreMeta, shard_name
from tests.stores import META

NAMES = st.text(min_size=1, max_size=12)
SEQUENCE = st.tuples(
    st.integers(0, 10**6), st.integers(0, 10**6), st.floats(0, 1e6, width=32), st.integers(0, 2**32 - 1)
)


@st.composite
def parts_of_a_store(draw: st.DrawFn) -> list[ShardPart]:
    sizes = draw(st.lists(st.integers(1, 4), max_size=5))
    names = iter(draw(st.lists(NAMES, min_size=sum(sizes), max_size=sum(sizes), unique=True)))
    parts = []
    for number, size in enumerate(sizes):
        rows = draw(st.lists(SEQUENCE, min_size=size, max_size=size))
        tokens, labels, weight, crc32 = (list(column) for column in zip(*rows, strict=True))
        ids = [next(names) for _ in range(size)]
        parts.append(ShardPart(number, draw(st.integers(0, 300)), "ab", ids, tokens, labels, weight, crc32))
    return parts


def laid_out(parts: list[ShardPart], directory: Path) -> Path:
    """A directory whose files have the sizes, and nothing in them."""
    directory.mkdir()
    for part in parts:
        (directory / part.name).write_bytes(b"\0" * part.bytes)
    return directory


@settings(max_examples=60)
@given(parts=parts_of_a_store())
def test_any_index_comes_back(parts: list[ShardPart], tmp_path_factory: pytest.TempPathFactory) -> None:
    directory = laid_out(parts, tmp_path_factory.mktemp("manifest") / "store")
    manifest = Manifest.of_parts(META, parts)
    manifest.write(directory)
    read = Manifest.read(directory)
    assert read == manifest
    assert [read.part(part.number) for part in parts] == parts
    assert [ShardPart.from_json(json.loads(json.dumps(part.to_json()))) for part in parts] == parts
    # rows and labels of each sequence, counted independently
    at = read.sequences
    for part in parts:
        mine = [place for place, shard in enumerate(at.shard) if shard == part.number]
        assert [at.sequence_id[place] for place in mine] == part.sequence_id
        assert [at.row[place] for place in mine] == [0, *accumulate(part.tokens)][:-1]
        assert [at.label[place] for place in mine] == [0, *accumulate(part.labels)][:-1]


def test_layout_for_readers() -> None:
    """What the documentation promises about manifest.json."""
    parts = [
        ShardPart(0, 700, "aa", ["a", "b"], [5, 2], [2, 0], [1.0, 0.5], [1, 2]),
        ShardPart(1, 300, "bb", ["c"], [4], [3], [1.0], [3]),
    ]
    values = asdict(Manifest.of_parts(META, parts))
    assert values == {
        "meta": {
            "target_digest": "d1", "target_name": "tiny", "target_revision": "r1", "source_digest": "s1",
            "dtype": "float32", "aux_layer_ids": [2, 4, 5], "backend": "transformers",
            "versions": {"torch": "2", "transformers": "5"},
            "layer_id_convention": "hf_hidden_states_index", "last_state": "pre_final_norm", "format_version": 2,
        },
        "shards": [
            {"name": "shard-00000.safetensors", "bytes": 700, "sha256": "aa", "rows": 7, "labels": 2},
            {"name": "shard-00001.safetensors", "bytes": 300, "sha256": "bb", "rows": 4, "labels": 3},
        ],
        "sequences": {
            "sequence_id": ["a", "b", "c"], "shard": [0, 0, 1],
            "row": [0, 5, 0], "tokens": [5, 2, 4], "label": [0, 2, 0], "labels": [2, 0, 3],
            "weight": [1.0, 0.5, 1.0], "crc32": [1, 2, 3],
        },
    }  # fmt: skip


PARTS = [
    ShardPart(0, 70, "aa", ["a", "b"], [5, 2], [2, 0], [1.0, 0.5], [1, 2]),
    ShardPart(1, 30, "bb", ["c", "d"], [4, 4], [3, 3], [1.0, 1.0], [3, 4]),
]


def column(name: str, *values: Any) -> dict[str, Any]:
    return {name: list(values)}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        pytest.param(column("tokens", 5, 2, 4), "columns differ", id="ragged"),
        pytest.param(column("sequence_id", "a", "b", "c", "a"), "twice", id="twice"),
        pytest.param(column("row", 1, 6, 0, 4), "damaged at a", id="rows shifted"),
        pytest.param(column("row", 0, 5, 4, 0), "damaged at c", id="rows swapped"),
        pytest.param(column("label", 0, 1, 0, 3), "damaged at b", id="label shifted"),
        pytest.param(column("shard", 0, 1, 0, 1), "damaged at b", id="interleaved"),
        pytest.param(column("shard", 0, 0, 1, 2), "damaged at d", id="no such shard"),
        pytest.param(column("shard", -1, 0, 1, 1), "damaged at a", id="negative shard"),
        pytest.param(column("tokens", 5, 2, 4, 3), "account for all rows", id="lost row"),
        pytest.param(column("labels", 2, 0, 3, 4), "account for all rows", id="one label more"),
        pytest.param(column("tokens", 5, "2", 4, 4), "damaged", id="text"),
        pytest.param(column("tokens", 5, None, 4, 4), "damaged", id="null"),
        pytest.param(
            {"row": [0, 5, 0, 4], "tokens": [5, 2, -4, 12]}, "damaged at c", id="negative tokens"
        ),
    ],
)  # fmt: skip
def test_an_index_that_contradicts_itself(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    directory = laid_out(PARTS, tmp_path / "store")
    manifest = Manifest.of_parts(META, PARTS)
    replace(manifest, sequences=SequenceIndex(**{**asdict(manifest.sequences), **change})).write(directory)
    with pytest.raises(ArtifactError, match=message) as caught:
        Manifest.read(directory)
    assert str(directory) in str(caught.value.where)
    assert "dvc pull" in str(caught.value.hint)


def test_shards_have_their_names(tmp_path: Path) -> None:
    directory = laid_out(PARTS, tmp_path / "store")
    manifest = Manifest.of_parts(META, PARTS)
    swapped = [
        replace(manifest.shards[0], name=shard_name(1)),
        replace(manifest.shards[1], name=shard_name(0)),
    ]
    replace(manifest, shards=swapped).write(directory)
    with pytest.raises(ArtifactError, match=r"shard 0 is called shard-00001\.safetensors"):
        Manifest.read(directory)


@pytest.mark.parametrize(
    "content", [b"", b"[]", b"null", b"{}", b'{"meta": 3}', b'{"meta": {"format_version": 2}}', b"\xff"]
)
def test_not_a_manifest(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "manifest.json").write_bytes(content)
    with pytest.raises(ArtifactError, match="damaged") as caught:
        Manifest.read(tmp_path)
    assert caught.value.where == str(tmp_path / "manifest.json")


def test_a_store_of_the_first_format_says_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"meta": {"format_version": 1}, "shards": [], "sequences": {}}')
    with pytest.raises(ArtifactError, match="format version 1, this program reads 2") as caught:
        Manifest.read(tmp_path)
    assert caught.value.hint == "dvc repro extract"


def test_storage_types_are_checked() -> None:
    with pytest.raises(ValueError, match="dtype: 'float16' is not one of float32, bfloat16, int8"):
        replace(META, dtype="float16")


def test_every_field_of_meta_is_in_its_spelling() -> None:
    changed: dict[str, Any] = {"dtype": "int8", "aux_layer_ids": [1], "versions": {}, "format_version": 3}
    for entry in fields(StoreMeta):
        other = replace(META, **{entry.name: changed.get(entry.name, "other")})
        assert other.canonical() != META.canonical()


def test_reading_needs_no_torch(tmp_path: Path) -> None:
    directory = laid_out(PARTS, tmp_path / "store")
    Manifest.of_parts(META, PARTS).write(directory)
    program = (
        "import sys; from pathlib import Path; from eyas.shards import HiddenStore;"
        "assert len(HiddenStore(Path(sys.argv[1]))) == 4; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program, str(directory)], check=False).returncode == 0
