"""The real engine against the simulation, and what of it fails the stage."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eyas.acceptance import AcceptanceCounts
from eyas.errors import ArtifactError, GateError
from eyas.metrics import write_report

logger = logging.getLogger(__name__)

MIN_DRAFTS = 500
"""Fewer say too little: over 500 drafts a rate of 0.4 has a standard error of 0.02, so 5 % of itself."""

MIN_GREEDY_SHARE = 0.9
"""With fewer tokens that are the target's argmax, the stored answers were sampled: the simulation is a lower bound."""


def read_simulation(path: Path) -> dict[str, Any]:
    """The contents of reports/acceptance.json.

    Raises:
        ArtifactError: it is missing or no JSON.
    """
    try:
        report: dict[str, Any] = json.loads(path.read_text())
    except (FileNotFoundError, ValueError) as error:
        raise ArtifactError(
            f"can't read the simulated acceptance: {error}", where=str(path), hint="run `dvc repro evaluate`"
        ) from error
    return report


def differences(measured: AcceptanceCounts, simulated: Mapping[str, Any]) -> dict[str, float | None]:
    """Relative difference (measured - simulated) / simulated of the acceptance length and of each position's rate.

    A position is None unless both sides counted MIN_DRAFTS drafts and the simulation accepted something there.

    Args:
        measured: counts of the engine.
        simulated: an entry of reports/acceptance.json.
    """
    rates = simulated["acceptance"]
    enough = min(measured.drafts, simulated["drafts"]) >= MIN_DRAFTS
    result = {"length": _relative(measured.length, rates["length"])}
    for position, rate in enumerate(measured.rates, start=1):
        result[f"at_{position}"] = _relative(rate, rates.get(f"at_{position}")) if enough else None
    return result


def find_faults(report: Mapping[str, Any], max_disagreement: float) -> list[str]:
    """Why the engine's report must fail the stage, one sentence each; empty if it must not.

    Only fp32 answers must be the same with and without drafter: in 16 bits, a batch of another shape may round a
    near tie the other way.

    Args:
        report: contents of reports/engine.json.
        max_disagreement: of the acceptance length, relative; judged where MIN_DRAFTS drafts were counted. Drafted
            tokens behind the end of an answer may count as accepted in the engine, never in the simulation.
    """
    faults = []
    answers = report["answers"]["with_drafter_as_without"]
    if report["dtype"] == "float32" and answers is not None and answers["identical"] < answers["answers"]:
        first = answers["first_difference"]
        faults.append(
            f"{answers['answers'] - answers['identical']} of {answers['answers']} answers change with the drafter, "
            f"first {first['sequence_id']} at token {first['position']}: {first['expected']} without, "
            f"{first['found']} with it"
        )
    for name, entry in [*report["datasets"].items(), ("all datasets", report["overall"])]:
        measured, simulated = entry["acceptance"]["length"], entry["simulated"]
        if judged(entry):
            beyond = max(measured - simulated["length_at_most"], simulated["length"] - measured)
            if beyond > max_disagreement * simulated["length"]:
                faults.append(
                    f"{name}: acceptance length {measured:.3f} in the engine, {simulated['length']:.3f} simulated, "
                    f"{entry['difference']['length']:+.1%}"
                )
    return faults


def judged(entry: Mapping[str, Any]) -> bool:
    """Whether an entry of reports/engine.json says enough to compare it with the simulation."""
    simulated = entry["simulated"]
    enough = min(entry["drafts"] or 0, simulated["drafts"]) >= MIN_DRAFTS
    greedy = (simulated["greedy_share"] or 0) >= MIN_GREEDY_SHARE
    return enough and greedy and entry["difference"]["length"] is not None


def gate(
    reports: Mapping[str, Mapping[str, Any]], max_disagreement: float, keep_at: Path, *, fails: bool
) -> None:
    """Stop on a fault, keeping the reports: a failed stage publishes nothing.

    Args:
        reports: "engine" and "speed".
        max_disagreement: see find_faults.
        keep_at: file for the reports of a failed run.
        fails: whether a fault stops the stage or is only said aloud.

    Raises:
        GateError: there is a fault.
    """
    for name, entry in [
        *reports["engine"]["datasets"].items(),
        ("all datasets", reports["engine"]["overall"]),
    ]:
        if not judged(entry):
            logger.warning(
                "%s: engine and simulation are not compared: that needs %d drafts on each side (%s and %d here) and "
                "greedily generated answers",
                name,
                MIN_DRAFTS,
                entry["drafts"],
                entry["simulated"]["drafts"],
            )
    faults = find_faults(reports["engine"], max_disagreement)
    for fault in faults:
        logger.warning("%s", fault)
    if faults and fails:
        write_report(keep_at, reports)
        raise GateError(
            "; ".join(faults),
            where=str(keep_at),
            hint="is it the drafter or the integration? compare both sides there, dataset by dataset",
        )


def _relative(measured: float | None, simulated: float | None) -> float | None:
    """Rounded: the rates of a report have six digits, so more would be noise."""
    return round((measured - simulated) / simulated, 5) if measured is not None and simulated else None
