"""Whole runs over dataset a in tests: ask, publish, look at what came out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from eyas import paths
from eyas.generate.publish import Published
from eyas.generate.session import Session, open_journal
from eyas.generate.table import PromptTable
from tests.generate.example import generate_params, profile
from tests.generate.scripted import Scripted, completion
from tests.serving.example import server_params

PROMPTS = [f"question {index:03}" for index in range(200)]


def generate(server: dict[str, Any] | None = None, **changes: Any) -> Published:
    """Run the stage's steps for dataset a."""
    params = generate_params(**changes)
    table = PromptTable.read(paths.prompts("a"), "a")
    with open_journal("a", profile(), params) as journal:
        with Session(
            "a", profile(), params, server_params(**{"max_attempts": 1, **(server or {})})
        ) as session:
            responses = session.answer(table, journal)
        return responses.publish(paths.responses("a"))


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_bytes().splitlines()]


def rows() -> list[dict[str, Any]]:
    return lines(paths.raw_responses("a"))


def errors() -> list[dict[str, Any]]:
    return lines(paths.responses("a") / "errors.jsonl")


def journal_lines(**changes: Any) -> list[dict[str, Any]]:
    with open_journal("a", profile(), generate_params(**changes)) as journal:
        return lines(journal.rows_path)


def refuse(prompt: str, reason: str) -> Scripted:
    return {
        "context_length": Scripted(
            {"error": {"message": "maximum context length is 512", "code": 400}}, status=400
        ),
        "http_400": Scripted({"error": {"message": "no"}}, status=400),
        "http_500": Scripted({"error": {"message": "boom"}}, status=500),
        "finish_reason": Scripted(completion(prompt, finish_reason="repetition")),
    }[reason]
