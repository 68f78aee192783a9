from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine.compare import Difference
from eyas.engine.report import engine_report
from eyas.engine.runs import Runs
from eyas.engine.speed import speed_report
from eyas.engine.summary import summary

from .examples import simulated
from .measured import ACCEPTED, LEVELS, SAMPLED, measurement, runs


def report_of(found: Runs, dtype: str = "float32", **entries: tuple[int, list[int]]) -> dict[str, Any]:
    expected = simulated(**(entries or {"a": (1000, [490, 200]), "b": (400, [90, 20])}))
    return engine_report(found, LEVELS, expected, dtype, "greedy")


def test_report_of_known_measurements() -> None:
    report = report_of(runs(measurement(None, 2.0), measurement(ACCEPTED)))
    same: dict[str, Any] = {
        "answers": 5,
        "identical": 5,
        "near_ties": 0,
        "real_differences": 0,
        "first_difference": None,
        "differences": [],
    }
    assert set(report["answers"]) == {
        "with_drafter_as_without",
        "without_drafter_as_stored",
        "with_drafter_as_stored",
    }
    assert all(each == same for each in report["answers"].values())
    entry = report["datasets"]["a"]
    assert {
        key: entry[key] for key in ("drafts", "accepted", "accepted_at", "acceptance", "conditional")
    } == {
        "drafts": 1000,
        "accepted": 700,
        "accepted_at": [500, 200],
        "acceptance": {"length": 1.7, "at_1": 0.5, "at_2": 0.2},
        "conditional": {"at_1": 0.5, "at_2": 0.4},
    }
    assert entry["difference"] == {"length": 0.00592, "at_1": 0.02041, "at_2": 0.0}
    assert entry["simulated"]["length"] == 1.69
    assert report["datasets"]["b"]["difference"]["at_1"] is None  # too few drafts
    assert report["overall"]["drafts"] == 1400
    assert (report["version"], report["dtype"], report["draft_tokens"]) == ("0.32.0", "float32", 2)
    assert report["sampling"] == {"temperature": 0.0, "top_p": 1.0, "top_k": 0, "draft": "greedy"}
    assert report["by_draft_tokens"]["2"]["datasets"] == report["datasets"]


def test_each_number_of_draft_tokens_has_its_own_entries() -> None:
    three = {"a": AcceptanceCounts(900, [500, 200, 50]), "b": AcceptanceCounts(390, [100, 20, 2])}
    found = runs(measurement(None), measurement(ACCEPTED), k3=measurement(three, b_1=[1, 2, 77, 4]))
    expected = simulated(a=(1000, [490, 200]), b=(400, [90, 20]))
    for entry in (*expected["datasets"].values(), expected["overall"]):
        entry["by_draft_tokens"]["3"] = simulated(a=(900, [500, 210, 49]))["overall"]["by_draft_tokens"]["3"]
    report = engine_report(found, LEVELS, expected, "float32", "greedy")
    assert sorted(report["by_draft_tokens"]) == ["2", "3"]
    entry = report["by_draft_tokens"]["3"]["datasets"]["a"]
    assert entry["acceptance"]["at_3"] == pytest.approx(50 / 900)
    assert entry["difference"]["at_2"] == -0.04762
    assert report["by_draft_tokens"]["3"]["answers"]["identical"] == 4
    assert report["by_draft_tokens"]["2"]["answers"]["identical"] == 5


def test_what_an_external_server_does_not_show_is_null() -> None:
    found = runs(measurement(None, 2.0), None, external=True)
    report = report_of(found)
    assert report["server"] == "external"
    assert report["answers"]["with_drafter_as_without"] is None
    assert report["answers"]["without_drafter_as_stored"]["identical"] == 5
    assert report["draft_tokens"] is None
    assert report["by_draft_tokens"] == {}
    assert report["overall"]["drafts"] is None
    assert report["overall"]["acceptance"] == {"length": None, "at_1": None, "at_2": None}
    assert set(report["overall"]["difference"].values()) == {None}
    speed = speed_report(found, LEVELS)
    assert speed["best_draft_tokens"] == {"8": None, "1": None}
    level = speed["by_concurrency"]["8"]
    assert (level["with_drafter"], level["speedup"], level["speedup_by_round"]) == (None, None, None)
    assert level["without_drafter"]["tokens_per_s"] == 3.25
    assert summary(report, speed)[1].split() == ["a", "1.690", "-", "-", "-"]


def test_a_tree_of_drafts_is_not_compared() -> None:
    report = report_of(replace(runs(measurement(None), measurement(ACCEPTED), external=True), chain=False))
    assert report["overall"]["acceptance"]["length"] == pytest.approx(1 + 820 / 1400)
    assert set(report["overall"]["difference"].values()) == {None}
    assert report["overall"]["simulated"]["length"] is None


def test_a_difference_is_shown_with_its_margin() -> None:
    parted = Difference("b:1", 2, 3, 77, (1, 2))
    found = runs(measurement(None), measurement(ACCEPTED, b_1=[1, 2, 77, 4]), margins={parted: 0.0004})
    answers = report_of(found)["answers"]["with_drafter_as_without"]
    shown = {
        "sequence_id": "b:1",
        "position": 2,
        "expected": 3,
        "found": 77,
        "margin": 0.0004,
        "near_tie": True,
    }
    assert answers == {
        "answers": 5,
        "identical": 4,
        "near_ties": 1,
        "real_differences": 0,
        "first_difference": shown,
        "differences": [shown],
    }
    unexplained = report_of(runs(measurement(None), measurement(ACCEPTED, b_1=[1, 2, 77, 4])))
    first = unexplained["answers"]["with_drafter_as_without"]["first_difference"]
    assert (first["margin"], first["near_tie"]) == (None, None)


def test_sampled_answers_are_not_compared() -> None:
    report = report_of(runs(measurement(None), measurement(ACCEPTED, a_0=[1]), asking=SAMPLED))
    assert set(report["answers"].values()) == {None}
    assert report["sampling"]["temperature"] == 0.7
    assert report["by_draft_tokens"]["2"]["answers"] is None


def test_speed_of_known_measurements() -> None:
    speed = speed_report(runs(measurement(None, 2.0), measurement(ACCEPTED, 1.0)), LEVELS)
    level = speed["by_concurrency"]["8"]
    assert level["without_drafter"] == {
        "requests": 4,
        "tokens": 13,
        "seconds": 4.0,
        "tokens_per_s": 3.25,
        "time_to_first_token_s": {"p50": 0.2, "p90": pytest.approx(0.28)},
        "time_per_token_s": {"p50": 0.2, "p90": 0.2},
    }
    assert (level["speedup"], level["speedup_by_round"]) == (2.0, [2.0])
    assert level["datasets"]["a"]["speedup"] == 2.0
    assert list(speed["by_concurrency"]["1"]["datasets"]) == ["a"]
    assert speed["by_draft_tokens"]["2"] == {
        "acceptance_length": pytest.approx(1 + 820 / 1400),
        "tokens_per_s": 6.5,
        "speedup": 2.0,
        "by_concurrency": {
            "8": {"tokens_per_s": 6.5, "speedup": 2.0},
            "1": {"tokens_per_s": 3.0, "speedup": 1.0},
        },
    }


def test_rounds_are_summed_and_shown_one_by_one() -> None:
    first, second = ({None: measurement(None, slow), 2: measurement(ACCEPTED, 1.0)} for slow in (2.0, 4.0))
    speed = speed_report(replace(runs(None, measurement(ACCEPTED)), rounds=[first, second]), LEVELS)
    level = speed["by_concurrency"]["8"]
    assert level["speedup_by_round"] == [2.0, 4.0]
    assert level["speedup"] == 3.0
    assert (level["without_drafter"]["requests"], level["without_drafter"]["seconds"]) == (8, 12.0)
    assert speed["rounds"] == 2


def test_the_fastest_number_of_draft_tokens_is_named() -> None:
    three = {"a": AcceptanceCounts(900, [500, 200, 50]), "b": AcceptanceCounts(390, [100, 20, 2])}
    found = runs(measurement(None, 2.0), measurement(ACCEPTED, 4.0), k3=measurement(three, 2.5))
    speed = speed_report(found, LEVELS)
    assert speed["best_draft_tokens"] == {"8": 3, "1": 2}  # at 1 both are as fast: the shorter draft
    assert speed["by_draft_tokens"]["3"]["speedup"] == 0.8
    lines = summary(report_of(found), speed)
    assert lines[0].split("  ")[0] == "dataset"
    assert lines[1].split() == ["a", "1.690", "1.700", "0.50x", "1.00x"]
    assert lines[3].split() == ["all", "1.571", "1.586", "0.50x", "1.00x"]
    assert lines[4] == "same answers with the drafter as without: 5 of 5"
    assert lines[5] == (
        "fastest at 8 in flight: 3 draft tokens (tokens/s by draft tokens: 2: 1.6, 3: 2.6), slower than without drafter"
    )
    assert len({len(line) for line in lines[:4]}) == 1
