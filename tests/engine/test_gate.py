from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine.compare import Difference
from eyas.engine.gate import Limits, find_faults, gate
from eyas.engine.report import engine_report
from eyas.engine.speed import speed_report
from eyas.errors import GateError

from .examples import simulated, simulated_entry
from .measured import ACCEPTED, LEVELS, SAMPLED, measurement, runs

LIMITS = Limits(greedy=0.03, sampled=0.04)
NOTHING = AcceptanceCounts(0, [0, 0])


def report_of(counted: tuple[float, list[float]], entry: dict[str, Any], **options: Any) -> dict[str, Any]:
    found = runs(measurement(None), measurement({"a": AcceptanceCounts(*counted), "b": NOTHING}), **options)
    expected = {
        "draft_tokens": 2,
        "datasets": {"a": entry, "b": simulated_entry(0, [0, 0])},
        "overall": simulated_entry(0, [0, 0]),
    }
    return engine_report(found, LEVELS, expected, "float32", "greedy")


@pytest.mark.parametrize(
    ("counted", "expected", "faults"),
    [
        ((1000, [500, 200]), (1000, [500, 200]), []),
        ((1000, [516, 203]), (1000, [500, 200]), []),
        (
            (1000, [519, 200]),  # 3 % and three drafts of 500 are 518
            (1000, [500, 200]),
            [
                "a, 2 draft tokens: acceptance at_1 is 0.519 in the engine, 0.500 simulated, +3.8%; 3.0% and 0.6% by"
            ],
        ),
        ((400, [160, 80]), (400, [200, 80]), []),  # too few drafts to judge
    ],
    ids=["equal", "within", "beyond", "few"],
)
def test_disagreement_beyond_the_limit_is_a_fault(
    counted: tuple[float, list[float]], expected: tuple[int, list[int]], faults: list[str]
) -> None:
    found = find_faults(report_of(counted, simulated_entry(*expected)), LIMITS)
    assert [each.removesuffix(" chance are allowed") for each in found] == faults


def test_every_position_is_judged() -> None:
    (fault,) = find_faults(report_of((1000, [500, 180]), simulated_entry(1000, [500, 200])), LIMITS)
    assert "at_2 is 0.180 in the engine, 0.200 simulated, -10.0%" in fault


@pytest.mark.parametrize(("open_at", "faults"), [([60, 60], 0), ([0, 0], 3)])
def test_what_may_lie_behind_the_ends_is_no_disagreement(open_at: list[int], faults: int) -> None:
    report = report_of((1000, [550, 250]), simulated_entry(1000, [500, 200], open_at))
    assert len(find_faults(report, LIMITS)) == faults


@pytest.mark.parametrize(
    ("dtype", "margin", "count"),
    [
        ("float32", None, 1),
        ("float32", 0.0001, 0),
        ("float32", 0.1, 1),
        ("bfloat16", None, 0),
        ("bfloat16", 0.1, 0),
        ("bfloat16", 5.0, 1),
    ],
)
def test_a_changed_answer_is_a_fault_unless_rounding_explains_it(
    dtype: str, margin: float | None, count: int
) -> None:
    parted = Difference("b:1", 2, 3, 77, (1, 2))
    found = runs(
        measurement(None),
        measurement(ACCEPTED, b_1=[1, 2, 77, 4]),
        margins={} if margin is None else {parted: margin},
    )
    expected = simulated(a=(1000, [500, 200]), b=(400, [100, 20]))
    faults = find_faults(engine_report(found, LEVELS, expected, dtype, "greedy"), LIMITS)
    assert len(faults) == count
    for fault in faults:
        assert (
            "1 of 5 answers change with the drafter (2 draft tokens), 1 of them by more than a near tie"
            in fault
        )
        assert "first b:1 at token 2: 3 without, 77 with it" in fault
        assert ("nats between them" in fault) == (margin is not None)


@pytest.mark.parametrize(("at_1", "faults"), [(540, 0), (620, 1)])
def test_sampled_answers_may_differ_by_their_error_too(at_1: int, faults: int) -> None:
    """0.04 and three times the error of 2 x 1000 drafts, 0.0158 each: 0.087 of 0.5 in all."""
    entry = simulated_entry(1000, [500, 200], greedy_share=0.5)
    report = report_of((1000, [at_1, 200]), entry, asking=SAMPLED)
    assert len(find_faults(report, LIMITS)) == faults


def test_a_failing_gate_keeps_the_reports_and_names_the_file(tmp_path: Path) -> None:
    found = runs(measurement(None, 2.0), measurement(ACCEPTED, 1.0, a_0=[5, 6, 8]))
    expected = simulated(a=(1000, [500, 200]), b=(400, [100, 20]))
    report = engine_report(found, LEVELS, expected, "float32", "greedy")
    reports = {"engine": report, "speed": speed_report(found, LEVELS)}
    kept = tmp_path / "logs/engine-report.json"
    gate(reports, LIMITS, kept, fails=False)
    assert not kept.exists()
    with pytest.raises(GateError, match="first a:0 at token 2: 7 without, 8 with it") as caught:
        gate(reports, LIMITS, kept, fails=True)
    assert str(kept) in str(caught.value)
    assert set(json.loads(kept.read_text())) == {"engine", "speed"}
