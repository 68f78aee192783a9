"""Writes the checkpoints that inference engines load, and checks each folder as it lies on disk."""

import logging

from eyas import paths
from eyas.config import load_section
from eyas.drafter.checkpoint import load_drafter
from eyas.export.check import check_plain
from eyas.export.params import ExportParams
from eyas.export.plain import write_plain
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.process import run_stage
from eyas.published import forget_published
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.export")


def main() -> None:
    forget_published("train")
    params = load_section("export", ExportParams)
    guard = Guard.start("export")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    drafter, vocab = load_drafter(paths.DRAFTER)
    for name in params.formats:
        with atomic_directory(paths.export(name)) as directory:
            write_plain(directory, drafter, vocab, profile, params.dtype)
            check_plain(directory, profile)
            guard.check()
        size_mb = sum(file.stat().st_size for file in paths.export(name).iterdir()) / 1e6
        logger.info(
            "%s: %s, %.0f MB, complete and in line with %s", name, paths.export(name), size_mb, profile.name
        )


if __name__ == "__main__":
    run_stage(main)
