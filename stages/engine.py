"""Serves the target in a real engine, without and with the drafter: same tokens, acceptance, speed."""

import logging

from eyas import paths
from eyas.config import load_keys, load_section
from eyas.engine.asking import Asking
from eyas.engine.external import run_external
from eyas.engine.gate import Limits, gate
from eyas.engine.params import EngineParams
from eyas.engine.questions import dealt, levels, read_questions
from eyas.engine.report import engine_report
from eyas.engine.run import Served, run_local
from eyas.engine.speed import speed_report
from eyas.engine.summary import summary
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.reports import read_report
from eyas.serving.endpoint import external_base_urls
from eyas.serving.params import ServerParams
from eyas.speculation import SpeculationParams
from eyas.target.spec import TargetProfile

logger = logging.getLogger("eyas.engine")


def main() -> None:
    speculation = load_section("speculation", SpeculationParams)
    params = load_section("engine", EngineParams)
    asking = load_keys("generate", ("temperature", "top_p", "top_k", "max_tokens", "seed"), Asking)
    server = load_section("server", ServerParams)
    guard = Guard.start(
        "speculation",
        "engine",
        "generate.temperature",
        "generate.top_p",
        "generate.top_k",
        "generate.max_tokens",
        "generate.seed",
    )
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    simulated = read_report(paths.REPORTS / "acceptance.json", "dvc repro evaluate")
    asked = levels(
        read_questions(paths.sequences("eval")), params.concurrency, params.prompts_at_concurrency_1
    )
    rounds = dealt(asked, params.rounds)
    if base_urls := external_base_urls():
        runs = run_external(base_urls, profile.name, rounds, server, asking)
    else:
        served = Served(
            target=paths.TARGET,
            name=profile.name,
            dtype=profile.dtype,
            drafter=paths.export("vllm"),
            draft_tokens=speculation.draft_tokens,
            draft_sampling=speculation.draft_sampling,
            sweep=params.sweep or (),
            trust_remote_code=profile.trust_remote_code,
        )
        runs = run_local(served, rounds, server, asking)
    reports = {
        "engine": engine_report(runs, asked, simulated, profile.dtype, speculation.draft_sampling),
        "speed": speed_report(runs, asked),
    }
    for line in summary(reports["engine"], reports["speed"]):
        logger.info("%s", line)
    limits = Limits(params.max_disagreement, params.max_sampled_disagreement)
    gate(reports, limits, paths.logs() / "engine-report.json", fails=not runs.external)
    guard.check()
    for name, report in reports.items():
        write_report(paths.REPORTS / f"{name}.json", report)


if __name__ == "__main__":
    run_stage(main)
