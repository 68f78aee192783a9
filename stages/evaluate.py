"""Simulates the acceptance of the drafter on held-out sequences, from their stored hidden states alone."""

import logging

import polars as pl

from eyas import paths
from eyas.config import load_keys, load_section
from eyas.drafter.checkpoint import load_drafter
from eyas.drafter.rules import GreedyRule, SampledRule
from eyas.evaluate.exported import load_exported_weights
from eyas.evaluate.params import EvaluateParams
from eyas.evaluate.replay import replay
from eyas.evaluate.report import Simulation, acceptance_report, with_datasets
from eyas.evaluate.tables import plot_tables
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.sampling import Sampling
from eyas.shards import HiddenStore
from eyas.source import table_digest
from eyas.speculation import SpeculationParams
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.evaluate")


def main() -> None:
    speculation = load_section("speculation", SpeculationParams)
    params = load_section("evaluate", EvaluateParams)
    sampling = load_keys("generate", ("dialect", "temperature", "top_p", "top_k"), Sampling)
    guard = Guard.start(
        "speculation",
        "evaluate",
        "generate.dialect",
        "generate.temperature",
        "generate.top_p",
        "generate.top_k",
    )
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    store = HiddenStore(paths.hidden("eval"))
    store.check_target(profile)
    table = pl.read_parquet(paths.sequences("eval"))
    store.check_source(table_digest(table))
    drafter, vocab = load_drafter(paths.DRAFTER)
    load_exported_weights(drafter, paths.export("vllm"))
    head = TargetHead.read(paths.TARGET, profile, "float32")
    rule = GreedyRule() if sampling.greedy else SampledRule(head, sampling, speculation.draft_sampling)
    most = max(speculation.draft_tokens, params.max_draft_tokens)
    replayed = with_datasets(replay(drafter, vocab, store, head.embedding, most, rule), table)
    simulation = Simulation.of(
        replayed, params, speculation.draft_tokens, most, sampling, speculation.draft_sampling
    )
    report = acceptance_report(simulation)
    tables = plot_tables(simulation)
    guard.check()
    with atomic_directory(paths.REPORTS / "acceptance") as plots:
        for name, rows in tables.items():
            rows.write_csv(plots / f"{name}.csv")
    write_report(paths.REPORTS / "acceptance.json", report)
    if doubt := report["sampling"]["doubt"]:
        logger.warning("%s", doubt)
    for name, entry in report["datasets"].items():
        length = entry["acceptance"]["length"]
        logger.info(
            "%s: acceptance length %s over %s drafts",
            name,
            length and f"{length:.3f}",
            round(entry["drafts"]),
        )


if __name__ == "__main__":
    run_stage(main)
