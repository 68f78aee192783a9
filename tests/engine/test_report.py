from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from eyas.acceptance import AcceptanceCounts
from eyas.engine import run as run_module
from eyas.engine.agreement import differences, find_faults, gate, judged, read_simulation
from eyas.engine.compare import Difference, compare
from eyas.engine.measure import Measurement, Timing
from eyas.engine.questions import levels
from eyas.engine.report import engine_report, speed_report
from eyas.engine.run import Runs, Served, run_external, run_local
from eyas.errors import ArtifactError, GateError, ServerError
from tests.serving.example import server_params

from .examples import QUESTIONS, known_answers, simulated, simulated_entry
from .fake_vllm import FakeVllm

LEVELS = levels(QUESTIONS, [1, 8], prompts_at_1=1)
STORED = {each.sequence_id: each.answer_ids for each in QUESTIONS}


def measurement(
    acceptance: dict[str, AcceptanceCounts] | None, seconds: float, **changed: list[int]
) -> Measurement:
    changes = {name.replace("_", ":"): ids for name, ids in changed.items()}
    return Measurement(
        version="0.32.0",
        answers={8: STORED | changes, 1: {"a:0": STORED["a:0"]}},
        timings={8: {"a": Timing(2, 8, seconds), "b": Timing(2, 5, seconds)}, 1: {"a": Timing(1, 3, 1.0)}},
        acceptance=acceptance,
    )


ACCEPTED = {"a": AcceptanceCounts(1000, [500, 200]), "b": AcceptanceCounts(400, [100, 20])}


@pytest.mark.parametrize(
    ("expected", "found", "difference"),
    [
        ([1, 2, 3], [1, 2, 3], None),
        ([1, 2, 3], [1, 9, 3], Difference("x", 1, 2, 9)),
        ([1, 2, 3], [1, 2], Difference("x", 2, 3, None)),
        ([1, 2], [1, 2, 3], Difference("x", 2, None, 3)),
        ([], [], None),
    ],
)
def test_the_first_difference_is_found(
    expected: list[int], found: list[int], difference: Difference | None
) -> None:
    result = compare({"x": expected, "never asked": [4]}, {"x": found})
    assert (result.total, result.identical) == (1, int(difference is None))
    assert result.differences == ([difference] if difference else [])


def test_report_of_known_measurements() -> None:
    runs = Runs(measurement(None, 2.0), measurement(ACCEPTED, 1.0), external=False)
    report = engine_report(runs, LEVELS, simulated(a=(1000, [490, 200]), b=(400, [90, 20])), "float32")
    assert report["answers"] == {
        "with_drafter_as_without": {"answers": 5, "identical": 5, "first_difference": None},
        "without_drafter_as_stored": {"answers": 5, "identical": 5, "first_difference": None},
        "with_drafter_as_stored": {"answers": 5, "identical": 5, "first_difference": None},
    }
    assert report["datasets"]["a"] == {
        "drafts": 1000,
        "accepted": 700,
        "acceptance": {"length": 1.7, "at_1": 0.5, "at_2": 0.2},
        "conditional": {"at_1": 0.5, "at_2": 0.4},
        "simulated": {
            "drafts": 1000,
            "accepted": 690,
            "length": 1.69,
            "length_at_most": 1.69,
            "greedy_share": 1.0,
        },
        "difference": {
            "length": 0.00592,
            "at_1": 0.02041,
            "at_2": 0.0,
        },
    }
    assert report["datasets"]["b"]["difference"]["at_1"] is None  # too few drafts
    assert report["overall"]["drafts"] == 1400
    assert (report["version"], report["dtype"], report["draft_tokens"]) == ("0.32.0", "float32", 2)
    speed = speed_report(runs, LEVELS)["by_concurrency"]
    assert speed["8"]["without_drafter"] == {
        "requests": 4,
        "tokens": 13,
        "seconds": 4.0,
        "tokens_per_s": 3.25,
    }
    assert speed["8"]["speedup"] == 2.0
    assert speed["8"]["datasets"]["a"]["speedup"] == 2.0
    assert list(speed["1"]["datasets"]) == ["a"]


def test_what_an_external_server_does_not_show_is_null() -> None:
    runs = Runs(measurement(None, 2.0), None, external=True)
    report = engine_report(runs, LEVELS, simulated(a=(10, [5, 2]), b=(4, [1, 0])), "float32")
    assert report["server"] == "external"
    assert report["answers"]["with_drafter_as_without"] is None
    assert report["answers"]["without_drafter_as_stored"]["identical"] == 5
    assert report["overall"]["drafts"] is None
    assert report["overall"]["acceptance"] == {"length": None, "at_1": None, "at_2": None}
    assert report["overall"]["difference"]["length"] is None
    speed = speed_report(runs, LEVELS)["by_concurrency"]["8"]
    assert (speed["with_drafter"], speed["speedup"]) == (None, None)
    assert speed["without_drafter"]["tokens_per_s"] == 3.25


def test_another_number_of_draft_tokens_is_not_compared() -> None:
    runs = Runs(None, measurement(ACCEPTED, 1.0), external=True)
    report = engine_report(runs, LEVELS, simulated(a=(1000, [490, 200, 1]), b=(400, [90, 20, 1])), "float32")
    assert report["overall"]["acceptance"]["length"] == pytest.approx(1 + 820 / 1400)
    assert set(report["overall"]["difference"].values()) == {None}


def test_nothing_accepted_in_the_simulation_has_no_relative_difference() -> None:
    found = differences(AcceptanceCounts(600, [300, 3]), simulated_entry(600, [300, 0]))
    assert found == {"length": 0.00333, "at_1": 0.0, "at_2": None}


@pytest.mark.parametrize(
    ("counted", "expected", "faults"),
    [
        ((1000, [500, 200]), (1000, [500, 200]), []),
        ((1000, [500, 200]), (1000, [450, 200]), []),  # 3.03 % of 1.65 would fail, see below
        (
            (1000, [400, 200]),
            (1000, [500, 200]),
            ["a: acceptance length 1.600 in the engine, 1.700 simulated, -5.9%"],
        ),
        ((400, [160, 80]), (400, [200, 80]), []),  # too few drafts to judge
    ],
    ids=["equal", "within", "below", "few"],
)
def test_disagreement_beyond_the_limit_is_a_fault(
    counted: tuple[int, list[int]], expected: tuple[int, list[int]], faults: list[str]
) -> None:
    acceptance = {"a": AcceptanceCounts(*counted), "b": AcceptanceCounts(0, [0, 0])}
    runs = Runs(measurement(None, 2.0), measurement(acceptance, 1.0), external=False)
    report = engine_report(runs, LEVELS, simulated(a=expected, b=(0, [0, 0])), "float32")
    found = find_faults(report, max_disagreement=0.0304)
    assert [each for each in found if each.startswith("a:")] == faults


@pytest.mark.parametrize(("past_end", "count"), [(100, 0), (40, 1)])
def test_what_is_accepted_behind_the_end_is_no_disagreement(past_end: int, count: int) -> None:
    acceptance = {"a": AcceptanceCounts(1000, [550, 250]), "b": AcceptanceCounts(0, [0, 0])}
    runs = Runs(measurement(None, 2.0), measurement(acceptance, 1.0), external=False)
    report = engine_report(
        runs,
        LEVELS,
        simulated(a=(1000, [500, 200]), b=(0, [0, 0]))
        | {"datasets": {"a": simulated_entry(1000, [500, 200], past_end), "b": simulated_entry(0, [0, 0])}},
        "float32",
    )  # 1.8 measured, 1.7 simulated
    assert (
        len([each for each in find_faults(report, max_disagreement=0.03) if each.startswith("a:")]) == count
    )


@pytest.mark.parametrize(("dtype", "count"), [("float32", 1), ("bfloat16", 0)])
def test_a_changed_answer_is_a_fault_in_fp32_only(dtype: str, count: int) -> None:
    runs = Runs(measurement(None, 2.0), measurement(ACCEPTED, 1.0, b_1=[1, 2, 77, 4]), external=False)
    report = engine_report(runs, LEVELS, simulated(a=(1000, [500, 200]), b=(400, [100, 20])), dtype)
    found = find_faults(report, max_disagreement=0.03)
    assert len(found) == count
    assert all(
        "1 of 5 answers change with the drafter, first b:1 at token 2: 3 without, 77 with it" in each
        for each in found
    )


def served() -> Served:
    return Served(Path("models/target"), "tiny", "float32", Path("models/export/vllm"), draft_tokens=2)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """Fake servers in place of real ones; the arguments of each start."""
    starts: list[dict[str, Any]] = []

    @contextmanager
    def start(
        target: Path, name: str, dtype: str, params: Any, log: str, speculative: Any, **_: Any
    ) -> Iterator[FakeVllm]:
        starts.append({"extra_args": params.extra_args, "log": log, "speculative": speculative})
        with FakeVllm(known_answers(), speculates=speculative is not None and "silent" not in name) as server:
            yield server

    monkeypatch.setattr(run_module, "LocalVllm", start)
    monkeypatch.setattr(run_module, "check_model", lambda url, name: type("M", (), {"version": "0.32.0"}))
    return starts


def test_two_fresh_servers_are_measured_one_after_the_other(started: list[dict[str, Any]]) -> None:
    runs = run_local(served(), LEVELS, server_params())
    assert [start["log"] for start in started] == ["engine-without", "engine-with"]
    assert started[0]["speculative"] is None
    speculative = started[1]["speculative"]
    assert Path(speculative.pop("model")).is_absolute()
    assert speculative == {"method": "eagle3", "num_speculative_tokens": 2}
    assert all(start["extra_args"] == ["--no-enable-prefix-caching", "--enforce-eager"] for start in started)
    assert runs.without_drafter is not None
    assert runs.without_drafter.acceptance is None
    assert runs.with_drafter is not None
    assert runs.with_drafter.acceptance == {
        "a": AcceptanceCounts(6, [6, 2]),
        "b": AcceptanceCounts(6, [6, 2]),
    }


@pytest.mark.usefixtures("started")
def test_a_drafter_that_is_not_used_is_noticed() -> None:
    silent = Served(Path("t"), "silent", "float32", Path("d"), 2)
    with pytest.raises(ServerError, match="counted no drafts"):
        run_local(silent, LEVELS, server_params())


@pytest.mark.parametrize("speculates", [True, False])
def test_an_external_server_is_measured_on_the_side_it_shows(speculates: bool) -> None:
    with FakeVllm(known_answers(), speculates=speculates) as server:
        runs = run_external(server.base_url, "tiny", LEVELS, server_params())
    assert (runs.with_drafter is not None, runs.without_drafter is not None) == (speculates, not speculates)
    assert runs.version == "0.32.0"


def test_a_failing_gate_keeps_the_reports_and_names_the_file(tmp_path: Path) -> None:
    runs = Runs(measurement(None, 2.0), measurement(ACCEPTED, 1.0, a_0=[5, 6, 8]), external=False)
    report = engine_report(runs, LEVELS, simulated(a=(1000, [500, 200]), b=(400, [100, 20])), "float32")
    reports, kept = (
        {"engine": report, "speed": speed_report(runs, LEVELS)},
        tmp_path / "logs/engine-report.json",
    )
    gate(reports, 0.03, kept, fails=False)
    assert not kept.exists()
    with pytest.raises(GateError, match="first a:0 at token 2: 7 without, 8 with it") as caught:
        gate(reports, 0.03, kept, fails=True)
    assert str(kept) in str(caught.value)
    assert set(json.loads(kept.read_text())) == {"engine", "speed"}


def test_no_simulation_says_what_to_run(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="dvc repro evaluate"):
        read_simulation(tmp_path / "acceptance.json")


def test_sampled_answers_are_not_judged() -> None:
    entry = {
        "drafts": 1000,
        "simulated": {"drafts": 1000, "greedy_share": 0.6},
        "difference": {"length": 0.5},
    }
    assert not judged(entry)
    assert judged(entry | {"simulated": {"drafts": 1000, "greedy_share": 1.0}})
