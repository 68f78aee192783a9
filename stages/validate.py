"""Judge the responses of one dataset: valid rows, quarantined rows, a report, and gates that stop bad data."""

from __future__ import annotations

import json
import logging

from eyas import paths
from eyas.config import load_section
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import dataset_argument, run_stage
from eyas.schema import Prompts, Quarantined, Validated, check
from eyas.tables import TEMPLATE_KWARGS, read_table, write_table
from eyas.target.spec import TargetProfile
from eyas.validate.judgement import check_set, check_shares, judge, table_of_rules
from eyas.validate.params import ValidateParams
from eyas.validate.report import validation_report
from eyas.validate.responses import (
    errors_path,
    read_failed_ids,
    read_responses,
    read_template_kwargs,
    unknown_keys,
)
from eyas.validate.rules import rules as all_rules

logger = logging.getLogger("eyas.validate")


def main() -> None:
    name = dataset_argument()
    params = load_section("validate", ValidateParams)
    guard = Guard.start("validate")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    template_kwargs = read_template_kwargs(paths.server_profile(name))
    prompts = read_table(paths.prompts(name), Prompts)
    responses = read_responses(paths.raw_responses(name))
    failed = read_failed_ids(errors_path(name))
    check_set(prompts["sample_id"], responses["sample_id"], failed)

    rules = all_rules(profile, params, default_template=not template_kwargs)
    judgement = judge(responses, prompts, rules, profile)
    check(Quarantined, judgement.quarantined, "quarantined rows")
    write_table(paths.quarantine(name), judgement.quarantined)  # before the gates: a failure must be seen
    check_shares(judgement, params, str(paths.quarantine(name)))
    check(Validated, judgement.validated, "validated rows")
    report = validation_report(judgement, rules, len(failed), unknown_keys(paths.raw_responses(name)))
    guard.check()
    write_table(
        paths.validated(name),
        judgement.validated,
        {TEMPLATE_KWARGS: json.dumps(template_kwargs, sort_keys=True)},
    )
    write_report(paths.validation_report(name), report)
    logger.info(
        "%s: %d valid, %d quarantined, %d failed%s",
        name,
        judgement.validated.height,
        judgement.quarantined.height,
        len(failed),
        table_of_rules(judgement.quarantined),
    )


if __name__ == "__main__":
    run_stage(main)
