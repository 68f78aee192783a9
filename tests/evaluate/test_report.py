from __future__ import annotations

import pytest

from eyas.evaluate.report import acceptance_report
from eyas.sampling import Sampling

from .examples import make_simulation


def test_report_of_hand_made_rounds() -> None:
    report = acceptance_report(make_simulation())
    entry = report["datasets"]["a"]
    by_draft_tokens = entry.pop("by_draft_tokens")
    two = {
        "drafts": 3,
        "accepted": 3,
        "acceptance": {"length": 2.0, "at_1": pytest.approx(2 / 3), "at_2": pytest.approx(1 / 3)},
        "conditional": {"at_1": pytest.approx(2 / 3), "at_2": 0.5},
        "at_most": {"length": 2.0, "at_1": pytest.approx(2 / 3), "at_2": pytest.approx(1 / 3)},
        "length_at_most": 2.0,
        "interval": {"length": None, "at_1": None, "at_2": None},  # one sequence says nothing about others
        "speedup": None,
        "break_even_cost": 0.5,
    }
    assert entry == {
        "sequences": 1,
        "generated_tokens": 7,
        **two,
        "past_end": 0,
        "misses": {"in_vocab": 1, "out_of_vocab": 1},
        "conditional_in_vocab": {"at_1": 1.0, "at_2": 0.5},
        "greedy_share": 1.0,
        "in_vocab_share": 0.5,
        "length_by_draft_tokens": {"1": 2.0, "2": 2.0},
        "by_position": {"0": {"drafts": 1, "length": 3.0}, "2": {"drafts": 2, "length": 1.5}},
        "by_context": {"0": {"drafts": 1, "length": 3.0}, "12": {"drafts": 2, "length": 1.5}},
        "by_kind": {
            "reasoning": {"drafts": 2, "length": 2.0, "judged": 2, "accepted": 2, "rate": 1.0},
            "answer": {
                "drafts": 1,
                "length": 2.0,
                "judged": 3,
                "accepted": 1,
                "rate": pytest.approx(1 / 3),
            },
        },
        "best_draft_tokens": None,
    }
    assert by_draft_tokens["2"] == two
    assert by_draft_tokens["1"] == {
        "drafts": 2,
        "accepted": 2,
        "acceptance": {"length": 2.0, "at_1": 1.0},
        "conditional": {"at_1": 1.0},
        "at_most": {"length": 2.0, "at_1": 1.0},
        "length_at_most": 2.0,
        "interval": {"length": None, "at_1": None},
        "speedup": None,
        "break_even_cost": 1.0,
    }
    assert all(type(entry[key]) is int for key in ("drafts", "accepted", "past_end"))


def test_all_datasets_together_and_what_lies_past_the_end() -> None:
    report = acceptance_report(make_simulation())
    assert list(report["datasets"]) == ["a", "b"]
    overall = report["overall"]
    assert (overall["drafts"], overall["accepted"], overall["acceptance"]["length"]) == (
        5,
        4,
        pytest.approx(1.8),
    )
    assert (overall["past_end"], overall["in_vocab_share"], overall["greedy_share"]) == (1, 0.7, 0.9)
    assert overall["at_most"] == {"length": 2.0, "at_1": 0.6, "at_2": pytest.approx(0.4)}
    assert "1 + accepted / drafts" in report["formula"]


def test_speedup_is_predicted_from_costs_alone() -> None:
    overall = acceptance_report(make_simulation(cost_per_draft_token=0.1, cost_per_round=0.05))["overall"]
    assert overall["by_draft_tokens"]["1"]["speedup"] == pytest.approx((1 + 2 / 3) / 1.15)
    assert overall["speedup"] == pytest.approx(1.8 / 1.25)
    assert overall["best_draft_tokens"] == 1


def test_the_report_says_how_answers_were_sampled() -> None:
    assert acceptance_report(make_simulation())["sampling"] == {
        "temperature": 0.0,
        "top_p": 1.0,
        "top_k": 0,
        "draft": "greedy",
        "estimate": "replay",
        "doubt": None,
    }
    sampled = acceptance_report(make_simulation(Sampling("vllm", 0.7, 0.9, 20), "probabilistic"))["sampling"]
    assert sampled == {
        "temperature": 0.7,
        "top_p": 0.9,
        "top_k": 20,
        "draft": "probabilistic",
        "estimate": "expectation",
        "doubt": None,
    }


def test_answers_that_do_not_look_greedy_are_doubted() -> None:
    simulation = make_simulation()
    odd = simulation.replay.sequences.with_columns(
        labels_greedy=simulation.replay.sequences["labels_greedy"] - 1
    )
    object.__setattr__(simulation.replay, "sequences", odd)
    doubt = acceptance_report(simulation)["sampling"]["doubt"]
    assert "70.0% of the generated tokens" in doubt
