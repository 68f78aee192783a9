"""Why a row has no answer, and which of a server's errors are worth another try."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from eyas.errors import printable


class Kind(StrEnum):
    """What to do about a failure."""

    TRANSIENT = "transient"
    """The same request may succeed: try again."""
    PERMANENT = "permanent"
    """The server refuses this request: never again in this run."""
    CONTENT = "content"
    """An answer came and can't be used: asking again gives the same."""


@dataclass
class RowFailure(Exception):
    """One row failed. Stays inside `generate`: it ends as a line of errors.jsonl, never as a traceback."""

    kind: Kind
    reason: str
    """A word for counting, for example `abort`."""
    detail: str
    retry_after_s: float | None = None
    """How long the server asks to be left alone."""
    status: int | None = None
    """The HTTP status that it stands for, also if it came inside a reply of status 200."""

    def __str__(self) -> str:
        """In one line."""
        return f"{self.reason}: {printable(' '.join(self.detail.split()))}"


def transient(reason: str, detail: str, retry_after_s: float | None = None) -> RowFailure:
    return RowFailure(Kind.TRANSIENT, reason, detail, retry_after_s)


def permanent(reason: str, detail: str) -> RowFailure:
    return RowFailure(Kind.PERMANENT, reason, detail)


def content(reason: str, detail: str) -> RowFailure:
    return RowFailure(Kind.CONTENT, reason, detail)


_PASSING = (408, 409, 425, 429)
_NUMBER = re.compile(r"[0-9]{1,9}")

_CONTEXT = (
    "context length",
    "context_length",
    "max_model_len",
    "context window",
    "context size",
    "maximum model length",
    "maximum sequence length",
    "max_seq_len",
    "prompt is too long",
)
"""Words of servers that say that prompt and answer do not fit (vllm-project/vllm#20409)."""

_NAMED_CODES = {
    "badrequesterror": 400,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "authenticationerror": 401,
    "permissiondeniederror": 403,
    "notfounderror": 404,
    "unprocessableentityerror": 422,
    "ratelimiterror": 429,
    "rate_limit_exceeded": 429,
    "internalservererror": 500,
    "server_error": 500,
    "serviceunavailableerror": 503,
}
"""Errors that say what they are by `code` or `type` as a word."""


def error_failure(error: Any, status: int | None) -> RowFailure:
    """The failure that an error object or text stands for; its own code wins over `status`, that of HTTP.

    408, 409, 425, 429 and 5xx pass, as does an error without a code; another 4xx stays, and so does a prompt that does
    not fit the context, whatever its code. 403 is about this prompt (moderation) or about the key: not for good.
    """
    message = _message(error)[:500]
    own = _code(error)
    code = status if own is None else own
    failure = _classified(message, code)
    failure.status = code
    return failure


def _classified(message: str, code: int | None) -> RowFailure:
    if any(word in message.lower() for word in _CONTEXT) and (code is None or code < 500):
        return permanent("context_length", message)
    if code is None:
        return transient("error_in_reply", message)
    if code == 403:
        return content("http_403", message)
    if 400 <= code < 500 and code not in _PASSING:
        return permanent(f"http_{code}", message)
    return transient(f"http_{code}", message)


def refuse_error(reply: Mapping[str, Any]) -> None:
    """Refuse a reply or stream event that is an error; they come with status 200 too.

    Shapes: `{"error": {...}}`, `{"error": "text"}`, `{"object": "error", ...}`, `{"choices": [{"error": {...}}]}`.

    Raises:
        RowFailure: it is one.
    """
    if reply.get("error"):
        raise error_failure(reply["error"], None)
    if reply.get("object") == "error":
        raise error_failure(reply, None)
    choices = reply.get("choices")
    for choice in choices if isinstance(choices, list) else []:
        if isinstance(choice, Mapping) and choice.get("error"):
            raise error_failure(choice["error"], None)


def _message(error: Any) -> str:
    if not isinstance(error, Mapping):
        return str(error)
    message = error.get("message") or error.get("detail") or error.get("msg")
    return str(message or dict(error))


def _code(error: Any) -> int | None:
    """An HTTP status out of `code`, `status_code`, `status` or `type`: a number, a number as text, or a known word."""
    if not isinstance(error, Mapping):
        return None
    for key in ("code", "status_code", "status", "type", "err_type"):
        value = error.get(key)
        if isinstance(value, str):
            word = value.strip().lower()
            value = int(word) if _NUMBER.fullmatch(word) else _NAMED_CODES.get(word)
        if isinstance(value, int) and not isinstance(value, bool) and 400 <= value < 600:
            return value
    return None
