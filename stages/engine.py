"""Serves the target in a real engine, without and with the drafter: same tokens, acceptance, speed."""

from eyas import paths
from eyas.config import load_section
from eyas.engine.agreement import gate, read_simulation
from eyas.engine.params import EngineParams
from eyas.engine.questions import levels, read_questions
from eyas.engine.report import engine_report, speed_report
from eyas.engine.run import Served, run_external, run_local
from eyas.hashing import Guard
from eyas.metrics import write_report
from eyas.process import run_stage
from eyas.serving.endpoint import external_base_url
from eyas.serving.params import ServerParams
from eyas.speculation import SpeculationParams
from eyas.target.spec import TargetProfile


def main() -> None:
    speculation = load_section("speculation", SpeculationParams)
    params = load_section("engine", EngineParams)
    server = load_section("server", ServerParams)
    guard = Guard.start("speculation", "engine")
    profile = TargetProfile.read(paths.TARGET_PROFILE)
    simulated = read_simulation(paths.REPORTS / "acceptance.json")
    asked = levels(
        read_questions(paths.sequences("eval")), params.concurrency, params.prompts_at_concurrency_1
    )
    if base_url := external_base_url():
        runs = run_external(base_url, profile.name, asked, server)
    else:
        served = Served(
            target=paths.TARGET,
            name=profile.name,
            dtype=profile.dtype,
            drafter=paths.export("vllm"),
            draft_tokens=speculation.draft_tokens,
            trust_remote_code=profile.trust_remote_code,
        )
        runs = run_local(served, asked, server)
    reports = {
        "engine": engine_report(runs, asked, simulated, profile.dtype),
        "speed": speed_report(runs, asked),
    }
    gate(reports, params.max_disagreement, paths.logs() / "engine-report.json", fails=not runs.external)
    guard.check()
    for name, report in reports.items():
        write_report(paths.REPORTS / f"{name}.json", report)


if __name__ == "__main__":
    run_stage(main)
