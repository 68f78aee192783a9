"""Chunked attention against one plain softmax over all visible keys, and its memory."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from eyas.drafter import flex, plan
from eyas.drafter.attention import Prefix, attend
from eyas.drafter.batch import pack
from eyas.drafter.loss import DraftTargets, score_steps
from eyas.drafter.objective import Objective
from eyas.drafter.plan import plan_chunks

from .conftest import HIDDEN, VOCAB, make_drafter, make_states, make_vocab, target_head


def plain(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    anchors: list[list[int]],
    lengths: list[int],
    own: list[Tensor],
) -> Tensor:
    """One query at a time. keys, values [N, K, D]; own: J keys, then J values, [P, K, D]."""
    group = queries.shape[1] // keys.shape[1]
    count = len(own) // 2
    rows, start, row = [], 0, 0
    for places, length in zip(anchors, lengths, strict=True):
        for place in places:
            for head in range(queries.shape[1]):
                kv = head // group
                seen = [keys[start : start + place + 1, kv], *(k[row : row + 1, kv] for k in own[:count])]
                read = [values[start : start + place + 1, kv], *(v[row : row + 1, kv] for v in own[count:])]
                weights = torch.softmax(torch.cat(seen) @ queries[row, head] / queries.shape[-1] ** 0.5, 0)
                rows.append(weights @ torch.cat(read))
            row += 1
        start += length
    return torch.stack(rows).view(len(queries), -1)


@st.composite
def layouts(draw: st.DrawFn) -> list[list[int]]:
    """Anchors of one to three sequences, ascending, with gaps."""
    return draw(
        st.lists(st.sets(st.integers(0, 12), min_size=1, max_size=9).map(sorted), min_size=1, max_size=3)
    )


@settings(max_examples=40)
@given(
    anchors=layouts(),
    steps=st.integers(0, 6),
    group=st.sampled_from([1, 2, 3]),
    cells=st.sampled_from([1, 7, 10_000]),
    smallest=st.sampled_from([1, 3]),
    seed=st.integers(0, 99),
)
def test_values_and_gradients_equal_one_plain_softmax(anchors, steps, group, cells, smallest, seed) -> None:
    generator = torch.Generator().manual_seed(seed)
    lengths = [places[-1] + 1 for places in anchors]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(plan, "CHUNK_CELLS", cells)
        patch.setattr(plan, "MIN_CHUNK", smallest)
        chunks = plan_chunks(anchors, starts)
    queries_count = sum(len(places) for places in anchors)

    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    queries, keys, values = (
        random(queries_count, 2 * group, 5),
        random(sum(lengths), 2, 5),
        random(sum(lengths), 2, 5),
    )
    own = [random(queries_count, 2, 5) for _ in range(2 * steps)]
    slots = torch.tensor([start + p for start, places in zip(starts, anchors, strict=True) for p in places])
    prefix = Prefix(keys.transpose(0, 1).contiguous(), values.transpose(0, 1).contiguous(), slots, chunks)
    got = attend(queries, prefix, own[:steps], own[steps:])
    want = plain(queries, keys, values, anchors, lengths, own)
    torch.testing.assert_close(got, want, atol=1e-12, rtol=1e-10)
    upstream = torch.randn(got.shape, generator=generator, dtype=torch.float64)
    inputs = [queries, keys, values, *own]
    torch.testing.assert_close(
        torch.autograd.grad(got, inputs, upstream),
        torch.autograd.grad(want, inputs, upstream),
        atol=1e-11,
        rtol=1e-9,
    )


@pytest.mark.filterwarnings("ignore::UserWarning")  # of torch, about itself
@pytest.mark.parametrize(
    ("anchors", "steps", "group", "block"),
    [
        ([[0]], 0, 1, 128),
        ([[3, 4, 5, 6], [0, 1], [2, 5, 11]], 2, 3, 2),
        ([list(range(7, 20)), list(range(3, 9))], 1, 2, 4),
    ],
    ids=["one", "gaps", "blocks"],
)
def test_the_fused_kernel_is_asked_for_the_same(
    anchors: list[list[int]], steps: int, group: int, block: int
) -> None:
    """FlexAttention's plain operations, which are what its kernel computes; its own check forbids them gradients."""
    generator = torch.Generator().manual_seed(3)
    lengths = [places[-1] + 1 for places in anchors]
    starts = [sum(lengths[:i]) for i in range(len(lengths))]
    pairs = [(start, start + p) for start, places in zip(starts, anchors, strict=True) for p in places]
    first, slots = torch.tensor(pairs).T
    count = len(pairs)
    shapes = [
        (count, 2 * group, 16),
        (2, sum(lengths), 16),
        (2, sum(lengths), 16),
        *[(count, 2, 16)] * 2 * steps,
    ]
    inputs = [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes
    ]
    queries, keys, values, *own = inputs
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.flex_attention._validate_device", lambda *_: None)
        patch.setattr(flex, "BLOCK", block)
        blocks = flex.visible_blocks(first, slots, sum(lengths))
        prefix = Prefix(keys, values, slots, plan_chunks(anchors, starts))
        chunked = attend(queries, prefix, own[:steps], own[steps:])
        fused = attend(queries, replace(prefix, blocks=blocks), own[:steps], own[steps:])
        torch.testing.assert_close(fused, chunked, atol=1e-10, rtol=1e-8)
        upstream = torch.randn(fused.shape, generator=generator, dtype=torch.float64)
        torch.testing.assert_close(
            torch.autograd.grad(fused, inputs, upstream),
            torch.autograd.grad(chunked, inputs, upstream),
            atol=1e-10,
            rtol=1e-8,
        )
    seen = blocks.to_dense()[0, 0]  # blocks that the kernel visits at all
    for row, (start, stop) in enumerate(pairs):
        for slot in range(start, stop + 1):
            assert seen[row // block, slot // block] == 1
    assert seen.shape == (-(-count // block), -(-sum(lengths) // block))


def test_scores_far_apart_do_not_overflow() -> None:
    anchors = torch.arange(4)
    keys = torch.randn(1, 4, 4) * 1e3
    prefix = Prefix(keys, torch.randn(1, 4, 4), anchors, plan_chunks([[0, 1, 2, 3]], [0]))
    queries = (torch.randn(4, 1, 4) * 1e3).requires_grad_()
    attended = attend(queries, prefix, [torch.randn(4, 1, 4) * 1e3], [torch.randn(4, 1, 4)])
    attended.sum().backward()
    assert torch.isfinite(attended).all()
    assert queries.grad is not None
    assert torch.isfinite(queries.grad).all()


class LargestTensor(TorchDispatchMode):
    """Elements of the largest tensor that any operation returns, backward pass included."""

    elements: int

    def __init__(self) -> None:
        super().__init__()
        self.elements = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in result if isinstance(result, (tuple, list)) else [result]:
            if isinstance(tensor, Tensor):
                self.elements = max(self.elements, tensor.numel())
        return result


def largest_tensor(length: int) -> int:
    """Of a training step over one sequence of `length` tokens, half of it prompt."""
    drafter, vocab = make_drafter(max_position_embeddings=length).float(), make_vocab()
    states = make_states(length // 2, length - length // 2)
    batch = pack([states], 3)
    targets = DraftTargets.of(
        batch.last.float(), target_head()[vocab.draft_ids].float(), batch.argmax, vocab, batch.logsumexp
    )
    embedding = torch.randn(VOCAB, HIDDEN)
    with LargestTensor() as largest:
        scores = score_steps(drafter, batch, targets, embedding, Objective(), measure=True)
        torch.stack([score.loss_sum for score in scores]).sum().backward()
    return int(largest.elements)


def test_no_tensor_grows_with_the_square_of_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan, "CHUNK_CELLS", 1024)  # as if the lengths were those of long sequences
    short, long = largest_tensor(512), largest_tensor(2048)
    assert long < 1000 * 1024  # anchors x slots, without heads
    assert long <= 4.2 * short


def test_chunks_cover_every_anchor_once_within_the_budget() -> None:
    anchors = [list(range(5, 3000)), [0], list(range(40, 90))]
    chunks = plan_chunks(anchors, [0, 3000, 3001])
    assert [chunk.anchor_start for chunk in chunks[1:]] == [chunk.anchor_stop for chunk in chunks[:-1]]
    assert chunks[-1].anchor_stop == sum(len(own) for own in anchors)
    for chunk in chunks:
        count, slots = chunk.anchor_stop - chunk.anchor_start, chunk.slot_stop - chunk.slot_start
        assert count <= plan.MAX_CHUNK
        assert count * slots <= plan.CHUNK_CELLS or count <= plan.MIN_CHUNK
        assert chunk.slot_start < chunk.slot_full <= chunk.slot_stop
