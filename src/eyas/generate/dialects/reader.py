"""From what a reply says to a checked answer: the part of reading that all dialects share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from eyas.answers import SURROGATES_REPLACED
from eyas.generate.dialects.flags import find_flags, in_order
from eyas.generate.dialects.message import Message
from eyas.generate.dialects.thinking import divide, is_open
from eyas.generate.failure import content, permanent, transient
from eyas.generate.record import Answer, Usage
from eyas.generate.request import ChatRequest
from eyas.target.spec import ThinkFormat, ToolFormat


@dataclass(frozen=True)
class Found:
    """What one reply says, whatever the server."""

    model: str | None
    message: Message
    finish_reason: str
    stop_reason: int | str | None
    usage: Usage
    prompt_token_ids: list[int] | None
    token_ids: list[int] | None
    streamed: bool


@dataclass(frozen=True)
class Reader:
    """Reads for one run: one target, one set of params."""

    think: ThinkFormat | None
    tools: ToolFormat | None
    template_kwargs: Mapping[str, Any]
    max_tokens: int
    parses: bool = True
    """The server has reasoning parsers, so that thinking left in the content is worth a flag."""
    more_flags: Callable[[Answer, bool], list[str]] | None = None
    """What the dialect sees besides, given the answer and whether its prompt ended inside thinking."""

    def answer(self, found: Found, request: ChatRequest) -> Answer:
        """The answer, its thinking divided off and flags set.

        Zero reasoning tokens beside reasoning is a server that did not count them, for example because the prompt
        had opened the thinking: None.

        Raises:
            RowFailure: it is empty, cut by the context, or its parts contradict each other.
        """
        self._check(found)
        message = found.message
        answer = Answer(
            model=found.model,
            reasoning=message.reasoning,
            content=message.content,
            tool_calls=message.tool_calls,
            finish_reason=found.finish_reason,
            stop_reason=found.stop_reason,
            usage=found.usage,
            prompt_token_ids=found.prompt_token_ids,
            token_ids=found.token_ids,
            reasoning_field=message.reasoning_field,
            streamed=found.streamed,
            flags=[SURROGATES_REPLACED] if message.surrogates else [],
        )
        opened = self.think is not None and is_open(answer, self.think, self.template_kwargs)
        if self.think is not None:
            answer = divide(answer, self.think, opened=opened, parses=self.parses)
        if answer.reasoning is not None and answer.usage.reasoning_tokens == 0:
            answer = replace(answer, usage=replace(answer.usage, reasoning_tokens=None))
        flags = find_flags(answer, request, self.think, self.tools, opened=opened)
        more = [] if self.more_flags is None else self.more_flags(answer, opened)
        return replace(answer, flags=in_order([*answer.flags, *flags, *more]))

    def _check(self, found: Found) -> None:
        generated = found.usage.completion_tokens
        if found.token_ids is not None:
            generated = len(found.token_ids)
            _compare(found.usage.completion_tokens, generated, "token ids")
            _compare(found.usage.prompt_tokens, len(found.prompt_token_ids or []), "prompt ids")
        if generated == 0 or (generated is None and _is_empty(found.message)):
            raise transient("empty", "the answer has no tokens")
        if found.finish_reason == "length" and generated is not None and generated < self.max_tokens:
            raise permanent(
                "context_length",
                f"cut after {generated} tokens, before max_tokens {self.max_tokens}: the server's context is full",
            )


def _compare(reported: int | None, counted: int, what: str) -> None:
    if reported is not None and reported != counted:
        raise content("token_count", f"{counted} {what}, but usage says {reported}")


def _is_empty(message: Message) -> bool:
    return not (message.content or message.reasoning or message.tool_calls)
