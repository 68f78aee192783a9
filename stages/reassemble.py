"""Build token sequences with loss masks from the validated responses of all datasets, and split them."""

from __future__ import annotations

import logging

import polars as pl

from eyas import paths
from eyas.config import load_section
from eyas.datasets import load_datasets
from eyas.files import atomic_directory
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.reassemble.inputs import check_tables, read_validated
from eyas.reassemble.params import ReassembleParams
from eyas.reassemble.rendering import Mismatch, mismatches, refuse_mismatches
from eyas.reassemble.report import reassembly_report
from eyas.reassemble.sequences import Assembled, assemble, split
from eyas.schema import Sequences, check, columns_of
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.reassemble")


def main() -> None:
    datasets = load_datasets()
    params = load_section("reassemble", ReassembleParams)
    guard = Guard.start("datasets", "reassemble")
    check_tables(datasets)
    trust = TargetProfile.read(paths.TARGET_PROFILE).trust_remote_code
    assembled: dict[str, Assembled] = {}
    different: list[Mismatch] = []
    checked = 0
    for name in datasets:
        validated = read_validated(name)
        assembled[name] = assemble(validated.rows, params)
        different += mismatches(
            validated.rows, paths.TARGET, validated.template_kwargs, trust_remote_code=trust
        )
        checked += validated.rows.height
    refuse_mismatches(different, checked, paths.TARGET, trust_remote_code=trust)

    empty = pl.DataFrame(schema=columns_of(Sequences))
    by_role = {
        role: pl.concat([empty, *(assembled[name].kept for name in datasets if datasets[name].role == role)])
        for role in ("train", "eval")
    }
    splits = split(by_role["train"], by_role["eval"], params.val_share)
    for name, table in splits.items():
        check(Sequences, table, str(paths.sequences(name)))
    dropped = pl.concat([part.dropped for part in assembled.values()])
    report = reassembly_report(splits, dropped, checked)
    guard.check()
    with atomic_directory(paths.SEQUENCES) as directory:
        for name, table in splits.items():
            table.write_parquet(directory / paths.sequences(name).name)
    write_report(paths.REPORTS / "reassembly.json", report)
    for name, table in splits.items():
        logger.info(
            "%-5s %6d sequences, %9d supervised tokens",
            name,
            table.height,
            table["num_generated_tokens"].sum(),
        )
    logger.info("%d prompts rendered equal, %d sequences dropped", checked, dropped.height)


if __name__ == "__main__":
    run_stage(main)
