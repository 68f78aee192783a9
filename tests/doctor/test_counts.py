from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eyas.doctor.counts import of_numbers, of_report
from eyas.errors import ArtifactError, InputError


def report(**entry: Any) -> dict[str, Any]:
    plain = {"drafts": 200, "acceptance": {"length": 1.75, "at_1": 0.5, "at_2": 0.25}}
    same = {"answers": 9, "identical": 9}
    return {
        "answers": {"with_drafter_as_stored": same},
        "datasets": {"d": {**plain, **entry}},
        "overall": plain,
    }


def test_rates_of_a_log_and_counts_are_both_taken() -> None:
    assert of_numbers([0.5, 0.25], 200).counts.accepted_at == [100, 50]
    assert of_numbers([100, 50], 200).counts.accepted_at == [100, 50]


@pytest.mark.parametrize(
    ("rates", "drafts"), [([0.25, 0.5], 10), ([], 10), ([0.5], 0), ([30.0], 20), ([0.5, -0.1], 10)]
)
def test_numbers_that_make_no_sense_are_refused(rates: list[float], drafts: int) -> None:
    with pytest.raises(InputError, match="makes no sense"):
        of_numbers(rates, drafts)


def test_a_report_by_dataset_and_overall(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(report(accepted_at=[101, 49])))
    assert of_report(path, "d").counts.accepted_at == [101, 49]
    assert of_report(path, None).counts.accepted_at == [100, 50]
    assert of_report(path, None).same_answers


def test_counts_cut_at_the_end_of_answers_are_preferred(tmp_path: Path) -> None:
    inside = {
        "drafts": 199,
        "accepted_at": [98, 47],
        "acceptance": {"length": 1.7, "at_1": 0.49, "at_2": 0.24},
    }
    path = tmp_path / "engine.json"
    path.write_text(json.dumps(report(accepted_at=[101, 49], in_answers=inside)))
    assert of_report(path, "d").counts.drafts == 199
    assert of_report(path, "d").counts.accepted_at == [98, 47]


def test_other_answers_than_the_stored_ones_leave_room_for_chance(tmp_path: Path) -> None:
    path = tmp_path / "engine.json"
    values = report()
    values["answers"]["with_drafter_as_stored"]["identical"] = 8
    path.write_text(json.dumps(values))
    assert not of_report(path, None).same_answers


@pytest.mark.parametrize("text", ["", "[]", json.dumps({"overall": None}), json.dumps(report(drafts=None))])
def test_what_is_no_report_of_drafts_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "engine.json"
    path.write_text(text)
    with pytest.raises(ArtifactError, match="engine's report"):
        of_report(path, "d")
