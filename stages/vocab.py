"""Choose the draft vocabulary from the supervised tokens of the training sequences."""

from __future__ import annotations

import logging
from pathlib import Path

import polars as pl
from safetensors.numpy import save_file

from eyas import paths
from eyas.config import load_section
from eyas.files import atomic_directory, write_json
from eyas.hashing import Guard, digest
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.schema import Sequences
from eyas.tables import read_table
from eyas.target.spec import TargetProfile
from eyas.vocab.draft_vocab import (
    DraftVocab,
    build_draft_vocab,
    check_maps,
    required_ids,
    supervised_counts,
    total_counts,
)
from eyas.vocab.given import given_vocab
from eyas.vocab.params import VocabParams
from eyas.vocab.report import vocab_report

logger = logging.getLogger("eyas.vocab")


def main() -> None:
    params = load_section("vocab", VocabParams)
    guard = Guard.start("vocab")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    counts = {
        split: supervised_counts(read_table(paths.sequences(split), Sequences)) for split in paths.SPLITS
    }
    vocab = choose(params, profile, total_counts(counts["train"]))
    report = vocab_report(vocab, counts)
    guard.check()
    with atomic_directory(paths.VOCAB) as directory:
        save_file({"d2t": vocab.d2t, "t2d": vocab.t2d}, directory / "vocab.safetensors")
        description = {key: report[key] for key in ("size", "target_vocab_size", "coverage")}
        write_json(directory / "vocab.json", {**description, "digest": digest(vocab.draft_ids.tolist())})
    write_report(paths.REPORTS / "vocab.json", report)
    shown = ", ".join(
        f"{split} {value:.2%}" for split, value in report["coverage"].items() if value is not None
    )
    logger.info(
        "%d of %d target tokens kept; coverage: %s", params.draft_vocab_size, profile.vocab_size, shown
    )


def choose(params: VocabParams, profile: TargetProfile, train: pl.DataFrame) -> DraftVocab:
    """The vocabulary of `map_from`, or the one that the training tokens ask for."""
    required = required_ids(profile, train)
    if params.map_from is None:
        vocab = build_draft_vocab(train, required, params.draft_vocab_size, profile.vocab_size)
        check_maps(vocab.d2t, vocab.t2d, required)
        return vocab
    vocab = given_vocab(Path(params.map_from), params.draft_vocab_size, profile)
    check_maps(vocab.d2t, vocab.t2d)
    if lacking := sorted(required - set(vocab.draft_ids.tolist())):
        logger.warning(
            "the vocabulary of %s lacks tokens %s (ends of turn, think markers, special tokens): they are never drafted",
            params.map_from,
            lacking,
        )
    return vocab


if __name__ == "__main__":
    run_stage(main)
