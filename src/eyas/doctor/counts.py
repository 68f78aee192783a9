"""What an engine counted: from a report of the engine stage, from numbers of its log, or from a running server."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from eyas.acceptance import AcceptanceCounts
from eyas.doctor.diagnosis import EngineCounts
from eyas.errors import ArtifactError, InputError, ServerError
from eyas.serving.endpoint import read_metrics

DRAFTS = "vllm:spec_decode_num_drafts_total"
ACCEPTED_AT = 'vllm:spec_decode_num_accepted_tokens_per_pos_total{position="%d"}'


def of_report(path: Path, dataset: str | None) -> EngineCounts:
    """An entry of reports/engine.json; the answers it counts are the stored ones if it says that they are the same.

    Counts that were cut at the end of each answer are preferred: a simulation knows nothing behind it.

    Raises:
        ArtifactError: no such report or dataset, or nothing was counted.
    """
    try:
        report: dict[str, Any] = json.loads(path.read_bytes())
        entry = report["overall"] if dataset is None else report["datasets"][dataset]
        same = report["answers"]["with_drafter_as_stored"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ArtifactError(
            f"the engine's report can't be read: {error!r}", where=str(path), hint="run `dvc repro engine`"
        ) from error
    entry = entry.get("in_answers") or entry
    if not entry.get("drafts"):
        raise ArtifactError("the engine's report counts no drafts", where=str(path))
    steps = len([key for key in entry["acceptance"] if key.startswith("at_")])
    shares = [entry["acceptance"][f"at_{place}"] or 0.0 for place in range(1, steps + 1)]
    accepted = entry.get("accepted_at") or [share * entry["drafts"] for share in shares]
    counts = AcceptanceCounts(entry["drafts"], [float(round(each)) for each in accepted])
    return EngineCounts(counts, same_answers=bool(same) and same["identical"] == same["answers"])


def of_numbers(accepted_at: Sequence[float], drafts: int) -> EngineCounts:
    """Rates of an engine's log (vLLM: "Per-position acceptance rate"), or counts, over so many drafts.

    Raises:
        InputError: they are no shares of drafts that fall from position to position.
    """
    scale = drafts if accepted_at and max(accepted_at) <= 1 else 1
    counts = [float(round(each * scale)) for each in accepted_at]
    falling = [float(drafts), *counts]
    if drafts < 1 or not counts or counts[-1] < 0 or falling != sorted(falling, reverse=True):
        raise InputError(
            f"--accepted-at {', '.join(f'{each:g}' for each in accepted_at)} of {drafts} drafts makes no sense",
            hint="give, for each position, the share of all drafts that were accepted up to it: 0.61,0.41,0.28",
        )
    return EngineCounts(AcceptanceCounts(drafts, counts), same_answers=False)


def of_server(url: str) -> EngineCounts:
    """All that a running vLLM has counted since it started.

    Raises:
        ServerError: it can't be reached, or counts no drafts.
    """
    values = read_metrics(url)
    drafts = int(values.get(DRAFTS, 0))
    accepted = [values[key] for place in range(len(values)) if (key := ACCEPTED_AT % place) in values]
    if not drafts:
        raise ServerError(
            "the server has counted no drafts",
            where=url,
            hint="is it vLLM with a speculative config, and was it asked anything?",
        )
    return EngineCounts(AcceptanceCounts(drafts, accepted), same_answers=False)
