"""Each planted fault must be caught and named, and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch

from eyas.errors import GateError
from eyas.extract.backend import Backend, TransformersBackend
from eyas.extract.diagnosis import TOLERANCE, Example, compare
from eyas.extract.fixture import FixtureResult, FixtureSequence, check_fixture, check_spot, fixture_sequences
from eyas.extract.reference import Reference
from eyas.target.model import TargetHead, TargetStates, load_target
from tests.extract.spoiled import (
    Fault,
    Spoiled,
    good_backend,
    spoiled,
    swapped,
    with_aux,
    with_column,
    with_last,
)
from tests.tiny_target import profile_of, write_target

SEQUENCES = [
    FixtureSequence("s:long", list(range(100, 160))),
    FixtureSequence("s:short", [1, 50, 51, 200, 9, 12]),
    FixtureSequence("s:alike", [*range(100, 110), *range(20, 40)]),
]
LAYERS = [2, 4, 5]
"""Of the tiny target, whose N is 8."""


def check(
    good: TransformersBackend,
    head: TargetHead,
    backend: Backend,
    sequences: Sequence[FixtureSequence] = SEQUENCES,
) -> FixtureResult:
    return check_fixture(backend, head, Reference(good.reference, None), sequences)


def refused(good: TransformersBackend, head: TargetHead, backend: Backend) -> GateError:
    with pytest.raises(GateError) as caught:
        check(good, head, backend)
    return caught.value


def test_right_states_pass(backend: TransformersBackend, head: TargetHead) -> None:
    result = check(backend, head, backend)
    assert (result.sequences, result.skipped) == (3, None)
    assert result.worst is not None
    assert 0 <= result.worst < 1e-4
    assert result.report()["worst_difference"] == float(f"{result.worst:.1e}")
    assert check(backend, head, backend, SEQUENCES[:1]).sequences == 1


def test_no_sequences_are_no_comparison(backend: TransformersBackend, head: TargetHead) -> None:
    assert check(backend, head, backend, []).report() == {
        "sequences": 0, "worst_difference": None, "worst_state": None, "skipped": "there are no sequences",
    }  # fmt: skip


def of_layers(backend: TransformersBackend, layers: Sequence[int]) -> Spoiled:
    """The states of these layers under the ids LAYERS."""
    every = TransformersBackend(backend.model, range(1, 8))
    columns = [layer - 1 for layer in layers]
    return Spoiled(every, with_aux(lambda aux: aux[:, columns]), LAYERS)


@pytest.mark.parametrize("shift", [-1, 1, 2])
@pytest.mark.parametrize("column", [0, 1, 2])
def test_one_layer_off(backend: TransformersBackend, head: TargetHead, column: int, shift: int) -> None:
    said = LAYERS[column]
    layers = [*LAYERS[:column], said + shift, *LAYERS[column + 1 :]]
    what = refused(backend, head, of_layers(backend, layers)).what
    off = "one" if abs(shift) == 1 else "2"
    assert f"the aux state of layer {said} of s:long" in what
    assert f"it is that of layer {said + shift}, not {said}: off by {off}" in what
    assert what.count("it is that of") == 1


@pytest.mark.parametrize("shift", [-1, 1])
def test_all_layers_off_by_one(backend: TransformersBackend, head: TargetHead, shift: int) -> None:
    """As if the ids named the layers whose outputs they are, or the other way round."""
    what = refused(backend, head, of_layers(backend, [layer + shift for layer in LAYERS])).what
    for layer in LAYERS:
        assert f"it is that of layer {layer + shift}, not {layer}: off by one" in what


def test_layers_in_another_order(backend: TransformersBackend, head: TargetHead) -> None:
    what = refused(backend, head, of_layers(backend, [5, 4, 2])).what
    assert "it is that of layer 5, not 2: off by 3" in what
    assert "it is that of layer 2, not 5: off by 3" in what
    assert "layer 4" not in what


def test_a_zeroed_layer(backend: TransformersBackend, head: TargetHead) -> None:
    error = refused(backend, head, spoiled(backend, with_column(1, torch.zeros_like)))
    assert "aux state 1 is zero at every token" in error.what
    assert error.where == "s:long"


def test_norm_twice(backend: TransformersBackend, head: TargetHead) -> None:
    what = refused(backend, head, spoiled(backend, with_last(backend.model.model.norm))).what
    assert "the last state of s:long" in what
    assert "the final norm has been applied to it already" in what
    assert "aux" not in what


class HeadWithoutNorm(TargetHead):
    def normed(self, last: torch.Tensor) -> torch.Tensor:
        return last


class HeadWithOtherNorm(TargetHead):
    def normed(self, last: torch.Tensor) -> torch.Tensor:
        return super().normed(last) * (1 + 1 / self.norm_weight)  # scale 1 + w


@pytest.mark.parametrize("kind", [HeadWithoutNorm, HeadWithOtherNorm])
def test_missing_or_other_norm(
    backend: TransformersBackend, head: TargetHead, kind: type[TargetHead]
) -> None:
    what = refused(backend, kind(**vars(head)), backend).what
    assert "the head's final norm is missing or not the target's" in what
    assert "aux" not in what


@pytest.mark.parametrize("layer", [7, 6])
def test_last_of_another_layer(backend: TransformersBackend, head: TargetHead, layer: int) -> None:
    """The states that enter the last layer instead of those that leave it."""
    inner = of_layers(backend, [*LAYERS, layer])

    def fault(batch: list[TargetStates]) -> list[TargetStates]:
        return [TargetStates(aux=states.aux[:, :3], last=states.aux[:, 3]) for states in batch]

    what = refused(backend, head, Spoiled(inner, fault, LAYERS)).what
    off = "off by one" if layer == 7 else "off by 2"
    assert f"it is that of layer {layer}, not the output of the last layer: {off}" in what
    assert "aux" not in what


def test_swapped_sequences(backend: TransformersBackend, head: TargetHead) -> None:
    what = refused(backend, head, spoiled(backend, swapped)).what
    assert "the aux state of layer 2 of s:long" in what
    assert "it is that of sequence s:short: sequences of a batch are swapped" in what
    assert "it is that of sequence s:long: sequences of a batch are swapped" in what


def shifted(values: torch.Tensor) -> torch.Tensor:
    return values.roll(1, dims=0)


@pytest.mark.parametrize(
    ("fault", "state"),
    [
        pytest.param(with_aux(shifted), "aux state of layer 2", id="aux"),
        pytest.param(with_last(shifted), "last state", id="last"),
    ],
)
def test_rows_shifted_by_one(
    backend: TransformersBackend, head: TargetHead, fault: Fault, state: str
) -> None:
    what = refused(backend, head, spoiled(backend, fault)).what
    assert f"the {state} of s:long" in what
    assert "its rows are shifted by 1: row 1 is that of token 0" in what


def test_rows_shifted_the_other_way(backend: TransformersBackend, head: TargetHead) -> None:
    fault = with_aux(lambda aux: aux.roll(-1, dims=0))
    assert "row 0 is that of token 1" in refused(backend, head, spoiled(backend, fault)).what


def test_rows_of_another_sequence(backend: TransformersBackend, head: TargetHead) -> None:
    """The end of the short sequence comes from what lies in the batch behind it."""

    def fault(batch: list[TargetStates]) -> list[TargetStates]:
        if len(batch) == 1:
            return batch
        aux = batch[1].aux.clone()
        aux[4:] = batch[0].aux[4:6]
        return [batch[0], replace(batch[1], aux=aux), batch[2]]

    error = refused(backend, head, spoiled(backend, fault))
    assert "of s:short" in error.what
    assert "of s:long" not in error.what
    assert "its rows at tokens 4..5 are wrong, all others right" in error.what


def test_scattered_rows(backend: TransformersBackend, head: TargetHead) -> None:
    def spoil(aux: torch.Tensor) -> torch.Tensor:
        aux[[1, 3]] = aux[[3, 1]]
        return aux

    what = refused(backend, head, spoiled(backend, with_aux(spoil))).what
    assert "2 of its 60 rows are wrong, the first at token 1" in what


@dataclass(frozen=True)
class LeftPadded:
    """Pads on the left without a mask, so that padding is attended to and shifts positions."""

    inner: TransformersBackend

    name = "left"

    @property
    def aux_layer_ids(self) -> Sequence[int]:
        return self.inner.aux_layer_ids

    @property
    def versions(self) -> dict[str, str]:
        return {}

    def states(self, sequences: Sequence[Sequence[int]]) -> list[TargetStates]:
        longest = max(map(len, sequences))
        padded = [[0] * (longest - len(tokens)) + list(tokens) for tokens in sequences]
        return [
            TargetStates(aux=states.aux[-len(tokens) :], last=states.last[-len(tokens) :])
            for tokens, states in zip(sequences, self.inner.states(padded), strict=True)
        ]

    def close(self) -> None: ...


def test_padding_that_leaks(backend: TransformersBackend, head: TargetHead) -> None:
    error = refused(backend, head, LeftPadded(backend))
    assert "of s:short" in error.what
    assert "of s:long" not in error.what
    assert error.where is not None
    assert "right if computed alone" in error.where


def test_a_target_in_another_precision(tiny: Path, backend: TransformersBackend, head: TargetHead) -> None:
    lower = TransformersBackend(load_target(tiny, "bfloat16"), LAYERS)
    what = refused(backend, head, spoiled(lower, list)).what
    assert "it is right, but as of a target in another dtype or a quantised one" in what


def test_serving_kernels_may_be_less_precise(
    tiny: Path, backend: TransformersBackend, head: TargetHead, caplog: pytest.LogCaptureFixture
) -> None:
    """They are what the drafter will be served with: told and reported, no error; another layer still is one."""
    lower = spoiled(TransformersBackend(load_target(tiny, "bfloat16"), LAYERS), list)
    reference = Reference(backend.reference, None, foreign=True)
    result = check_fixture(lower, head, reference, SEQUENCES)
    assert result.worst is not None
    assert 1e-3 < result.worst < 0.3
    assert "spoiled computes with less precision than transformers: the aux state of layer 2" in caplog.text
    with pytest.raises(GateError, match=r"that of layer 3, not 2: off by one|that of no layer"):
        check_fixture(
            of_layers(TransformersBackend(load_target(tiny, "bfloat16"), LAYERS), [3, 4, 5]),
            head,
            reference,
            SEQUENCES,
        )


def test_another_target(tmp_path: Path, backend: TransformersBackend, head: TargetHead) -> None:
    other = good_backend(write_target(tmp_path / "other", seed=7))
    assert "it is that of no layer" in refused(backend, head, other).what


def test_a_neighbour_within_the_tolerance_is_still_another_layer(
    tmp_path: Path,
) -> None:
    """In deep 16-bit targets a layer changes the stream by less than rounding may."""
    folder = write_target(tmp_path / "calm", initializer_range=0.05)
    model = load_target(folder, "float32")
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.mul_(0.02)
        layer.mlp.down_proj.weight.mul_(0.02)
    calm = TransformersBackend(model.bfloat16(), LAYERS)
    head = TargetHead.read(folder, profile_of(folder), "bfloat16")
    check(calm, head, calm)
    neighbour = of_layers(calm, [2, 3, 5])
    example = Example("s", SEQUENCES[0].tokens, calm.reference(SEQUENCES[0].tokens))
    compared = compare(head, LAYERS, [example], 0, neighbour.states([example.tokens])[0])
    assert 0 < compared.differences["aux state of layer 4"] < TOLERANCE[torch.bfloat16]
    what = refused(calm, head, neighbour).what
    assert "it is that of layer 3, not 4: off by one" in what


def test_a_spot_in_the_middle_of_a_run(backend: TransformersBackend, head: TargetHead) -> None:
    reference = Reference(backend.reference, None)
    long = FixtureSequence("s:9", [number % 290 for number in range(7, 207)])
    states = backend.states([long.tokens])[0]
    worst = check_spot(head, LAYERS, reference, long, states)
    assert worst is not None
    assert worst < 1e-4
    wrong = replace(states, aux=states.aux.roll(1, dims=0))
    with pytest.raises(GateError, match=r"of s:9 .* shifted by 1"):
        check_spot(head, LAYERS, reference, long, wrong)
    assert check_spot(head, LAYERS, Reference(None, "no memory"), long, wrong) is None


def test_the_three_sequences_differ_in_length_and_share_a_beginning() -> None:
    ids = ["a", "b", "c", "d"]
    tokens = [[7], list(range(300)), list(range(1000, 1020)), list(range(2000, 2200))]
    chosen = fixture_sequences(ids, tokens)
    assert [len(each.tokens) for each in chosen] == [128, 76, 102]
    assert chosen[0] == FixtureSequence("b", list(range(128)))
    assert chosen[1].tokens[:20] == tokens[2]
    assert chosen[2].tokens[:39] == [*range(38), 2000]
    assert [each.sequence_id for each in chosen] == ["b", "c", "d after the beginning of b"]


def test_few_or_short_sequences() -> None:
    assert fixture_sequences(["a"], [[3]]) == []
    assert fixture_sequences([], []) == []
    chosen = fixture_sequences(["a"], [[3, 4, 5, 6]])
    assert [each.tokens for each in chosen] == [[3, 4, 5, 6], [3, 4], [3, 3, 4]]
