"""Make the prompt table of one dataset: read its source, normalise, reject, deduplicate."""

from __future__ import annotations

import logging

from eyas import paths
from eyas.config import load_section
from eyas.datasets import load_datasets
from eyas.errors import ConfigError
from eyas.freshness import inputs_digest
from eyas.hashing import Guard
from eyas.process import dataset_argument, run_stage
from eyas.prompts.params import PromptsParams
from eyas.prompts.table import build_prompts
from eyas.schema import Prompts, RejectedPrompts, check
from eyas.tables import INPUTS, write_table

logger = logging.getLogger("eyas.prompts")


def main() -> None:
    name = dataset_argument()
    datasets = load_datasets()
    params = load_section("prompts", PromptsParams)
    guard = Guard.start("datasets", "prompts")
    inputs = inputs_digest()
    if name not in datasets:
        raise ConfigError(
            f"no dataset `{name}`", where=str(paths.PARAMS), hint=f"known: {', '.join(datasets)}"
        )
    tables = build_prompts(name, datasets, params)
    check(Prompts, tables.prompts, str(paths.prompts(name)))
    check(RejectedPrompts, tables.rejected, str(paths.rejected_prompts(name)))
    guard.check()
    write_table(paths.rejected_prompts(name), tables.rejected, {INPUTS: inputs})
    write_table(paths.prompts(name), tables.prompts, {INPUTS: inputs})
    logger.info("%s: %d prompts, %d rejected", name, tables.prompts.height, tables.rejected.height)
    for reason, count in tables.rejected["reason"].value_counts(sort=True).rows():
        logger.info("  rejected %5d %s", count, reason)
    for label, count in tables.unusual.items():
        logger.info("  kept     %5d with a %s", count, label)
    for key, count in tables.unused.items():
        logger.info("  ignored  %5d times the key %r", count, key)


if __name__ == "__main__":
    run_stage(main)
