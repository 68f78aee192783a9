"""Bring the target model in, check it, and write its profile."""

from __future__ import annotations

import logging

from eyas import paths
from eyas.config import load_section
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.process import run_stage
from eyas.target.bring import bring_target
from eyas.target.check import check_target
from eyas.target.params import TargetParams
from eyas.target.profile import build_profile
from eyas.target.think_check import profile_findings

logger = logging.getLogger("eyas.target")


def main() -> None:
    params = load_section("target", TargetParams)
    guard = Guard.start("target")
    with atomic_directory(paths.TARGET) as directory:
        origin = bring_target(params, directory)
        profile = build_profile(directory, origin, params)
        answer = check_target(directory, profile)
        guard.check()
    profile.write(paths.TARGET_PROFILE)
    logger.info("%s: %s %s, dtype %s", profile.name, profile.source, profile.revision, profile.dtype)
    logger.info(
        "%d layers, hidden size %d, vocab %d, aux layers %s",
        profile.num_layers,
        profile.hidden_size,
        profile.vocab_size,
        profile.aux_layer_ids,
    )
    for line in profile_findings(paths.TARGET, profile):
        logger.info("%s", line)
    logger.info("greedy answer: %r", answer.text)


if __name__ == "__main__":
    run_stage(main)
