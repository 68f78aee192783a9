"""How an answer ended: finish and stop reasons of all servers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from eyas.answers import FINISH_REASONS
from eyas.generate.failure import RowFailure, content, error_failure, transient

_BROKEN = ("abort", "error")


def finish_reason(reason: Any) -> str:
    """The finish reason of an answer: a word, or SGLang's object with `type`.

    Raises:
        RowFailure: there is none yet, the server broke off, or it is none of FINISH_REASONS.
    """
    name = reason.get("type") if isinstance(reason, Mapping) else reason
    if name in FINISH_REASONS:
        return str(name)
    if name is None:
        raise transient("unfinished", "the reply has no finish reason")
    if name in _BROKEN:
        raise _broken(str(name), reason)
    raise content("finish_reason", f"unexpected finish reason {reason!r}")


def stop_reason(value: Any, end_of_turn_ids: Collection[int]) -> int | str | None:
    """What stopped the answer, None for an end-of-turn id. vLLM is silent about the eos id, SGLang names it.

    Raises:
        RowFailure: the model's output was no number (SGLang says so in the place of a stop string), or the value is
            neither id nor text.
    """
    if value is None or (isinstance(value, int) and value in end_of_turn_ids):
        return None
    if value == "NaN happened":
        raise transient("nan", "the server's model computed NaN")
    if isinstance(value, int | str) and not isinstance(value, bool):
        return value
    raise content("stop_reason", f"unexpected stop reason {value!r}")


def _broken(name: str, reason: Any) -> RowFailure:
    """Aborts pass, unless the server says with them that the request itself is wrong (radixark/miles#3337)."""
    if isinstance(reason, Mapping):
        failure = error_failure(reason, None)
        if failure.status is not None and failure.status < 500:
            return failure
        stopped = transient(name, f"the server broke off: {failure.detail}")
        stopped.status = failure.status
        return stopped
    return transient(name, f"the server ended the answer with finish reason {name!r}")
