"""Run the target over all sequences and store the hidden states that training and evaluation need."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from typing import Any

from eyas import paths
from eyas.config import load_section
from eyas.extract.gate import check_fixture
from eyas.extract.params import ExtractParams
from eyas.extract.run import Extractor, check_disk
from eyas.extract.table import Sequences
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.extract")


def main() -> None:
    params = load_section("extract", ExtractParams)
    guard = Guard.start("extract")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    splits = {split: Sequences.read(paths.sequences(split), profile.vocab_size) for split in paths.SPLITS}
    extractor = Extractor.load(paths.TARGET, profile, params)
    needed = sum(sum(extractor.sizes(sequences)) for sequences in splits.values())
    check_disk(needed, paths.SEQUENCES)
    logger.info("hidden states of %d sequences, %.2f GB", sum(map(len, splits.values())), needed / 1e9)
    check_fixture(extractor.backend, extractor.head, splits["train"].token_ids)

    report: dict[str, Any] = {}
    with ExitStack() as stores:
        for split, sequences in splits.items():
            directory = stores.enter_context(atomic_directory(paths.hidden(split)))
            report[split] = extractor.extract(split, sequences, directory).report()
        guard.check()
    write_report(paths.REPORTS / "extraction.json", report)


if __name__ == "__main__":
    run_stage(main)
