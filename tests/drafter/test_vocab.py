from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eyas.drafter.vocab import VocabMap
from eyas.errors import ArtifactError


@given(st.sets(st.integers(0, 60), min_size=1, max_size=61))
def test_map_is_a_bijection(kept: set[int]) -> None:
    ids = torch.tensor(sorted(kept))
    vocab = VocabMap.of_ids(ids, 61)
    vocab.check("test")
    draft = torch.arange(len(ids))
    assert vocab.to_target(draft).tolist() == sorted(kept)
    assert vocab.to_draft(vocab.to_target(draft)).tolist() == draft.tolist()
    outside = torch.tensor(sorted(set(range(61)) - kept), dtype=torch.int64)
    assert (vocab.to_draft(outside) == -1).all()


def test_hand_made_offsets() -> None:
    vocab = VocabMap.of_ids(torch.tensor([0, 2, 5]), 6)
    assert vocab.d2t.tolist() == [0, 1, 3]
    assert vocab.t2d.tolist() == [True, False, True, False, False, True]


@pytest.mark.parametrize(
    ("d2t", "t2d"),
    [
        pytest.param([0, 2, 5], [1, 0, 1, 0, 0, 1], id="absolute ids"),
        pytest.param([0, 0, 0], [1, 0, 1, 0, 0, 1], id="all zeros"),
        pytest.param([0, 1, 3], [1, 1, 1, 0, 0, 1], id="t2d keeps another"),
    ],
)
def test_wrong_maps_are_refused(d2t: list[int], t2d: list[int]) -> None:
    with pytest.raises(ArtifactError, match="disagree"):
        VocabMap(d2t=torch.tensor(d2t), t2d=torch.tensor(t2d).bool()).check("test")
