"""What can be seen to be wrong with the texts of one answer. Nothing is judged here.

What can't be seen: with ids, a literal marker that was made of ordinary tokens and lost, for ids are not decoded here;
without ids, whatever leaves no trace in the number of tokens (see `dialects.length`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from eyas import answers
from eyas.generate.dialects import ids
from eyas.generate.record import Answer
from eyas.generate.request import ChatRequest
from eyas.target.spec import ThinkFormat, ToolFormat

REPLACEMENT = "\ufffd"
TOOL_STARTS = (
    "<tool_call>",
    "<|tool_calls_section_begin|>",
    "<|tool_call_begin|>",
    "<｜tool▁calls▁begin｜>",
    "[TOOL_CALLS]",
)
"""Openings of tool calls of known families; a target's own come on top."""


def find_flags(
    answer: Answer, request: ChatRequest, think: ThinkFormat | None, tools: ToolFormat | None, *, opened: bool
) -> list[str]:
    """Flags of an answer whose thinking is divided off, besides those that it has.

    `opened`: the prompt ended inside thinking.
    """
    found = {
        answers.MISFILED_REASONING: _misfiled(answer, think, opened=opened),
        answers.DUPLICATED_THINKING: _duplicated(answer, think),
        answers.LOSSY_TEXT: REPLACEMENT in _texts(answer) and not _in_prompt(request),
        answers.TOOL_CALL_IN_REASONING: _holds(
            answer.reasoning, [*TOOL_STARTS, *(tools.starts if tools else [])]
        ),
    }
    if think is not None:
        found[answers.THINK_MARKER_IN_CONTENT] = _holds(answer.content, (think.start, think.end))
        found[answers.TEXT_NOT_FAITHFUL] = _marker_lost(answer, think, opened=opened)
    return [flag for flag, holds in found.items() if holds]


def in_order(flags: Sequence[str]) -> list[str]:
    """Each flag once, in the order of eyas.answers.FLAGS."""
    return [flag for flag in answers.FLAGS if flag in flags]


def _misfiled(answer: Answer, think: ThinkFormat | None, *, opened: bool) -> bool:
    """Reasoning of which the tokens know nothing; where they are unknown, reasoning that ended without an answer."""
    if not _has_text(answer.reasoning):
        return False
    no_answer = answer.finish_reason == "stop" and not _has_text(answer.content) and not answer.tool_calls
    if think is None or answer.token_ids is None:
        return no_answer
    ended = any(ids.count(answer.token_ids, end) for end in [think.end_ids, *think.implicit_end_ids])
    started = opened or ids.count(answer.token_ids, think.start_ids) > 0
    return not ended and (no_answer or (not started and len(think.start_ids) == 1))


def _duplicated(answer: Answer, think: ThinkFormat | None) -> bool:
    """The content is the reasoning or its start; generated end markers prove that it is an answer of its own."""
    content, reasoning = (answer.content or "").strip(), (answer.reasoning or "").strip()
    if not content or not reasoning.startswith(content):
        return False
    return think is None or answer.token_ids is None or not ids.count(answer.token_ids, think.end_ids)


def _marker_lost(answer: Answer, think: ThinkFormat, *, opened: bool) -> bool:
    """More markers were generated than stand in the texts and around the thinking."""
    if answer.token_ids is None:
        return False
    text = _texts(answer)
    starts = ids.count(answer.token_ids, think.start_ids) - text.count(think.start)
    ends = ids.count(answer.token_ids, think.end_ids) - text.count(think.end)
    return starts > (0 if opened else 1) or ends > 1


def _texts(answer: Answer) -> str:
    calls = json.dumps(answer.tool_calls, ensure_ascii=False) if answer.tool_calls else ""
    return "\n".join((answer.reasoning or "", answer.content or "", calls))


def _in_prompt(request: ChatRequest) -> bool:
    messages: Sequence[Any] = request.messages
    return REPLACEMENT in json.dumps([messages, request.tools], ensure_ascii=False, default=str)


def _holds(text: str | None, marks: Sequence[str]) -> bool:
    return text is not None and any(mark in text for mark in marks)


def _has_text(text: str | None) -> bool:
    return text is not None and bool(text.strip())
