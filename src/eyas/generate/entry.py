"""The entries of the journal of answers: written as outcomes land, read back when a run is resumed.

A first answer that lands before the gate has judged is kept under "unjudged". It also carries an "error", so that
to the journal it is no answer yet; the gate's verdict appends a later entry of the same key, and the last one counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eyas.generate.failure import RowFailure, content, transient
from eyas.generate.gate import Outcome
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.journal import Journal
from eyas.serving.endpoint import ModelInfo

_NOT_JUDGED_YET = transient("unjudged", "the run ended before the first answers were judged")


def entry(outcome: Outcome, model: ModelInfo) -> dict[str, Any]:
    """The entry of an outcome. Who answered goes with the answer: servers change between runs."""
    head = _head(outcome.request)
    if outcome.answer is None:
        assert outcome.failure is not None
        return head | _error(outcome.failure)
    return head | {
        "answer": outcome.answer.to_json(),
        "server": {"version": model.version, "max_model_len": model.max_model_len},
        "seconds": outcome.seconds,
        "attempts": outcome.attempts,
    }


def unjudged(outcome: Outcome, model: ModelInfo) -> dict[str, Any]:
    """The entry of an outcome of the first batch, before the batch is judged. Failures need no verdict."""
    landed = entry(outcome, model)
    return landed if outcome.answer is None else landed | {"unjudged": True} | _error(_NOT_JUDGED_YET)


def judged(kept: dict[str, Any]) -> dict[str, Any]:
    """An unjudged entry as an answer that counts."""
    return {name: value for name, value in kept.items() if name not in ("unjudged", "error")}


def rejected(request: ChatRequest, verdict: str) -> dict[str, Any]:
    """Takes the place of an unjudged entry that must never be used; its prompt is asked again."""
    return _head(request) | _error(content("gate", verdict))


def held(journal: Journal, requests: Sequence[ChatRequest]) -> list[Outcome]:
    """Answers to these requests that an earlier run kept and did not come to judge."""
    found = [(request, journal.error(request.key)) for request in requests]
    return [
        Outcome(request, Answer.from_json(kept["answer"]), None, kept["seconds"], kept["attempts"])
        for request, kept in found
        if kept is not None and kept.get("unjudged")
    ]


def _head(request: ChatRequest) -> dict[str, Any]:
    return {"key": request.key, "sample_id": request.sample_id}


def _error(failure: RowFailure) -> dict[str, Any]:
    return {"error": {"kind": failure.kind, "reason": failure.reason, "detail": failure.detail}}
