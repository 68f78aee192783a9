"""Simulates the acceptance of the drafter on held-out sequences, from their stored hidden states alone."""

import logging

import polars as pl

from eyas import paths
from eyas.config import load_section
from eyas.drafter.checkpoint import load_drafter
from eyas.evaluate.exported import load_exported_weights
from eyas.evaluate.params import EvaluateParams
from eyas.evaluate.replay import replay
from eyas.evaluate.report import acceptance_report, by_dataset, by_position, with_datasets
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.shards import HiddenStore
from eyas.source import table_digest
from eyas.speculation import SpeculationParams
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.evaluate")


def main() -> None:
    speculation = load_section("speculation", SpeculationParams)
    params = load_section("evaluate", EvaluateParams)
    guard = Guard.start("speculation", "evaluate")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    store = HiddenStore(paths.hidden("eval"))
    store.check_target(profile)
    table = pl.read_parquet(paths.sequences("eval"))
    store.check_source(table_digest(table))
    drafter, vocab = load_drafter(paths.DRAFTER)
    load_exported_weights(drafter, paths.export("vllm"))
    embedding = TargetHead.read(paths.TARGET, profile, "float32").embedding
    replayed = replay(drafter, vocab, store, embedding, speculation.draft_tokens)
    replayed = with_datasets(replayed, table)
    report = acceptance_report(replayed, speculation.draft_tokens)
    guard.check()
    with atomic_directory(paths.REPORTS / "acceptance") as plots:
        by_dataset(replayed, speculation.draft_tokens).write_csv(plots / "by_dataset.csv")
        by_position(replayed, speculation.draft_tokens, params.position_bins).write_csv(
            plots / "by_position.csv"
        )
    write_report(paths.REPORTS / "acceptance.json", report)
    for name, entry in report["datasets"].items():
        length = entry["acceptance"]["length"]
        logger.info(
            "%s: acceptance length %s over %d drafts", name, length and f"{length:.3f}", entry["drafts"]
        )


if __name__ == "__main__":
    run_stage(main)
