"""Writes the checkpoints that inference engines load, and checks each folder as it lies on disk."""

from __future__ import annotations

import logging
from dataclasses import asdict

from eyas import paths
from eyas.config import load_keys, load_section
from eyas.drafter.checkpoint import load_drafter, read_origin
from eyas.drafter.formats.card import CardFacts, card_text
from eyas.drafter.formats.serving import Serving
from eyas.export.check import undraftable
from eyas.export.params import DraftTokens, ExportParams
from eyas.export.writing import Trained, check_servable, export_drafter
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.process import run_stage
from eyas.published import forget_published
from eyas.reports import read_report
from eyas.target.spec import TargetProfile
from eyas.train.params import TrainParams

logger = logging.getLogger("eyas.export")

CARD = "README.md"
HINT = "dvc repro export"


def main() -> None:
    forget_published("train")
    params = load_section("export", ExportParams)
    recipe = load_section("train", TrainParams)
    speculation = load_keys("speculation", ["draft_tokens"], DraftTokens)
    guard = Guard.start("export", "train", "speculation.draft_tokens")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    drafter, vocab = load_drafter(paths.DRAFTER)
    origin = read_origin(paths.DRAFTER)
    trained = Trained(drafter, vocab, imported=origin is not None)
    serving = Serving(profile, params.dtype, speculation.draft_tokens)
    facts = CardFacts(
        serving=serving,
        config=drafter.config,
        parameters=sum(weight.numel() for weight in drafter.parameters()),
        recipe=asdict(recipe),
        sequences=read_report(paths.REASSEMBLY_REPORT, HINT),
        training=read_report(paths.REPORTS / "train" / "summary.json", HINT),
        origin=origin,
    )
    for name in params.formats:
        check_servable(name, drafter.config, serving)
    for token in undraftable(vocab, profile):
        logger.warning("token %d, an end of turn or think marker, is not in the draft vocabulary", token)
    for name in params.formats:
        with atomic_directory(paths.export(name)) as directory:
            export_drafter(directory, name, trained, serving)
            (directory / CARD).write_text(card_text(name, facts), encoding="utf-8")
            guard.check()
        size_mb = sum(file.stat().st_size for file in paths.export(name).iterdir()) / 1e6
        logger.info(
            "%s: %s, %.0f MB, complete and in line with %s", name, paths.export(name), size_mb, profile.name
        )


if __name__ == "__main__":
    run_stage(main)
