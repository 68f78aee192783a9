"""Projects in which the think model is the target, and the generate stage's work done in them."""

from __future__ import annotations

import json
import os
import shutil
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
from eyas.schema import Prompts, columns_of
from eyas.tables import INPUTS
from tests.generate.example import GENERATE, generate_params
from tests.serving.example import server_params
from tests.tiny_target import profile_of

Message = dict[str, Any]

NAME = paths.TARGET.name
"""Under which the target of these projects is served."""
DATASET = "d"


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
    datasets = {DATASET: {"source": "jsonl", "role": "train", "path": "d.jsonl"}}
    params = {"datasets": datasets, "prompts": {}, "generate": GENERATE}
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
