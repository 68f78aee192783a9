"""Against positions counted by hand."""

from __future__ import annotations

import torch

from eyas.extract.labels import Columns, predict_generated, sequence_states
from eyas.extract.table import Sequences
from eyas.sampling import GREEDY
from eyas.target.model import TargetHead, TargetStates

VOCAB, HIDDEN = 7, 7
TOKENS, KINDS = [3, 1, 4, 1, 5, 2], [0, 0, 3, 3, 0, 2]
"""Generated: 4 and 1 at positions 2 and 3, then 2 at 5. Position 2 alone has a generated token before and at it."""


def head() -> TargetHead:
    """Its logits are the last state itself."""
    eye = torch.eye(VOCAB, HIDDEN)

    class Plain(TargetHead):
        def normed(self, last: torch.Tensor) -> torch.Tensor:
            return last

    return Plain(embedding=eye, norm_weight=torch.ones(HIDDEN), lm_head=eye, eps=0.0)


def example() -> tuple[Sequences, TargetStates]:
    sequences = Sequences.of(["a:0"], ["a"], [TOKENS], [KINDS], [0.5])
    random = torch.Generator().manual_seed(0)
    last = torch.randn(len(TOKENS), HIDDEN, generator=random)
    last[1, 4] = 9.0  # says 4, which follows
    last[2, 1] = 9.0  # says 1, which follows
    last[4, 6] = 9.0  # says 6, and 2 follows
    return sequences, TargetStates(aux=torch.randn(len(TOKENS), 2, HIDDEN, generator=random), last=last)


def test_what_is_generated_and_what_predicts_it() -> None:
    sequences, states = example()
    columns = Columns.of(sequences, 0)
    assert columns.generated.before.tolist() == [1, 2, 4]
    assert columns.generated.following.tolist() == [4, 1, 2]
    (predicted,) = predict_generated(head(), [states], [columns], GREEDY)
    assert predicted.argmax.tolist() == [4, 1, 6]
    assert (predicted.margin > 0).tolist() == [False, False, True]


def test_what_is_kept() -> None:
    sequences, states = example()
    columns = Columns.of(sequences, 0)
    (predicted,) = predict_generated(head(), [states], [columns], GREEDY)
    kept = sequence_states(sequences, 0, columns, states, predicted)
    assert kept.sequence_id == "a:0"
    assert kept.weight == 0.5
    assert kept.token_ids.tolist() == TOKENS
    assert kept.kinds.tolist() == KINDS
    assert kept.aux is states.aux
    assert kept.label_positions.tolist() == [2]
    assert torch.equal(kept.last, states.last[[2]])
    assert kept.argmax.tolist() == [1]
    torch.testing.assert_close(kept.logsumexp, states.last[[2]].exp().sum(-1).log())


def test_a_batch_is_cut_into_its_sequences() -> None:
    sequences, states = example()
    nothing = Sequences.of(["b:0"], ["b"], [[1, 2]], [[0, 0]])
    columns = [Columns.of(nothing, 0), Columns.of(sequences, 0)]
    plain = TargetStates(aux=states.aux[:2], last=states.last[:2])
    none, some = predict_generated(head(), [plain, states], columns, GREEDY)
    assert len(none.argmax) == 0
    assert some.argmax.tolist() == [4, 1, 6]
