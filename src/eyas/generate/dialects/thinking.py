"""Dividing off the thinking that a server left in the content."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from eyas.answers import SERVER_PARSER_MISSING
from eyas.generate.dialects import ids
from eyas.generate.record import Answer
from eyas.target.spec import ThinkFormat
from eyas.target.think import opens_thinking, split_text, thinking_asked

FROM_CONTENT = "content"
"""`reasoning_field` of thinking that was divided off here."""


def is_open(answer: Answer, think: ThinkFormat, template_kwargs: Mapping[str, Any]) -> bool:
    """Whether the prompt ended inside thinking, so that no opening marker was generated.

    The prompt's own ids say so, else the format and the template arguments.
    """
    if answer.prompt_token_ids is None:
        return think.prefilled and thinking_asked(think, template_kwargs)
    size = len(think.start_ids)
    return opens_thinking(think, answer.prompt_token_ids) or (
        size > 0 and answer.prompt_token_ids[-size:] == think.start_ids
    )


def divide(answer: Answer, think: ThinkFormat, *, opened: bool, parses: bool) -> Answer:
    """The answer with its thinking in `reasoning`, if the content still holds it.

    Nothing is stripped but the markers. `parses`: the server was to do this, so that it is flagged.

    A text without any marker that follows an opened prompt is thinking as a whole if no end marker was generated.
    Where ids are unknown only a cut answer is taken for that: one that ended by itself may have lost its thinking
    on the way.
    """
    if answer.reasoning is not None or answer.content is None:
        return answer
    split = split_text(answer.content, think, prefilled=opened)
    if split.found:
        reasoning, content = split.reasoning or None, split.content or None
    elif opened and _never_ended(answer, think):
        reasoning, content = answer.content, None
    else:
        return answer
    return replace(
        answer,
        reasoning=reasoning,
        content=content,
        reasoning_field=None if reasoning is None else FROM_CONTENT,
        flags=[*answer.flags, SERVER_PARSER_MISSING] if parses else answer.flags,
    )


def _never_ended(answer: Answer, think: ThinkFormat) -> bool:
    """No end marker came. A tool section that ends thinking too would stand in the text, or was parsed out behind it."""
    if answer.token_ids is None:
        return answer.finish_reason == "length"
    return not ids.count(answer.token_ids, think.end_ids)
