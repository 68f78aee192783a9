"""Train the drafter on the stored hidden states."""

from __future__ import annotations

import shutil

from eyas import paths
from eyas.allocator import keep_freed_memory
from eyas.compute import ComputeParams
from eyas.config import load_section
from eyas.drafter.checkpoint import save_drafter
from eyas.drafter.vocab import VocabMap
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.published import forget_published
from eyas.shards import HiddenStore
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile
from eyas.train.curves import METRICS
from eyas.train.fit import FitInputs, fit
from eyas.train.initial import origin
from eyas.train.params import TrainParams
from eyas.train.report import write_validations

REPORTS = paths.REPORTS / "train"


def main() -> None:
    forget_published("extract")
    keep_freed_memory()
    params = load_section("train", TrainParams)
    compute = load_section("compute", ComputeParams)
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
    result = fit(inputs, params, compute, paths.journal("train"))
    if result is None:  # a process that helped; the first one writes
        return
    guard.check()
    with atomic_directory(paths.DRAFTER) as directory:
        save_drafter(directory, result.drafter, inputs.vocab, origin(params, profile, inputs.head))
    curves = result.journal.live / METRICS / "train"
    with atomic_directory(REPORTS / "plots") as directory:
        if curves.is_dir():  # nothing was trained in 0 epochs
            shutil.copytree(curves, directory, dirs_exist_ok=True)
    write_validations(REPORTS / "validations.tsv", result.record)
    write_report(REPORTS / "speed.json", result.speed)
    write_report(REPORTS / "summary.json", result.summary)
    result.journal.finish()
    print(f"val acceptance length {result.summary['acceptance_length']:.3f}, saved {paths.DRAFTER}")


if __name__ == "__main__":
    run_stage(main)
