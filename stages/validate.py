"""Judge the responses of one dataset: valid rows, quarantined rows, a report, and gates that stop bad data."""

from __future__ import annotations

import json
import logging
from concurrent.futures import ThreadPoolExecutor, wait

from eyas import paths
from eyas.allocator import collect_rarely, keep_freed_memory
from eyas.config import load_section
from eyas.files import atomic_file
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import dataset_argument, run_stage
from eyas.tables import TEMPLATE_KWARGS
from eyas.target.spec import TargetProfile
from eyas.target.template import load_tokenizer
from eyas.validate.comparison import compare_with_texts
from eyas.validate.gates import check_shares, table_of_rules
from eyas.validate.params import ValidateParams
from eyas.validate.passage import Passage
from eyas.validate.report import validation_report
from eyas.validate.responses import errors_path, read_failed, read_server_notes, unknown_keys
from eyas.validate.rules import rules as all_rules
from eyas.validate.turns import check_set, read_asked, to_generate

logger = logging.getLogger("eyas.validate")


def main() -> None:
    keep_freed_memory()  # batches of the same size follow one another
    collect_rarely()
    name = dataset_argument()
    params = load_section("validate", ValidateParams)
    guard = Guard.start("validate")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    notes = read_server_notes(paths.server_profile(name))
    asked = read_asked(paths.prompts(name))
    failed = read_failed(errors_path(name))
    rules = all_rules(profile, params, notes)
    passage = Passage(paths.raw_responses(name), asked, rules, profile, params.text_sample)
    template_kwargs = json.dumps(notes.template_kwargs, sort_keys=True)

    with ThreadPoolExecutor(1) as meanwhile, atomic_file(paths.validated(name)) as validated:
        unknown = meanwhile.submit(unknown_keys, paths.raw_responses(name))
        loading = []
        if params.text_sample and not notes.text_only:  # it keeps one core busy for a second
            loading.append(
                meanwhile.submit(load_tokenizer, paths.TARGET, trust_remote_code=profile.trust_remote_code)
            )
        passage.write_validated(validated, {TEMPLATE_KWARGS: template_kwargs})
        ledger = passage.ledger
        check_set(to_generate(asked), ledger, failed)
        with atomic_file(paths.quarantine(name)) as quarantined:  # before the gates: a failure must be seen
            passage.write_quarantined(quarantined)
        wait(loading)  # an error comes where the tokenizer is used
        comparison = compare_with_texts(passage.sample, paths.TARGET, profile)
        check_shares(name, ledger, comparison, params)
        report = validation_report(ledger, rules, failed, comparison, unknown.result())
        guard.check()
    write_report(paths.validation_report(name), report)
    logger.info(
        "%s: %d valid, %d quarantined, %d failed%s",
        name,
        report["validated"],
        report["quarantined"],
        report["failed"],
        table_of_rules(ledger),
    )


if __name__ == "__main__":
    run_stage(main)
