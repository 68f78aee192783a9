"""Several drafters, several numbers of draft tokens: does real vLLM accept what the simulation says?

Takes target, held-out sequences and their hidden states of a finished run, and any drafters for that target (exported or
published folders). Simulates each drafter and serves it, once per number of draft tokens and once without; prints the rates
of both sides by dataset and position, their difference, and how many answers stayed the same.

    PYTHONPATH=src python benchmarks/agreement.py --drafter trained=models/export/vllm --draft-tokens 1 3 5
"""

from __future__ import annotations

import argparse
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl

from eyas import paths
from eyas.config import load_keys, load_section
from eyas.drafter.formats.reading import read_drafter
from eyas.drafter.model import Drafter
from eyas.drafter.rules import GreedyRule, SampledRule
from eyas.engine.asking import Asking
from eyas.engine.questions import Level, levels, read_questions
from eyas.engine.report import engine_report
from eyas.engine.run import Served, run_local
from eyas.evaluate.params import EvaluateParams
from eyas.evaluate.replay import replay
from eyas.evaluate.report import Simulation, acceptance_report, with_datasets
from eyas.sampling import Sampling
from eyas.serving.params import ServerParams
from eyas.shards import HiddenStore
from eyas.speculation import SpeculationParams
from eyas.target.model import TargetHead
from eyas.target.spec import TargetProfile


@dataclass(frozen=True)
class Setup:
    """What all drafters of one run share."""

    profile: TargetProfile
    head: TargetHead
    store: HiddenStore
    table: pl.DataFrame
    asked: list[Level]
    draft_tokens: list[int]

    @classmethod
    def read(cls, draft_tokens: Sequence[int], concurrency: int) -> Setup:
        profile = TargetProfile.read(paths.TARGET_PROFILE)
        return cls(
            profile=profile,
            head=TargetHead.read(paths.TARGET, profile, "float32"),
            store=HiddenStore(paths.hidden("eval")),
            table=pl.read_parquet(paths.sequences("eval")),
            asked=levels(read_questions(paths.sequences("eval")), [concurrency], 0),
            draft_tokens=sorted(draft_tokens),
        )

    def simulated(self, folder: Path) -> dict[str, Any]:
        """As reports/acceptance.json."""
        drafting = load_section("speculation", SpeculationParams).draft_sampling
        params = load_section("evaluate", EvaluateParams)
        sampling = load_keys("generate", ("dialect", "temperature", "top_p", "top_k"), Sampling)
        rule = GreedyRule() if sampling.greedy else SampledRule(self.head, sampling, drafting)
        read = read_drafter(folder, self.profile, self.head)
        drafter = Drafter(read.config)
        drafter.load_state_dict({name: tensor.float() for name, tensor in read.state.items()})
        most = self.draft_tokens[-1]
        rounds = replay(drafter.eval(), read.vocab, self.store, self.head.embedding, most, rule)
        replayed = with_datasets(rounds, self.table)
        return acceptance_report(Simulation.of(replayed, params, most, most, sampling, drafting))

    def measured(self, folder: Path, simulated: Mapping[str, Any]) -> dict[str, Any]:
        """As reports/engine.json."""
        drafting = load_section("speculation", SpeculationParams).draft_sampling
        asking = load_keys("generate", ("temperature", "top_p", "top_k", "max_tokens", "seed"), Asking)
        served = Served(
            target=paths.TARGET,
            name=self.profile.name,
            dtype=self.profile.dtype,
            drafter=folder,
            draft_tokens=self.draft_tokens[-1],
            draft_sampling=drafting,
            sweep=self.draft_tokens,
            trust_remote_code=self.profile.trust_remote_code,
        )
        runs = run_local(served, [self.asked], load_section("server", ServerParams), asking)
        return engine_report(runs, self.asked, simulated, self.profile.dtype, drafting)


def lines(name: str, report: Mapping[str, Any]) -> Iterator[str]:
    """Rows of a table: drafter, k, dataset, drafts, length of both sides, and rates and differences by position."""
    for k, entry in report["by_draft_tokens"].items():
        for dataset, rates in entry["datasets"].items():
            own, other = rates["in_answers"] or rates, rates["simulated"]
            at = [f"at_{place}" for place in range(1, int(k) + 1)]
            shown = " ".join(f"{own['acceptance'][key]:.4f}" for key in at)
            apart = " ".join(_percent(rates["difference"][key]) for key in at)
            lengths = f"{own['acceptance']['length']:.4f} | {other['acceptance']['length']:.4f}"
            yield f"| {name} | {k} | {dataset} | {own['drafts']} | {lengths} | {shown} | {apart} |"
        if same := entry["answers"]:
            yield f"  {name}, {k}: {same['identical']} of {same['answers']} answers as without a drafter"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:+.2%}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", type=Path, default=Path(), help="root of a finished run; default: here")
    parser.add_argument("--drafter", action="append", metavar="NAME=FOLDER", help="default: the run's export")
    parser.add_argument("--draft-tokens", type=int, nargs="+", default=[1, 3, 5])
    parser.add_argument("--concurrency", type=int, default=16)
    parser.add_argument("--out", type=Path, help="folder for the whole reports")
    given = parser.parse_args()
    named = given.drafter or [f"exported={given.run / paths.export('vllm')}"]
    drafters = {name: Path(folder).resolve() for name, _, folder in (each.partition("=") for each in named)}
    out = given.out.resolve() if given.out else None
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("httpx2").setLevel(logging.WARNING)  # a line per request
    os.chdir(given.run)
    setup = Setup.read(given.draft_tokens, given.concurrency)
    for name, folder in drafters.items():
        simulated = setup.simulated(folder)
        report = setup.measured(folder, simulated)
        print("\n".join(lines(name, report)), flush=True)
        if out:
            out.mkdir(parents=True, exist_ok=True)
            (out / f"{name}.json").write_text(
                json.dumps({"simulated": simulated, "engine": report}, indent=1)
            )


if __name__ == "__main__":
    main()
