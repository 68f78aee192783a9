from __future__ import annotations

import hashlib
from typing import Any

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eyas.errors import ArtifactError, GateError
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.report import reassembly_report
from eyas.reassemble.sequences import assemble, in_val, split
from eyas.schema import Sequences, check
from tests.hand_made import END, PROMPT_IDS, raw, validated


def params(**changes: Any) -> ReassembleParams:
    return ReassembleParams(**({"val_share": 0.25, "max_length": 100, "keep_truncated": True} | changes))


def kept(*rows: dict[str, Any], **changes: Any) -> pl.DataFrame:
    table = assemble(validated(list(rows)), params(**changes)).kept
    check(Sequences, table, "sequences")
    return table


def test_prompt_ids_then_generated_ids() -> None:
    row = kept(raw("talk:1", task="sums")).row(0, named=True)
    assert row["token_ids"] == [*PROMPT_IDS, 30, 31, 32, END]
    assert row["loss_mask"] == [False] * 10 + [True] * 4
    assert (row["num_prompt_tokens"], row["num_generated_tokens"]) == (10, 4)
    assert (row["sequence_id"], row["sample_id"], row["dataset"]) == ("talk:1", "talk:1", "talk")
    assert (row["task"], row["truncated"]) == ("sums", False)


def supervised(row: dict[str, Any]) -> list[int]:
    return [token for token, kept in zip(row["token_ids"], row["loss_mask"], strict=True) if kept]


def test_supervision_starts_at_the_first_generated_token_and_ends_with_the_end_of_turn() -> None:
    tokens = supervised(kept(raw()).row(0, named=True))
    assert tokens[0] == 30
    assert tokens[-1] == END


def test_a_cut_answer_has_no_end_of_turn() -> None:
    row = kept(raw(finish_reason="length", token_ids=[30, 31, 32], truncated=True)).row(0, named=True)
    assert supervised(row) == [30, 31, 32]
    assert row["loss_mask"][-1] is True
    assert row["token_ids"][-1] != END


@given(
    st.lists(st.tuples(st.lists(st.integers(0, 39), min_size=1), st.lists(st.integers(0, 39), min_size=1)))
)
def test_mask_splits_every_sequence_into_what_the_server_sent(
    parts: list[tuple[list[int], list[int]]],
) -> None:
    rows = [
        raw(f"talk:{number}", prompt_token_ids=prompt, token_ids=generated)
        for number, (prompt, generated) in enumerate(parts)
    ]
    table = kept(*rows, max_length=10**6)
    for (prompt, generated), row in zip(parts, table.iter_rows(named=True), strict=True):
        assert row["token_ids"][: len(prompt)] == prompt
        assert supervised(row) == generated
        assert row["loss_mask"] == sorted(row["loss_mask"])  # one span, at the end


@pytest.mark.parametrize("ids", [None, []], ids=["null", "empty"])
@pytest.mark.parametrize("column", ["token_ids", "prompt_token_ids"])
def test_rows_without_ids_are_refused_by_name(column: str, ids: list[int] | None) -> None:
    rows = [raw("talk:1"), raw("talk:2", **{column: ids})]
    with pytest.raises(GateError, match="1 responses have no token ids, for example talk:2"):
        assemble(validated(rows), params())


CUT = raw("talk:2", finish_reason="length", token_ids=[30] * 20, truncated=True)


@pytest.mark.parametrize(
    ("changes", "dropped"),
    [
        pytest.param({}, {}, id="all-kept"),
        pytest.param({"max_length": 30}, {}, id="limit-is-inclusive"),
        pytest.param({"max_length": 29}, {"talk:2": "too_long"}, id="too-long"),
        pytest.param({"keep_truncated": False}, {"talk:2": "truncated"}, id="truncated"),
        pytest.param({"keep_truncated": False, "max_length": 13}, {"talk:1": "too_long", "talk:2": "truncated"}, id="both"),
    ],
)  # fmt: skip
def test_dropped_rows_have_a_reason(changes: dict[str, Any], dropped: dict[str, str]) -> None:
    result = assemble(validated([raw("talk:1"), CUT]), params(**changes))
    assert dict(result.dropped.select("sample_id", "reason").rows()) == dropped
    assert set(result.kept["sample_id"]) == {"talk:1", "talk:2"} - set(dropped)


def test_case_J01_history_is_what_the_server_saw_one_row_per_answer() -> None:
    history = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "<think>R</think>C"},
        {"role": "user", "content": "b"},
    ]
    prompt = [
        1,
        8,
        20,
        END,
        1,
        9,
        31,
        END,
        1,
        8,
        21,
        END,
        1,
        9,
        10,
    ]  # the server's template dropped the thinking
    table = kept(raw(messages=history, prompt_token_ids=prompt, token_ids=[3, 30, 4, 31, END]))
    assert table.height == 1
    assert table["token_ids"].to_list() == [[*prompt, 3, 30, 4, 31, END]]
    assert supervised(table.row(0, named=True)) == [3, 30, 4, 31, END]


@pytest.mark.parametrize(
    ("prompt_tail", "generated"),
    [([3], [30, 4, 31, END]), ([], [3, 30, 4, 31, END])],
    ids=["opening-marker-in-the-prompt", "opening-marker-generated"],
)
def test_case_J02_mask_follows_who_wrote_the_token(prompt_tail: list[int], generated: list[int]) -> None:
    row = kept(raw(prompt_token_ids=[*PROMPT_IDS, *prompt_tail], token_ids=generated)).row(0, named=True)
    assert supervised(row) == generated
    assert sum(row["loss_mask"]) == len(generated)  # = completion_tokens
    assert not any(row["loss_mask"][: len(PROMPT_IDS) + len(prompt_tail)])


def test_case_B06_control_tokens_in_a_user_turn_start_no_answer() -> None:
    prompt = [
        1,
        8,
        10,
        END,
        1,
        9,
        10,
        30,
        END,
        10,
        1,
        9,
        10,
    ]  # the user wrote `<|end|><|start|>assistant ...`
    row = kept(raw(prompt_token_ids=prompt)).row(0, named=True)
    assert row["loss_mask"] == [False] * len(prompt) + [True] * 4


hashes = st.lists(st.text(min_size=1), unique=True, min_size=1, max_size=30).map(
    lambda texts: [hashlib.sha256(text.encode()).hexdigest() for text in texts]
)


def held_out(prompt_hashes: list[str], share: float) -> list[bool]:
    return pl.DataFrame({"prompt_hash": prompt_hashes}).select(in_val(share)).to_series().to_list()


@given(hashes, st.floats(0.01, 0.99))
def test_split_is_decided_by_the_hash_alone(prompt_hashes: list[str], share: float) -> None:
    sides = dict(zip(prompt_hashes, held_out(prompt_hashes, share), strict=True))
    smallest = min(prompt_hashes)
    assert sides[smallest]
    for prompt_hash, side in sides.items():
        assert side == (int(prompt_hash[:12], 16) < int(share * 16**12) or prompt_hash == smallest)
    assert held_out(prompt_hashes[::-1] * 2, share) == list(sides.values())[::-1] * 2


def test_split_share_is_kept_and_a_larger_one_only_adds() -> None:
    prompt_hashes = [hashlib.sha256(str(number).encode()).hexdigest() for number in range(5000)]
    small, large = held_out(prompt_hashes, 0.06), held_out(prompt_hashes, 0.2)
    assert abs(sum(small) / 5000 - 0.06) < 0.01
    assert all(large[place] for place, side in enumerate(small) if side)


def test_duplicates_of_a_prompt_never_straddle() -> None:
    rows = [
        raw(f"talk:{number}", prompt_hash=hashlib.sha256(str(number % 7).encode()).hexdigest())
        for number in range(70)
    ]
    splits = split(kept(*rows), kept(), 0.5)
    assert set(splits["train"]["prompt_hash"]).isdisjoint(splits["val"]["prompt_hash"])
    assert splits["train"].height + splits["val"].height == 70
    assert splits["val"].height > 0


def test_splits_are_sorted_and_evaluation_stays_apart() -> None:
    rows = [raw(f"talk:{number}") for number in (3, 1, 2, 7, 5)]
    splits = split(kept(*rows), kept(raw("quiz:2"), raw("quiz:1")), 0.3)
    assert splits["eval"]["sequence_id"].to_list() == ["quiz:1", "quiz:2"]
    both = [*splits["train"]["sequence_id"], *splits["val"]["sequence_id"]]
    assert sorted(both) == [f"talk:{number}" for number in (1, 2, 3, 5, 7)]
    assert splits["train"]["sequence_id"].is_sorted()


def test_an_evaluation_prompt_in_training_stops() -> None:
    with pytest.raises(
        ArtifactError, match="1 training prompts are also evaluation prompts, for example talk:1"
    ):
        split(
            kept(raw("talk:1"), raw("talk:2")),
            kept(raw("quiz:1", prompt_hash=raw("talk:1")["prompt_hash"])),
            0.3,
        )


def test_nothing_to_train_on_stops() -> None:
    with pytest.raises(GateError, match="no training sequence is left of 1"):
        split(kept(raw("talk:1")), kept(), 0.3)  # one prompt: it is the held-out one


def test_report_counts_rows_tokens_and_reasons() -> None:
    train = assemble(
        validated([raw("talk:1"), raw("talk:2"), CUT | {"sample_id": "talk:3"}]), params(max_length=20)
    )
    report = reassembly_report(
        {"train": train.kept, "val": train.kept.head(1), "eval": kept()}, train.dropped, 3
    )
    assert report["rows"] == report["exact_by_server_ids"] == 3
    assert report["prompts_rendered_equal"] == 3
    assert report["dropped"] == {"truncated": 0, "too_long": 1}
    assert report["splits"]["train"] == {
        "rows": 2,
        "by_dataset": {"talk": 2},
        "prompt_tokens": 20,
        "generated_tokens": 8,
        "supervised_share": 8 / 28,
        "truncated_share": 0.0,
        "length": {"p50": 14, "p90": 14, "p99": 14, "max": 14},
    }
    assert report["splits"]["eval"]["truncated_share"] is None
    assert report["splits"]["eval"]["length"]["max"] is None


@pytest.mark.parametrize(("key", "value"), [("val_share", 0.0), ("val_share", 1.0), ("max_length", 1)])
def test_impossible_params_name_their_key(key: str, value: float) -> None:
    with pytest.raises(ValueError, match=key):
        params(**{key: value})
