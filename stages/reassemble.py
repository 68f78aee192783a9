"""Build token sequences with the kind of every token from the validated responses of all datasets, and split them."""

from __future__ import annotations

import logging
import tempfile
from pathlib import Path

from eyas import paths
from eyas.allocator import collect_rarely, keep_freed_memory
from eyas.config import load_section
from eyas.datasets import load_datasets
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.identity import prompt_hash
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.reassemble.drift import drift_report, refuse_drift
from eyas.reassemble.inputs import check_tables, check_weights, scan_validated
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.publish import check_files, write_sequences
from eyas.reassemble.report import reasons_table, reassembly_report, refuse_many, write_plots
from eyas.reassemble.sequences import candidates
from eyas.reassemble.sources import Sources
from eyas.reassemble.split import check_split
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.reassemble")


def main() -> None:
    keep_freed_memory()  # batches of the same size follow one another
    collect_rarely()
    datasets = load_datasets()
    params = load_section("reassemble", ReassembleParams)
    guard = Guard.start("datasets", "reassemble")
    check_tables(datasets)
    check_weights(params.weights, datasets)
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    tables = [scan_validated(name) for name in sorted(datasets, key=lambda name: f"{name}:")]
    sources = Sources(tables, paths.TARGET, profile)
    paths.SEQUENCES.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(dir=paths.SEQUENCES.parent, prefix=".reassemble-") as scratch,
        sources.proving(params.drift_rows) as proof,
    ):
        if params.source == "text":
            proof.result()  # first: the texts are tokenised with the same tokenizer
            tables = sources.completed(Path(scratch))
        sequences = {
            table.dataset: candidates(table.rows(), profile, params, params.weights.get(table.dataset, 1.0))
            for table in tables
        }
        roles = {name: entry.role for name, entry in datasets.items()}
        with atomic_directory(paths.SEQUENCES) as directory:
            index = write_sequences(directory, sequences, roles, params.val_share, question_hash)
            refuse_many(index, params)
            check_split(index)
            kinds = check_files(directory, index, profile)
            drift = drift_report(proof.result().drift)
            text_rows = index.filter(index["reason"].is_null(), origin="text").height
            refuse_drift(drift, text_rows, params.max_drift_share)
            guard.check()
    write_report(paths.REASSEMBLY_REPORT, reassembly_report(index, kinds, proof.result().prompts, drift))
    write_plots(paths.REASSEMBLY_PLOTS, index, kinds)
    unused = index.filter(index["reason"].is_not_null())
    logger.info(
        "%d sequences, %d prompts rendered equal, %d answers not used%s",
        index.height - unused.height,
        proof.result().prompts,
        unused.height,
        reasons_table(unused),
    )


def question_hash(question: str) -> str:
    """The prompt hash of a conversation that asks nothing else."""
    return prompt_hash([{"role": "user", "content": question}])


if __name__ == "__main__":
    run_stage(main)
