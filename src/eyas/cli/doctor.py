"""`eyas doctor drafter DIR`: why a drafter is accepted less than it was trained to be."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from eyas import paths
from eyas.errors import InputError

if TYPE_CHECKING:
    from eyas.doctor.diagnosis import EngineCounts

DRAFT_TOKENS = 3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("what", choices=["drafter"], help="what to examine")
    parser.add_argument(
        "directory", type=Path, help="the drafter's folder: vLLM's, SGLang's or speculators' format"
    )
    parser.add_argument("--target", type=Path, default=paths.TARGET, help="the target's folder (%(default)s)")
    parser.add_argument(
        "--hidden", type=Path, default=paths.hidden("eval"),
        help="store of held-out answers, on which acceptance is simulated (%(default)s)",
    )  # fmt: skip
    parser.add_argument(
        "--learned", type=Path,
        help="store of the answers that the drafter was trained on (beside --hidden: train, if it is there)",
    )  # fmt: skip
    parser.add_argument(
        "--trained", type=Path,
        help="drafter.safetensors that training wrote: the folder's tensors must be those",
    )  # fmt: skip
    parser.add_argument("--dataset", help="only held-out answers of this dataset, and its entry in --report")
    parser.add_argument(
        "--engine", choices=["vllm", "sglang"], default="vllm", help="whose rules (%(default)s)"
    )
    parser.add_argument(
        "--draft-tokens", type=int, help=f"tokens per draft (the engine's, else {DRAFT_TOKENS})"
    )
    counted = parser.add_mutually_exclusive_group()
    counted.add_argument("--report", type=Path, help="reports/engine.json of the engine stage")
    counted.add_argument(
        "--accepted-at", metavar="RATES", help="of an engine's log, by position: 0.61,0.41,0.28"
    )
    counted.add_argument("--metrics-url", help="address of a running vLLM, whose counters are read")
    parser.add_argument("--drafts", type=int, help="with --accepted-at: how many drafts were counted")
    parser.add_argument(
        "--trust-remote-code", action="store_true", help="run Python code of the target's folder"
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON object")


def run(arguments: argparse.Namespace) -> int:
    """Print the diagnosis; returns the exit code: 0 no fault, 1 a cause was found.

    Raises:
        InputError: an argument makes no sense.
        ArtifactError: the folder, the target or a store can't be read.
    """
    from eyas.doctor.diagnosis import diagnose
    from eyas.doctor.material import read_material
    from eyas.doctor.view import as_json, view
    from eyas.shards import HiddenStore

    counted = _counted(arguments)
    beside = arguments.hidden.parent / "train"
    held_out = HiddenStore(arguments.hidden)
    learned = arguments.learned or (beside if beside.exists() else arguments.hidden)
    material = read_material(
        arguments.directory,
        arguments.target,
        held_out,
        HiddenStore(learned),
        engine=arguments.engine,
        steps=_steps(arguments, counted),
        wanted=_of_dataset(arguments.dataset),
        trained=arguments.trained,
        trust_remote_code=arguments.trust_remote_code,
    )
    diagnosis = diagnose(material, arguments.engine, counted)
    if arguments.json:
        print(json.dumps(as_json(diagnosis), indent=2))
    else:
        Console().print(view(diagnosis))
    return 1 if diagnosis.suspects else 0


def _counted(arguments: argparse.Namespace) -> EngineCounts | None:
    from eyas.doctor.counts import of_numbers, of_report, of_server

    if arguments.report is not None:
        return of_report(arguments.report, arguments.dataset)
    if arguments.metrics_url is not None:
        return of_server(arguments.metrics_url)
    if arguments.accepted_at is None:
        return None
    if arguments.drafts is None:
        raise InputError(
            "--accepted-at needs --drafts N", hint="a rate says nothing without its number of drafts"
        )
    try:
        rates = [float(part) for part in arguments.accepted_at.split(",")]
    except ValueError as error:
        raise InputError(
            f"--accepted-at: {error}", hint="numbers separated by commas: 0.61,0.41,0.28"
        ) from error
    return of_numbers(rates, arguments.drafts)


def _steps(arguments: argparse.Namespace, counted: EngineCounts | None) -> int:
    steps: int = arguments.draft_tokens or (len(counted.counts.accepted_at) if counted else DRAFT_TOKENS)
    if steps < 1 or (counted is not None and steps != len(counted.counts.accepted_at)):
        raise InputError(
            f"--draft-tokens {steps}, but the engine's counts have another number of positions",
            hint="leave --draft-tokens out",
        )
    return steps


def _of_dataset(dataset: str | None) -> Callable[[str], bool]:
    return lambda sequence_id: dataset is None or sequence_id.startswith(f"{dataset}:")
