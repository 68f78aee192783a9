"""The entries of the journal of answers: written as outcomes land, read back when a run is resumed.

An answer that lands before the gate has judged is kept under "unjudged". It also carries an "error", so that to the
journal it is no answer yet; the gate's verdict appends a later entry of the same key, and the last one counts.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from eyas.generate.failure import Kind, RowFailure, content, transient
from eyas.generate.gate import Outcome
from eyas.generate.linefacts import UNJUDGED
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.serving.endpoint import ModelInfo

_NOT_JUDGED_YET = transient(UNJUDGED, "the run ended before the first answers were judged")


def entry(outcome: Outcome, model: ModelInfo | None) -> dict[str, Any]:
    """The entry of an outcome. Who answered goes with the answer: servers change between runs."""
    head = _head(outcome.request)
    if outcome.answer is None:
        assert outcome.failure is not None
        return head | _error(outcome.failure) | _tail(outcome, model)
    return head | {"answer": outcome.answer.to_json()} | _tail(outcome, model)


def unjudged(outcome: Outcome, model: ModelInfo | None) -> dict[str, Any]:
    """The entry of an outcome that the gate has not judged yet. Failures need no verdict."""
    landed = entry(outcome, model)
    return landed if outcome.answer is None else landed | {"unjudged": True} | _error(_NOT_JUDGED_YET)


def judged(kept: Mapping[str, Any]) -> dict[str, Any]:
    """An unjudged entry as an answer that counts."""
    return {name: value for name, value in kept.items() if name not in ("unjudged", "error")}


def rejected(request: ChatRequest, verdict: str) -> dict[str, Any]:
    """Takes the place of an unjudged entry that must never be used; its prompt is asked again."""
    return _head(request) | _error(content("gate", verdict)) | {"at": time.time()}


def held(request: ChatRequest, kept: Mapping[str, Any] | None) -> Outcome | None:
    """The answer to a request that an earlier run kept in this entry and did not come to judge."""
    if kept is None or not kept.get("unjudged"):
        return None
    answer = Answer.from_json(kept["answer"])
    return Outcome(request, answer, None, kept["seconds"], kept["attempts"], kept["server"]["url"])


def settled(kept: Mapping[str, Any] | None) -> bool:
    """Whether this entry says that a server refuses the request for good: it is not asked again."""
    return kept is not None and kept["error"]["kind"] == Kind.PERMANENT


def _head(request: ChatRequest) -> dict[str, Any]:
    return {"key": request.key, "sample_id": request.sample_id, "turn": request.turn}


def _error(failure: RowFailure) -> dict[str, Any]:
    return {"error": {"kind": failure.kind, "reason": failure.reason, "detail": failure.detail}}


def _tail(outcome: Outcome, model: ModelInfo | None) -> dict[str, Any]:
    """Behind the answer, in this order: `eyas status` reads the end of a line without parsing it."""
    server = {
        "url": outcome.url,
        "version": None if model is None else model.version,
        "max_model_len": None if model is None else model.max_model_len,
    }
    return {
        "server": server,
        "seconds": outcome.seconds,
        "attempts": outcome.attempts,
        "at": time.time(),
    }
