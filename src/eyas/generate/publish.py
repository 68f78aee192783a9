"""From the journal to data/responses/X: a function of prompts and journal entries only, so reruns make equal bytes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eyas import jsonl
from eyas.errors import GateError
from eyas.files import atomic_directory, write_json
from eyas.generate.params import GenerateParams
from eyas.generate.request import ChatRequest
from eyas.generate.table import Prompt, PromptTable
from eyas.journal import Journal
from eyas.metrics import share
from eyas.target.spec import TargetProfile

_ANSWER_FIELDS = (
    "reasoning",
    "content",
    "tool_calls",
    "finish_reason",
    "stop_reason",
    "usage",
    "prompt_token_ids",
    "token_ids",
    "model",
)


@dataclass
class Published:
    """What was published."""

    rows: int
    failed: int
    truncated: int
    tokens: int


class Responses:
    """The answers to one dataset's prompts that the journal holds."""

    def __init__(
        self, table: PromptTable, journal: Journal, profile: TargetProfile, params: GenerateParams
    ) -> None:
        self._table = table
        self._journal = journal
        self._profile = profile
        self._params = params

    def pending(self) -> list[ChatRequest]:
        """Requests without an answer, each key once, in the order of the table."""
        requests = {
            request.key: request
            for _, request in self._table.requests(self._profile, self._params)
            if request.key not in self._journal
        }
        return list(requests.values())

    def failures(self) -> list[dict[str, Any]]:
        """One line of errors.jsonl per prompt without an answer."""
        return [
            {
                "sample_id": prompt.sample_id,
                "dataset": prompt.dataset,
                "request_key": request.key,
                **_reason(error),
            }
            for prompt, request in self._table.requests(self._profile, self._params)
            if request.key not in self._journal
            for error in [self._journal.error(request.key)]
        ]

    def check(self) -> None:
        """Whether enough prompts have an answer to go on.

        Raises:
            GateError: a larger share than generate.max_failed_share has none, or the dataset has no prompt.
        """
        failures = self.failures()
        failed = share(len(failures), len(self._table))
        if failed is None:
            raise GateError("the dataset has no prompts", where=self._table.dataset)
        if failed > self._params.max_failed_share:
            reasons = Counter(failure["reason"] for failure in failures).most_common(3)
            raise GateError(
                f"{len(failures)} of {len(self._table)} prompts have no answer, more than generate.max_failed_share "
                f"{self._params.max_failed_share:g}: {', '.join(f'{reason} {n}' for reason, n in reasons)}",
                where=failures[0]["sample_id"],
                hint="run again: answered rows are kept, the others are asked again",
            )

    def publish(self, directory: Path) -> Published:
        """Write raw_responses.jsonl, errors.jsonl and server_profile.json, all or nothing.

        Raises:
            GateError: too many prompts have no answer.
        """
        self.check()
        failures = self.failures()
        servers = ServerProfile(self._params, self._profile.name)
        published = Published(0, len(failures), 0, 0)
        with atomic_directory(directory) as temporary:
            jsonl.write(temporary / "raw_responses.jsonl", self._rows(servers, published))
            jsonl.write(temporary / "errors.jsonl", failures)
            write_json(temporary / "server_profile.json", servers.to_json())
        return published

    def _rows(self, servers: ServerProfile, published: Published) -> Iterator[dict[str, Any]]:
        for prompt, request in self._table.requests(self._profile, self._params):
            entry = self._journal.get(request.key)
            if entry is None:
                continue
            servers.add(entry)
            published.rows += 1
            published.truncated += entry["answer"]["finish_reason"] == "length"
            published.tokens += len(entry["answer"]["token_ids"])
            yield _row(prompt, request, entry["answer"])


class ServerProfile:
    """What the servers that answered had in common: server_profile.json. Made from the answers alone."""

    def __init__(self, params: GenerateParams, model: str) -> None:
        self._head = {
            "dialect": params.dialect,
            "model": model,
            "chat_template_kwargs": params.chat_template_kwargs,
        }
        self._versions: set[str | None] = set()
        self._lengths: set[int | None] = set()
        self._fields: Counter[str] = Counter()
        self._rows = 0
        self._surrogates = 0

    def add(self, entry: dict[str, Any]) -> None:
        self._rows += 1
        self._versions.add(entry["server"]["version"])
        self._lengths.add(entry["server"]["max_model_len"])
        self._surrogates += entry["answer"]["surrogates"]
        if entry["answer"]["reasoning_field"] is not None:
            self._fields[entry["answer"]["reasoning_field"]] += 1

    def to_json(self) -> dict[str, Any]:
        return self._head | {
            "versions": sorted(self._versions, key=str),
            "max_model_lens": sorted(self._lengths, key=str),
            "rows": self._rows,
            "rows_with_token_ids": self._rows,  # an answer without ids never enters the journal
            "rows_by_reasoning_field": dict(sorted(self._fields.items())),
            "rows_with_replaced_surrogates": self._surrogates,
        }


def _row(prompt: Prompt, request: ChatRequest, answer: dict[str, Any]) -> dict[str, Any]:
    return {
        "sample_id": prompt.sample_id,
        "dataset": prompt.dataset,
        "prompt_hash": prompt.prompt_hash,
        "messages": prompt.messages,
        **{field: answer[field] for field in _ANSWER_FIELDS},
        "request_key": request.key,
    }


def _reason(entry: dict[str, Any] | None) -> dict[str, Any]:
    if entry is None:
        return {"kind": None, "reason": "not_asked", "detail": None}
    error = entry["error"]
    return {"kind": error["kind"], "reason": error["reason"], "detail": error["detail"]}
