"""Questions and a simulated report for tests."""

from __future__ import annotations

from typing import Any

from eyas.acceptance import AcceptanceCounts
from eyas.engine.questions import Question


def question(dataset: str, number: int, answer: list[int], task: str | None = None) -> Question:
    return Question(
        sequence_id=f"{dataset}:{number}",
        dataset=dataset,
        task=task,
        prompt_ids=[ord(dataset[0]), number],
        answer_ids=answer,
    )


QUESTIONS = [
    question("a", 0, [5, 6, 7]),
    question("a", 1, [5, 6, 7, 8, 9]),
    question("b", 0, [1]),
    question("b", 1, [1, 2, 3, 4]),
]


def known_answers() -> dict[tuple[int, ...], list[int]]:
    return {tuple(each.prompt_ids): list(each.answer_ids) for each in QUESTIONS}


def simulated_entry(
    drafts: int, accepted_at: list[int], open_at: list[int] | None = None, greedy_share: float = 1.0
) -> dict[str, Any]:
    """An entry of reports/acceptance.json; of `open_at` more drafts a position lies behind the answer's end."""
    counts = AcceptanceCounts(drafts, list(accepted_at))
    most = AcceptanceCounts(
        drafts, [at + more for at, more in zip(accepted_at, open_at or [0] * len(accepted_at), strict=True)]
    )
    own = {
        **counts.report(),
        "at_most": most.acceptance(),
        "length_at_most": most.length,
        "interval": None,
    }
    return {**own, "greedy_share": greedy_share, "by_draft_tokens": {str(len(accepted_at)): own}}


def simulated(**entries: tuple[int, list[int]]) -> dict[str, Any]:
    """A reports/acceptance.json with drafts and accepted-at counts by dataset; the rest is their sum."""
    drafts = sum(entry[0] for entry in entries.values())
    accepted = [sum(column) for column in zip(*(entry[1] for entry in entries.values()), strict=True)]
    return {
        "draft_tokens": len(accepted),
        "datasets": {name: simulated_entry(*entry) for name, entry in entries.items()},
        "overall": simulated_entry(drafts, accepted),
    }
