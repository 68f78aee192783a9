"""The stage on answers that were sampled as `generate` says, and otherwise."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from stages import extract

from eyas import paths
from eyas.errors import GateError
from eyas.sampling import Sampling
from tests.extract.drawing import sampled_sequences
from tests.extract.greedy import write_table
from tests.tiny_target import profile_of, write_target

WARM = Sampling("vllm", 0.8, 0.9, 0)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    target = write_target(folder / paths.TARGET)
    profile_of(target).write(folder / paths.TARGET_PROFILE)
    for seed, split in enumerate(paths.SPLITS):
        sequences = sampled_sequences(target, WARM, count=16, answer=45, seed=seed)
        write_table(sequences, folder / paths.sequences(split))
    return folder


def write_params(temperature: float) -> None:
    params = yaml.safe_load((Path(__file__).parents[2] / "params.yaml").read_text())
    params["generate"] |= {"temperature": temperature, "top_p": WARM.top_p, "top_k": WARM.top_k}
    Path("params.yaml").write_text(yaml.safe_dump(params))


@pytest.fixture(autouse=True)
def inside(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(project)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # the extractor takes all cores otherwise


def test_sampled_as_params_say() -> None:
    write_params(WARM.temperature)
    extract.main()
    report = json.loads(paths.EXTRACTION_REPORT.read_text())
    for split in paths.SPLITS:
        for counts in report[split]["datasets"].values():
            assert abs(counts["sampling_z"]) < 4
            assert counts["outside_share"] == 0
            assert counts["odd_sequences"] == 0
            assert "near_ties" not in counts


@pytest.mark.parametrize(
    ("temperature", "message"),
    [
        pytest.param(1.3, "nats less surprising", id="hotter"),
        pytest.param(0.3, r"can't come from|could give|more surprising", id="cooler"),
        pytest.param(0.0, "are not what the target predicts|can't come from", id="greedy"),
    ],
)
def test_sampled_otherwise(temperature: float, message: str) -> None:
    write_params(temperature)
    with pytest.raises(GateError, match=message):
        extract.main()
