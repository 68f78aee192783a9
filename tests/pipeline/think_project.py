"""Projects in which the think model is the target; the generate stage's work is done in them, and later stages run."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml

from eyas import paths
from eyas.freshness import inputs_digest
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from eyas.schema import Prompts, Validated, columns_of
from eyas.tables import INPUTS, TEMPLATE_KWARGS, write_table
from tests.generate.example import GENERATE, generate_params
from tests.serving.example import server_params
from tests.tiny_target import profile_of

Message = dict[str, Any]

NAME = paths.TARGET.name
"""Under which the target of these projects is served."""
DATASET = "d"
UNASKED = "e"
"""There must be a dataset to evaluate on; this one is never asked."""
ROOT = Path(__file__).parents[2]
STAGES: dict[str, dict[str, Any]] = {
    "validate": {
        "min_tokens": 2,
        "expect_reasoning": True,
        "allow_repeated_markers": True,
        "text_sample": 64,
        "max_quarantined_share": 0.5,
        "max_truncated_share": 1.0,
        "max_unreasoned_share": 0.5,
        "max_short_share": 0.0,
        "max_text_difference_share": 0.0,
    },
    "reassemble": {"val_share": 0.2, "max_length": 512, "keep_truncated": True, "source": "text"},
}
"""Params of the stages behind generate. `text`: where ids are missing, which must not happen."""


def user(text: str) -> Message:
    return {"role": "user", "content": text}


def create(
    folder: Path, model: Path, conversations: Sequence[Sequence[Message]], *, prefilled: bool = False
) -> Path:
    """A project with one dataset. The working directory must be set to it before anything else is done.

    `prefilled`: of a target whose prompts always end with the opening think marker.
    """
    target = folder / paths.TARGET
    shutil.copytree(model, target, copy_function=os.link)
    if prefilled:
        template = target / "chat_template.jinja"
        text = template.read_text()
        template.unlink()
        template.write_text("{% set prefill = true %}" + text)
    datasets = {
        name: {"source": "jsonl", "role": role, "path": f"{name}.jsonl"}
        for name, role in ((DATASET, "train"), (UNASKED, "eval"))
    }
    params = {"datasets": datasets, "prompts": {}, "generate": GENERATE, **STAGES}
    (folder / "params.yaml").write_text(yaml.safe_dump(params))
    _write_prompts(folder, conversations)
    return folder


def answer(base_url: str, **params: Any) -> list[dict[str, Any]]:
    """Rows of raw_responses.jsonl, asked in the working directory and in the order of the prompts."""
    changed = generate_params(**{"max_tokens": 40, "expect_reasoning": True, **params})
    profile = profile_of(paths.TARGET, dtype="float32")
    with pytest.MonkeyPatch.context() as patch, open_journal(DATASET, profile, changed) as journal:
        patch.setenv("OPENAI_BASE_URL", base_url)
        with Session(DATASET, profile, changed, server_params(concurrency=8)) as session:
            responses = session.answer(PromptTable.read(paths.prompts(DATASET), DATASET), journal)
        responses.publish(paths.responses(DATASET))
    return [json.loads(line) for line in paths.raw_responses(DATASET).read_bytes().splitlines()]


def reassemble() -> pl.DataFrame:
    """Run validate and reassemble on the working directory's answers; the sequences of all splits, sorted."""
    profile_of(paths.TARGET, dtype="float32").write(paths.TARGET_PROFILE)
    write_table(paths.validated(UNASKED), pl.DataFrame(schema=columns_of(Validated)), {TEMPLATE_KWARGS: "{}"})
    for stage, *arguments in (("validate", DATASET), ("reassemble",)):
        command = [sys.executable, str(ROOT / "stages" / f"{stage}.py"), *arguments]
        finished = subprocess.run(command, capture_output=True, text=True, check=False)
        assert finished.returncode == 0, finished.stderr
    both = [pl.read_parquet(paths.sequences(split)) for split in paths.SPLITS]
    return pl.concat(both).sort("sample_id", "turn")


def reassembly_report() -> dict[str, Any]:
    """The reports/reassembly.json of the working directory."""
    found: dict[str, Any] = json.loads(paths.REASSEMBLY_REPORT.read_bytes())
    return found


def server_profile() -> dict[str, Any]:
    """The server_profile.json of the working directory's dataset."""
    found: dict[str, Any] = json.loads(paths.server_profile(DATASET).read_bytes())
    return found


def _write_prompts(folder: Path, conversations: Sequence[Sequence[Message]]) -> None:
    absent = {"content": None, "reasoning": None, "tool_calls": None, "tool_call_id": None}
    rows = [
        {
            "sample_id": f"{DATASET}:{number:04}",
            "dataset": DATASET,
            "messages": [absent | message for message in messages],
            "tools": None,
            "prompt_hash": f"{number:064x}",
            "task": None,
        }
        for number, messages in enumerate(conversations)
    ]
    path = folder / paths.prompts(DATASET)
    path.parent.mkdir(parents=True)
    metadata = {INPUTS: inputs_digest(folder / "params.yaml")}
    pl.DataFrame(rows, schema=columns_of(Prompts)).write_parquet(path, metadata=metadata)
