"""Putting the chunks of a streamed chat completion together to the reply that would have come in one piece."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from eyas.generate.dialects import endings
from eyas.generate.dialects.calls import CallPieces
from eyas.generate.dialects.completion import IdFields, model_name
from eyas.generate.dialects.message import REASONING_FIELDS
from eyas.generate.dialects.usage import read_usage
from eyas.generate.failure import content, refuse_error, transient
from eyas.generate.record import Answer

_TEXTS = ("content", *REASONING_FIELDS)


class CompletionCollector:
    """Collects one stream of chat completion chunks."""

    def __init__(self, read: Callable[[Any], Answer], id_fields: IdFields | None) -> None:
        self._read = read
        self._id_fields = id_fields
        self._model: str | None = None
        self._texts: dict[str, list[str]] = {name: [] for name in _TEXTS}
        self._calls = CallPieces()
        self._ends: dict[str, Any] = {}
        self._prompt_ids: Any = None
        self._ids: list[Any] | None = None
        self._pieces_without_ids = 0
        self._usage: Any = None

    def feed(self, event: Any) -> None:
        if not isinstance(event, Mapping):
            raise transient("not_an_object", f"a stream event is {type(event).__name__}, not an object")
        refuse_error(event)
        self._model = model_name(event) or self._model
        self._usage = event.get("usage") or self._usage
        self._take_prompt_ids(event, "reply")
        choices = event.get("choices") or []  # empty in the chunk that only brings the usage
        if (
            not isinstance(choices, list)
            or len(choices) > 1
            or not all(isinstance(c, Mapping) for c in choices)
        ):
            raise transient("no_choice", "a stream event has more than one choice, or something else")
        for choice in choices:
            self._take(choice)

    def answer(self, done: bool) -> Answer:
        """See Collector. A stream without `[DONE]` is whole if finish reason and usage have come: no more can."""
        if not done and ("finish_reason" not in self._ends or self._usage is None):
            raise transient("unfinished", "the stream ended before its last event")
        endings.finish_reason(self._ends.get("finish_reason"))  # half an answer has lost nothing
        self._refuse_lost_ids()
        return self._read(self._reply())

    def _take(self, choice: Mapping[str, Any]) -> None:
        self._take_prompt_ids(choice, "choice")
        for key in ("finish_reason", "stop_reason", "matched_stop"):
            if choice.get(key) is not None:
                self._ends[key] = choice[key]
        delta = choice.get("delta") or {}
        if not isinstance(delta, Mapping):
            raise transient("no_message", "a stream event's delta is no object")
        for name in _TEXTS:
            self._take_text(delta, name)
        self._calls.add(delta.get("tool_calls"))
        self._take_ids(choice, has_text=any(delta.get(name) for name in (*_TEXTS, "tool_calls")))

    def _take_text(self, delta: Mapping[str, Any], name: str) -> None:
        value = delta.get(name)
        if not isinstance(value, str | None):
            raise content("content_type", f"`{name}` is {type(value).__name__}, not text")
        if value:
            self._texts[name].append(value)

    def _take_prompt_ids(self, holder: Mapping[str, Any], place: str) -> None:
        fields = self._id_fields
        if fields is not None and fields.prompt_in == place and holder.get(fields.prompt) is not None:
            self._prompt_ids = holder[fields.prompt]

    def _take_ids(self, choice: Mapping[str, Any], *, has_text: bool) -> None:
        if self._id_fields is None:
            return
        ids = choice.get(self._id_fields.generated)
        if isinstance(ids, list):
            self._ids = [] if self._ids is None else self._ids
            self._ids.extend(ids)
        elif has_text:
            self._pieces_without_ids += 1

    def _refuse_lost_ids(self) -> None:
        """Ids of some chunks only (vllm-project/vllm#27482): the count in usage tells, else the chunks themselves."""
        if self._ids is None:
            return  # all are missing, which the reader says
        expected = read_usage(self._usage).completion_tokens
        lost = self._pieces_without_ids > 0 if expected is None else len(self._ids) < expected
        if lost:
            raise content(
                "token_ids_lost",
                f"{self._pieces_without_ids} pieces of text came without token ids: {len(self._ids)} ids, usage says "
                f"{expected}; set generate.stream to false",
            )

    def _reply(self) -> dict[str, Any]:
        texts = {name: "".join(parts) for name, parts in self._texts.items()}
        message = texts | {"tool_calls": self._calls.joined()}
        choice: dict[str, Any] = self._ends | {"message": message}
        reply: dict[str, Any] = {"model": self._model, "choices": [choice], "usage": self._usage}
        if self._id_fields is not None:
            holder = reply if self._id_fields.prompt_in == "reply" else choice
            holder[self._id_fields.prompt] = self._prompt_ids
            choice[self._id_fields.generated] = self._ids
        return reply
