from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eyas.errors import GateError
from eyas.extract.backend import TransformersBackend
from eyas.extract.table import Sequences
from eyas.ragged import Ragged
from eyas.shards import HiddenStore
from eyas.target.model import TargetStates, load_target
from tests.extract.greedy import greedy_sequences, make_extractor
from tests.tiny_target import write_target


@pytest.fixture(scope="module")
def extracted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Sequences]:
    folder = write_target(tmp_path_factory.mktemp("t") / "tiny", tied=False)
    return folder, greedy_sequences(folder)


def with_another_last_token(sequences: Sequences, index: int) -> Sequences:
    values = sequences.tokens.values.copy()
    last = sequences.tokens.offsets[index + 1] - 1
    values[last] = (values[last] + 1) % 290
    return replace(sequences, tokens=Ragged(values, sequences.tokens.offsets))


@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_the_store_holds_what_the_model_computes(kind: str, tmp_path: Path) -> None:
    """Against the whole model, one sequence at a time, positions counted by hand."""
    folder = write_target(tmp_path / "target", kind)
    sequences = greedy_sequences(folder)
    result = make_extractor(folder).extract("train", sequences, tmp_path / "store")
    model = load_target(folder, "float32")
    store = HiddenStore(tmp_path / "store")
    assert store.sequence_ids == sequences.sequence_ids
    assert result.bytes == store.bytes
    for number, states in enumerate(store):
        ids, mask = sequences.ids(number), (sequences.kinds[number] != 0).tolist()
        output = model(input_ids=torch.tensor([ids]), output_hidden_states=True)
        positions = [q for q in range(len(ids) - 1) if mask[q] and mask[q + 1]]
        logits = output.logits[0, positions]
        assert states.token_ids.tolist() == ids
        assert states.kinds.tolist() == sequences.kinds[number].tolist()
        assert states.loss_mask.tolist() == mask
        assert states.label_positions.tolist() == positions
        assert states.argmax.tolist() == [ids[q + 1] for q in positions]  # greedy answers
        for column, layer in enumerate(store.meta.aux_layer_ids):
            torch.testing.assert_close(
                states.aux[:, column], output.hidden_states[layer][0], rtol=1e-4, atol=1e-4
            )
        normed = model.model.norm(states.last)
        torch.testing.assert_close(normed, output.hidden_states[-1][0, positions], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(states.logsumexp, logits.logsumexp(-1), rtol=1e-4, atol=1e-4)


def test_counts(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    folder, sequences = extracted
    report = make_extractor(folder).extract("train", sequences, tmp_path).report()
    assert report["datasets"]["a"] == {
        "sequences": 3,
        "tokens": 5 + 7 + 3 + 1 + 20 + 11,
        "labels": 6 + 0 + 10,
        "generated_tokens": 7 + 1 + 11,
        "agreement": 1.0,
        "near_ties": 0,
        "odd_sequences": 0,
    }
    assert report["datasets"]["b"]["generated_tokens"] == 30 + 16 + 25
    assert list(report["largest_value"]) == ["2", "4", "5", "last"]
    assert report["storage_error"] == {name: {"mean": 0.0, "worst": 0.0} for name in ("2", "4", "5", "last")}


def test_batches_and_shards_decide_nothing(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    """One sequence per batch and per shard, or all in one: the same states, in the order of the table."""
    folder, sequences = extracted
    make_extractor(folder, batch_tokens=1, shard_bytes=1).extract("a", sequences, tmp_path / "a")
    make_extractor(folder, batch_tokens=10000).extract("b", sequences, tmp_path / "b")
    assert len(list((tmp_path / "a").glob("shard-*"))) == 6
    assert len(list((tmp_path / "b").glob("shard-*"))) == 1
    for ours, theirs in zip(HiddenStore(tmp_path / "a"), HiddenStore(tmp_path / "b"), strict=True):
        assert ours.sequence_id == theirs.sequence_id
        assert torch.equal(ours.argmax, theirs.argmax)
        torch.testing.assert_close(ours.aux, theirs.aux, rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(ours.last, theirs.last, rtol=1e-4, atol=1e-4)


def test_the_same_bytes_every_time(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    folder, sequences = extracted
    for name in ("a", "b"):
        make_extractor(folder, shard_bytes=20000).extract(name, sequences, tmp_path / name)
    assert len(list((tmp_path / "a").iterdir())) > 2
    for path in (tmp_path / "a").iterdir():
        assert path.read_bytes() == (tmp_path / "b" / path.name).read_bytes()


def test_bfloat16_is_rounded_float32(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    folder, sequences = extracted
    make_extractor(folder).extract("a", sequences, tmp_path / "a")
    make_extractor(folder, dtype="bfloat16").extract("b", sequences, tmp_path / "b")
    for wide, narrow in zip(HiddenStore(tmp_path / "a"), HiddenStore(tmp_path / "b"), strict=True):
        assert torch.equal(narrow.aux, wide.aux.bfloat16())
        assert torch.equal(narrow.last, wide.last.bfloat16())
        assert torch.equal(narrow.logsumexp, wide.logsumexp)


def test_the_planned_size_is_the_written_size(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    folder, sequences = extracted
    extractor = make_extractor(folder)
    assert 0 <= extractor.extract("a", sequences, tmp_path).bytes - sum(extractor.sizes(sequences)) < 2000


def test_an_answer_of_another_model_stops(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    folder, sequences = extracted
    changed = with_another_last_token(sequences, 3)
    with pytest.raises(GateError, match=r"1 of 71 generated tokens of b .* b:3 position 24"):
        make_extractor(folder).extract("a", changed, tmp_path / "a")
    assert not (tmp_path / "a" / "manifest.json").exists()
    lenient = make_extractor(folder, min_agreement=0.98).extract("a", changed, tmp_path / "b")
    assert lenient.datasets["b"]["agreement"] == 70 / 71


@dataclass(frozen=True)
class Spoiled:
    """A backend whose last states are spoiled."""

    inner: TransformersBackend
    spoil: Callable[[TransformersBackend, list[torch.Tensor]], list[torch.Tensor]]

    name = "transformers"

    @property
    def versions(self) -> dict[str, str]:
        return self.inner.versions

    @property
    def aux_layer_ids(self) -> Sequence[int]:
        return self.inner.aux_layer_ids

    def states(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        right = self.inner.states(sequences)
        last = self.spoil(self.inner, [states.last for states in right])
        return [replace(states, last=spoiled) for states, spoiled in zip(right, last, strict=True)]

    def close(self) -> None:
        self.inner.close()


def shifted(backend: TransformersBackend, last: list[torch.Tensor]) -> list[torch.Tensor]:
    return [states.roll(1, dims=0) for states in last]


def normed_twice(backend: TransformersBackend, last: list[torch.Tensor]) -> list[torch.Tensor]:
    return [backend.model.model.norm(states) for states in last]


def of_another_token(backend: TransformersBackend, last: list[torch.Tensor]) -> list[torch.Tensor]:
    return [states.flip(0) for states in last]


@pytest.mark.parametrize("spoil", [shifted, normed_twice, of_another_token])
def test_wrong_states_stop(extracted: tuple[Path, Sequences], tmp_path: Path, spoil: Any) -> None:
    folder, sequences = extracted
    extractor = make_extractor(folder)
    assert isinstance(extractor.backend, TransformersBackend)
    spoiled = replace(extractor, backend=Spoiled(extractor.backend, spoil))
    with pytest.raises(GateError):
        spoiled.extract("a", sequences, tmp_path / "store")
    assert not (tmp_path / "store" / "manifest.json").exists()


def test_logits_that_are_not_finite_stop(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    """No comparison with NaN is true, so they would pass for near-ties."""
    folder, sequences = extracted
    extractor = make_extractor(folder)
    broken = replace(extractor.head, lm_head=torch.full_like(extractor.head.lm_head, torch.nan))
    with pytest.raises(GateError, match="logits are not finite"):
        replace(extractor, head=broken).extract("train", sequences, tmp_path / "store")


def test_sequences_without_an_answer(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    sequences = Sequences.of(["p"], ["x"], [[5, 6, 7]], [[0] * 3])
    result = make_extractor(extracted[0]).extract("a", sequences, tmp_path)
    assert result.datasets["x"]["agreement"] is None
    assert HiddenStore(tmp_path).label_counts == [0]


def test_an_empty_split(extracted: tuple[Path, Sequences], tmp_path: Path) -> None:
    result = make_extractor(extracted[0]).extract("val", Sequences.of([], [], [], []), tmp_path)
    assert result.datasets == {}
    assert len(HiddenStore(tmp_path)) == 0
