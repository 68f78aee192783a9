"""Train the drafter on the stored hidden states."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from eyas import paths
from eyas.config import load_section
from eyas.drafter.checkpoint import save_drafter
from eyas.drafter.vocab import VocabMap
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.shards import HiddenStore
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile
from eyas.train.fit import FitInputs, fit
from eyas.train.params import TrainParams

REPORTS = paths.REPORTS / "train"


def main() -> None:
    params = load_section("train", TrainParams)
    guard = Guard.start("train")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    inputs = FitInputs(
        profile=profile,
        vocab=VocabMap.read(paths.VOCAB),
        head=TargetHead.read(paths.TARGET, profile, "float32"),
        train=HiddenStore(paths.hidden("train")),
        val=HiddenStore(paths.hidden("val")),
    )
    inputs.train.check_target(profile)
    inputs.val.check_target(profile)
    inputs.train.verify()
    inputs.val.verify()
    with tempfile.TemporaryDirectory(prefix="eyas-train-") as scratch:
        result = fit(inputs, params, Path(scratch))
        guard.check()
        with atomic_directory(paths.DRAFTER) as directory:
            save_drafter(directory, result.drafter, inputs.vocab)
        with atomic_directory(REPORTS / "plots") as directory:
            curves = Path(scratch) / "plots" / "metrics"
            shutil.copytree(curves, directory, dirs_exist_ok=True, ignore=shutil.ignore_patterns("epoch.tsv"))
    write_report(REPORTS / "summary.json", result.summary)
    print(f"val acceptance length {result.summary['val']['acceptance_length']:.3f}, saved {paths.DRAFTER}")


if __name__ == "__main__":
    run_stage(main)
