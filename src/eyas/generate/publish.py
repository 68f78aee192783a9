"""From the journal to data/responses/X: a function of prompts and journal entries only, so reruns make equal bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO

from eyas import jsonl
from eyas.errors import GateError
from eyas.files import atomic_directory, write_json
from eyas.generate.history import History
from eyas.generate.ledger import Ledger
from eyas.generate.params import GenerateParams
from eyas.generate.pending import Pending
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest, build, fingerprint
from eyas.generate.server_profile import ServerProfile
from eyas.generate.table import Prompt, PromptTable
from eyas.hashing import digest
from eyas.journal import Journal
from eyas.target.spec import TargetProfile
from eyas.turns import Message

_FIELDS = (
    "reasoning",
    "content",
    "tool_calls",
    "finish_reason",
    "stop_reason",
    "usage",
    "prompt_token_ids",
    "token_ids",
    "flags",
    "model",
)
"""Fields of an answer that a row takes over."""


@dataclass
class Published:
    """What was published: every turn of the prompts is in exactly one of the first three counts."""

    rows: int = 0
    """Turns with an answer."""
    failed: int = 0
    """Turns without one, as their request or one before it failed."""
    ended: int = 0
    """Turns that could not be asked, as their conversation took another way than the source's (history.ENDINGS)."""
    truncated: int = 0
    """Answers that were cut."""
    tokens: int = 0
    """Generated tokens of the answers whose count is known."""


class Responses:
    """The answers to one dataset's prompts that the journal holds."""

    def __init__(
        self, table: PromptTable, journal: Journal, profile: TargetProfile, params: GenerateParams
    ) -> None:
        self._table = table
        self._journal = journal
        self._profile = profile
        self._params = params
        self._common = digest(fingerprint(profile, params))
        self._looked_through: Ledger | None = None

    def pending(self, *, refused: bool = False) -> Pending:
        """The conversations that still have something to ask, after one pass over the table.

        `refused`: with them those whose next request a server refused for good.
        """
        ledger = Ledger(self._table, self._journal, self._build, ask_refused=refused)
        pending = Pending(self._table, ledger)
        self._looked_through = ledger
        return pending

    def check(self) -> None:
        """Whether enough turns have an answer to go on. Turns that could not be asked are no failures.

        Raises:
            GateError: a larger share than generate.max_failed_share has none, or the dataset has no prompt.
        """
        if not self._table.turns:
            raise GateError("the dataset has no prompts", where=self._table.dataset)
        allowed = self._params.max_failed_share * self._table.turns
        missing = self._ledger().missing()
        if sum(1 for _ in islice(missing, int(allowed) + 1)) > allowed:
            raise self._too_many_failed()

    def _too_many_failed(self) -> GateError:
        reasons: Counter[str] = Counter()
        first = None
        for turn in self._ledger().missing():
            first = turn if first is None else first
            reasons[self._failure(turn.key)["reason"]] += 1
        assert first is not None
        return GateError(
            f"{reasons.total()} of {self._table.turns} turns have no answer, more than generate.max_failed_share "
            f"{self._params.max_failed_share:g}: {', '.join(f'{reason} {n}' for reason, n in reasons.most_common(3))}",
            where=self._table.prompt(first.row).sample_id,
            hint="run again: answered turns are kept, the others are asked again unless the server refused them "
            "for good; errors of single requests are in the journal",
        )

    def publish(self, directory: Path) -> Published:
        """Write raw_responses.jsonl, errors.jsonl and server_profile.json, all or nothing.

        Raises:
            GateError: too many prompts have no answer.
        """
        self.check()
        servers = ServerProfile(self._params, self._profile)
        with atomic_directory(directory) as temporary:
            with (
                (temporary / "raw_responses.jsonl").open("wb") as rows,
                (temporary / "errors.jsonl").open("wb") as errors,
            ):
                published = self._write(rows, errors, servers)
            write_json(temporary / "server_profile.json", servers.to_json())
        return published

    def _write(self, rows: BinaryIO, errors: BinaryIO, servers: ServerProfile) -> Published:
        published = Published()
        for prompt in self._table:
            history = History(prompt.messages)
            for row in self._answered(prompt, history, servers):
                rows.write(jsonl.encode(row))
                published.rows += 1
                published.truncated += row["finish_reason"] == "length"
                published.tokens += _tokens(row)
            for row in self._unanswered(prompt, history):
                errors.write(jsonl.encode(row))
                published.failed += history.ending is None
                published.ended += history.ending is not None
        return published

    def _answered(self, prompt: Prompt, history: History, servers: ServerProfile) -> Iterator[dict[str, Any]]:
        """Rows of raw_responses.jsonl; the history stands behind the last one at the end."""
        ledger = self._ledger()
        while not history.over:
            key = ledger.key(prompt, history)
            entry = self._journal.get(key)
            if entry is None:
                return
            servers.add(entry)
            yield {
                "sample_id": prompt.sample_id,
                "turn": history.turn,
                "dataset": prompt.dataset,
                "prompt_hash": prompt.prompt_hash,
                "messages": history.messages(),
                "tools": prompt.tools,
                **{field: entry["answer"][field] for field in _FIELDS},
                "request_key": key,
            }
            history.add(Answer.from_json(entry["answer"]))

    def _unanswered(self, prompt: Prompt, history: History) -> Iterator[dict[str, Any]]:
        """Rows of errors.jsonl: why the turn that the history has come to has no answer, and those behind it."""
        reason = None
        for turn in range(history.turn, history.turns):
            key = None
            if reason is not None:
                failure = _error(None, "earlier_turn_failed", f"turn {history.turn}: {reason}")
            elif history.ending is not None:
                failure = _error(history.ending.kind, history.ending.reason, history.ending.detail)
            else:
                key = self._ledger().key(prompt, history)
                failure = self._failure(key)
            reason = reason or failure["reason"]
            yield {
                "sample_id": prompt.sample_id,
                "dataset": prompt.dataset,
                "turn": turn,
                "request_key": key,
                **failure,
            }

    def _failure(self, key: str | None) -> dict[str, Any]:
        """Why a request has no answer."""
        if key is None:
            return _error(None, "earlier_turn_failed", None)
        entry = self._journal.error(key)
        if entry is None:
            return _error(None, "not_asked", None)
        error = entry["error"]
        return _error(error["kind"], error["reason"], error["detail"])

    def _ledger(self) -> Ledger:
        if self._looked_through is None:
            self.pending()
        assert self._looked_through is not None
        return self._looked_through

    def _build(self, prompt: Prompt, turn: int, messages: Sequence[Message]) -> ChatRequest:
        tools = prompt.parsed_tools()
        return build(prompt.sample_id, messages, self._params, self._common, turn=turn, tools=tools)


def _error(kind: str | None, reason: str, detail: str | None) -> dict[str, Any]:
    return {"kind": kind, "reason": reason, "detail": detail}


def _tokens(row: dict[str, Any]) -> int:
    if row["token_ids"] is not None:
        return len(row["token_ids"])
    return row["usage"]["completion_tokens"] or 0
