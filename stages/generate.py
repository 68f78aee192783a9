"""Ask the target all prompts of one dataset: data/prompts/X.parquet -> data/responses/X."""

from __future__ import annotations

from eyas import paths
from eyas.config import load_section
from eyas.generate.params import GenerateParams
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from eyas.hashing import Guard
from eyas.process import dataset_argument, run_stage
from eyas.serving.params import ServerParams
from eyas.target.spec import TargetProfile


def main() -> None:
    dataset = dataset_argument()
    params = load_section("generate", GenerateParams)
    server = load_section("server", ServerParams)
    guard = Guard.start("generate")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    table = PromptTable.read(paths.prompts(dataset), dataset)
    with open_journal(dataset, profile, params) as journal:
        with Session(dataset, profile, params, server) as session:
            responses = session.answer(table, journal)
            session.answer_ahead()
        guard.check()
        done = responses.publish(paths.responses(dataset))
    print(
        f"{dataset}: {done.rows} answers, {done.tokens} tokens, {done.truncated} truncated, {done.failed} failed"
        + (f", {done.ended} not asked" if done.ended else "")
    )


if __name__ == "__main__":
    run_stage(main)
