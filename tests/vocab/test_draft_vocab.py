from __future__ import annotations

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import ArtifactError, ConfigError
from eyas.vocab.draft_vocab import (
    DraftVocab,
    build_draft_vocab,
    check_maps,
    required_ids,
    supervised_counts,
    total_counts,
)
from eyas.vocab.params import VocabParams
from eyas.vocab.report import vocab_report
from tests.hand_made import END, END_THINK, THINK, THINKING, profile


def counts(**by_dataset: dict[int, int]) -> pl.DataFrame:
    rows = [(name, token, count) for name, tokens in by_dataset.items() for token, count in tokens.items()]
    return pl.DataFrame(
        rows, schema={"dataset": pl.String, "token": pl.Int32, "count": pl.Int64}, orient="row"
    )


def test_only_supervised_tokens_are_counted() -> None:
    sequences = pl.DataFrame(
        {
            "dataset": ["b", "a"],
            "token_ids": [[5, 5, 6, 7], [5, 6, 6, 2]],
            "kinds": [[0, 0, 3, 3], [0, 3, 3, 5]],
        },
        schema_overrides={"token_ids": pl.List(pl.Int32), "kinds": pl.List(pl.UInt8)},
    )
    table = supervised_counts(sequences)
    assert table.rows() == [("a", 2, 1), ("a", 6, 2), ("b", 6, 1), ("b", 7, 1)]
    assert total_counts(table).rows() == [(6, 3), (2, 1), (7, 1)]


def test_most_frequent_tokens_are_kept_and_equal_ones_by_id() -> None:
    train = total_counts(counts(a={30: 5, 20: 2, 25: 2, 35: 1}))
    vocab = build_draft_vocab(train, [END], size=4, target_vocab_size=40)
    assert vocab.draft_ids.tolist() == [END, 20, 25, 30]
    assert vocab.d2t.tolist() == [2, 19, 23, 27]
    assert vocab.d2t.dtype == np.int64
    assert np.flatnonzero(vocab.t2d).tolist() == [END, 20, 25, 30]
    smaller = build_draft_vocab(train, [END], size=3, target_vocab_size=40)
    assert smaller.draft_ids.tolist() == [END, 20, 30]


def test_fewer_tokens_than_size_are_filled_with_the_lowest_ids() -> None:
    vocab = build_draft_vocab(total_counts(counts(a={1: 1, 9: 1})), [END], size=6, target_vocab_size=40)
    assert vocab.draft_ids.tolist() == [0, 1, 2, 3, 4, 9]


def test_the_whole_vocabulary_is_the_identity() -> None:
    vocab = build_draft_vocab(total_counts(counts(a={39: 1})), [END], size=40, target_vocab_size=40)
    assert vocab.d2t.tolist() == [0] * 40
    assert vocab.t2d.all()


@pytest.mark.parametrize("size", [2, 41], ids=["below-required", "above-vocabulary"])
def test_an_impossible_size_names_its_key(size: int) -> None:
    with pytest.raises(ConfigError, match=f"`vocab.draft_vocab_size`: {size} is not between 3"):
        build_draft_vocab(total_counts(counts(a={9: 1})), [END, THINK, END_THINK], size, 40)


def test_end_of_turn_think_markers_and_generated_special_ids_are_required() -> None:
    thinking = profile(think=THINKING, end_of_turn_ids=[END, 0])
    assert required_ids(thinking, total_counts(counts(a={1: 1, 30: 1}))) == {0, 1, END, THINK, END_THINK}
    assert required_ids(profile(), total_counts(counts(a={30: 1}))) == {END}


@given(
    st.dictionaries(st.integers(0, 39), st.integers(1, 100), max_size=40),
    st.sets(st.integers(0, 39), max_size=5),
    st.integers(5, 40),
)
def test_maps_are_a_bijection_between_draft_ids_and_kept_ids(
    seen: dict[int, int], required: set[int], size: int
) -> None:
    vocab = build_draft_vocab(total_counts(counts(a=seen)), required, size, target_vocab_size=40)
    check_maps(vocab.d2t, vocab.t2d, required)
    to_target = {draft: draft + int(vocab.d2t[draft]) for draft in range(size)}
    assert len(set(to_target.values())) == size
    assert [vocab.t2d[token] for token in range(40)] == [token in to_target.values() for token in range(40)]
    assert required <= set(to_target.values())
    free = [token for token in seen if token not in required]
    left_out = [seen[token] for token in free if token not in to_target.values()]
    taken = [seen[token] for token in free if token in to_target.values()]
    assert not left_out or not taken or max(left_out) <= min(taken)


GOOD = DraftVocab(np.array([2, 5, 9]), target_vocab_size=12)


@pytest.mark.parametrize(
    ("d2t", "t2d", "message"),
    [
        pytest.param(GOOD.draft_ids, GOOD.t2d, "d2t\\[i\\] \\+ i is not", id="absolute-ids"),
        pytest.param(np.zeros(3, dtype=np.int64), GOOD.t2d, "is not the ascending list", id="missing-map"),
        pytest.param(GOOD.d2t[:2], GOOD.t2d, "t2d keeps 3 ids, d2t has 2", id="sizes"),
        pytest.param(GOOD.d2t[::-1].copy(), GOOD.t2d, "non-decreasing", id="unsorted"),
        pytest.param(GOOD.d2t + 9, GOOD.t2d, "outside the target's vocabulary of 12", id="outside"),
        pytest.param(GOOD.d2t, ~GOOD.t2d, "t2d keeps 9 ids", id="inverted"),
    ],
)
def test_inconsistent_maps_are_refused(d2t: np.ndarray, t2d: np.ndarray, message: str) -> None:
    check_maps(GOOD.d2t, GOOD.t2d, [9])
    with pytest.raises(ArtifactError, match=message):
        check_maps(d2t, t2d)


def test_a_missing_required_id_is_refused() -> None:
    with pytest.raises(ArtifactError, match="an id that must be kept is not"):
        check_maps(GOOD.d2t, GOOD.t2d, [2, 3])


def test_coverage_is_a_share_of_tokens_not_of_types() -> None:
    assert GOOD.coverage(counts(a={2: 3, 5: 3, 7: 2})) == 0.75
    assert GOOD.coverage(counts()) is None


def test_report_has_coverage_by_split_and_dataset() -> None:
    report = vocab_report(
        GOOD, {"train": counts(a={2: 1, 5: 1}, b={2: 1, 3: 1}), "val": counts(), "eval": counts(c={3: 4})}
    )
    assert report == {
        "size": 3,
        "target_vocab_size": 12,
        "distinct_train_tokens": 3,
        "kept_but_not_in_train": 1,
        "coverage": {"train": 0.75, "val": None, "eval": 0.0},
        "coverage_by_dataset": {"train": {"a": 1.0, "b": 0.5}, "val": {}, "eval": {"c": 0.0}},
    }


def test_size_must_be_positive() -> None:
    with pytest.raises(ValueError, match="size: 0"):
        VocabParams(draft_vocab_size=0)
