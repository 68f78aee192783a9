"""Generated tokens against what the target predicts; sampled ones: test_sampled_agreement.py."""

from __future__ import annotations

import json

import pytest
import torch

from eyas.errors import GateError
from eyas.extract.agreement import Agreement, tally_of
from eyas.extract.predictions import Predictions
from eyas.extract.rules import ODD_NATS, Rules
from eyas.extract.tally import Suspect, Tally
from eyas.sampling import GREEDY, Sampling

COOL = Sampling("vllm", 0.7, 1.0, 0)


def rules(sampling: Sampling = GREEDY, min_agreement: float = 1.0, dtype: str = "float32") -> Rules:
    return Rules(sampling, dtype, min_agreement, max_sampling_z=6.0)


def said(following: torch.Tensor, margins: list[float], size: float = 10.0) -> Predictions:
    """Predictions that differ from the tokens where the margin is not 0."""
    margin = torch.tensor(margins)
    return Predictions(following + (margin > 0).long(), torch.full_like(margin, size), margin)


def add(agreement: Agreement, dataset: str, margins: list[float], name: str = "set:1") -> None:
    following = torch.arange(100, 100 + len(margins))
    agreement.add(name, dataset, torch.arange(len(margins)), following, said(following, margins))


def test_at_the_limit_passes() -> None:
    agreement = Agreement(rules(min_agreement=0.98), {"a": 100})
    add(agreement, "a", [0.0] * 8 + [1.0, 2.0])
    agreement.check()


def test_it_stops_when_nothing_can_save_it() -> None:
    """3 of the first 10 are wrong, but 97 of 100 could still be right: too few already."""
    agreement = Agreement(rules(min_agreement=0.98), {"a": 100, "b": 10})
    add(agreement, "b", [0.0] * 10)
    add(agreement, "a", [0.5, 0.0, 0.0, 3.5, 0.0, 0.0, 0.0, 2.0, 0.0, 0.0])
    with pytest.raises(GateError, match=r"3 of 10 generated tokens of a .* margin of 2 on average") as caught:
        agreement.check()
    assert "Worst: set:1 position 4: token 103, argmax 104, margin 3.5; set:1 position 8" in caught.value.what
    assert caught.value.where == "dataset a"


def test_one_dataset_does_not_hide_another() -> None:
    agreement = Agreement(rules(min_agreement=0.9), {"large": 1000, "small": 4})
    add(agreement, "large", [0.0] * 1000)
    add(agreement, "small", [0.0, 1.0, 0.0, 0.0])
    with pytest.raises(GateError, match="small"):
        agreement.check()


def test_no_minimum_lets_everything_pass() -> None:
    agreement = Agreement(rules(min_agreement=0.0), {"a": 50})
    add(agreement, "a", [9.0] * 50)
    agreement.check()
    assert agreement.report("a")["agreement"] == 0.0


@pytest.mark.parametrize(
    ("dtype", "near", "far"), [("float32", 1e-4, 1e-3), ("bfloat16", 0.9, 1.5), ("float16", 0.1, 0.2)]
)
def test_near_ties_are_no_disagreement(dtype: str, near: float, far: float) -> None:
    """Logits of about 20 in each dtype: what rounding explains and what it does not."""
    following = torch.arange(4)
    agreement = Agreement(rules(dtype=dtype), {"a": 4})
    predicted = said(following, [near, 0.0, 0.0, 0.0], size=-20.0)
    agreement.add("s", "a", torch.arange(4), following, predicted)
    agreement.check()
    assert agreement.report("a") == {
        "generated_tokens": 4, "agreement": 0.75, "near_ties": 1, "odd_sequences": 0,
    }  # fmt: skip
    predicted = said(following, [far, 0.0, 0.0, 0.0], size=20.0)
    agreement.add("s", "a", torch.arange(4), following, predicted)
    with pytest.raises(GateError, match=r"1 of 8 generated tokens .*\(1 more are near-ties"):
        agreement.check()


def test_an_odd_sequence_is_named_even_where_its_dataset_may_disagree() -> None:
    """A 16-bit or quantised target: every sequence has a few disagreements, one has almost nothing else."""
    agreement = Agreement(rules(min_agreement=0.9), {"a": 2000})
    for number in range(40):
        add(agreement, "a", ([2.0] + [0.0] * 11) * 2, f"a:{number}")
    agreement.check()
    add(agreement, "a", [3.0] * 20 + [0.0] * 2, "a:40")
    with pytest.raises(GateError, match=r"1 of 41 sequences of a .*: a:40 \(20 of 22 tokens") as caught:
        agreement.check()
    assert caught.value.where == "dataset a: a:40"
    assert agreement.report("a")["odd_sequences"] == 1


@pytest.mark.parametrize(("tokens", "odd"), [(3, False), (6, False), (9, True), (40, True)])
def test_short_sequences_are_not_odd_by_chance(tokens: int, odd: bool) -> None:
    """At least 2 % of tokens may differ: 6 in a row then happen once in 1.6e10 sequences, 8 once in 4e13."""
    evidence = rules(min_agreement=1.0).evidence(Suspect("s", tokens, tokens, tokens, None))
    assert evidence == pytest.approx(tokens * 3.912, rel=1e-3)
    assert (evidence > ODD_NATS) == odd


def test_a_dataset_of_another_model_is_not_a_list_of_sequences() -> None:
    agreement = Agreement(rules(), {"a": 500})
    for number in range(4):
        add(agreement, "a", [4.0] * 30, f"a:{number}")
    with pytest.raises(GateError, match="120 of 120 generated tokens of a"):
        agreement.check()


def test_counts_of_shards_add_up() -> None:
    """In one, merged, or through the records of two shards: the same."""
    whole = Agreement(rules(), {"a": 100, "b": 100})
    merged, loaded = whole.fresh(), whole.fresh()
    for shard in range(2):
        part = whole.fresh()
        for dataset in "ab"[: shard + 1]:
            for agreement in (whole, part):
                add(agreement, dataset, [0.0, 1e-6, 1.0 + shard, 5.0] * 4, f"{dataset}:{shard}")
        merged.merge(part)
        loaded.load(json.loads(json.dumps(part.to_json())))
    assert merged.tallies == whole.tallies
    assert loaded.tallies == whole.tallies
    assert [found.margin for found in whole.tallies["a"].worst] == [5.0] * 5
    assert whole.tallies["a"].checked == 32
    assert whole.tallies["a"].near_ties == 8


def test_records_are_judged_by_the_limits_of_the_run_that_reads_them() -> None:
    """22 tokens, 14 of which are others: too many where 2 % may be, not where 40 % may be."""
    lenient = Agreement(rules(min_agreement=0.6), {"a": 2000})
    for number in range(40):
        add(lenient, "a", [0.0] * 24, f"a:{number}")
    add(lenient, "a", [3.0] * 14 + [0.0] * 8, "a:40")
    lenient.check()
    assert lenient.report("a")["odd_sequences"] == 0
    record = json.loads(json.dumps(lenient.to_json()))
    strict = Agreement(rules(min_agreement=0.98), {"a": 2000})
    strict.load(record)
    with pytest.raises(GateError, match=r"1 of 41 sequences of a .*: a:40 \(14 of 22 tokens"):
        strict.check()
    again = lenient.fresh()
    again.load(json.loads(json.dumps(strict.to_json())))
    again.check()
    assert again.tallies == lenient.tallies


def test_a_foreign_record_is_refused() -> None:
    values = {"a": Tally().to_json() | {"unknown": 1}}
    with pytest.raises(TypeError):
        Agreement(rules(), {"a": 1}).load(values)


def test_nothing_counted_is_null() -> None:
    report = Agreement(rules(COOL), {"a": 0}).report("a")
    assert (report["agreement"], report["sampling_z"], report["outside_share"]) == (None, None, None)
    assert (report["generated_tokens"], report["excess_nats"]) == (0, None)


def test_the_counts_of_a_sequence() -> None:
    following = torch.tensor([5, 6, 7])
    tally = tally_of(rules(), "s", torch.tensor([3, 4, 5]), following, said(following, [0.0, 4.0, 1e-7]))
    assert (tally.checked, tally.disagreed, tally.near_ties, tally.margins) == (3, 1, 1, 4.0)
    assert str(tally.worst[0]) == "s position 5: token 6, argmax 7, margin 4"


def test_records_are_finite() -> None:
    following = torch.tensor([5, 6])
    tally = tally_of(rules(), "s", torch.tensor([3, 4]), following, said(following, [0.0, float("inf")]))
    assert json.loads(json.dumps(tally.to_json(), allow_nan=False))["margins"] == 1e4
