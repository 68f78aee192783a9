"""Thinking in a target's text and at the end of its prompts, by its think format. No tokenizer is needed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.target.spec import TargetProfile, ThinkFormat


@dataclass(frozen=True)
class SplitText:
    """A generated text, divided at its think markers. Nothing is stripped but the markers."""

    reasoning: str | None
    """None if no thinking was found."""
    content: str
    found: bool
    """A marker divided the text: an opening at its start, or an end of thinking that the prompt had opened."""
    ended: bool
    """The thinking ended; False if `found` and the text was cut inside it."""
    markers_left: bool
    """Reasoning or content still hold a think marker: a second one, or one that is literal text."""


def split_text(content: str, think: ThinkFormat, *, prefilled: bool) -> SplitText:
    """Divide what a server without a reasoning parser sends as content.

    The first end marker, or opening of a tool section where that ends thinking, ends the block. An end marker counts
    only if the thinking was opened: by the opening marker at the start of the text, or by the prompt (`prefilled`).
    A prefilled text without any end is given back undivided: it may be thinking that was cut, or an answer whose
    thinking the server has already taken out, and only its finish reason and ids can tell.
    """
    opened, body = _without_start(content, think)
    if not opened and think.answer_start and body.startswith(think.answer_start):
        return _split(None, body.removeprefix(think.answer_start), think, ended=True)
    if not opened and not prefilled:
        return SplitText(None, content, found=False, ended=False, markers_left=_has_marker(content, think))
    ends = [(position, end) for end in (think.end, *think.implicit_ends) if (position := body.find(end)) >= 0]
    if ends:
        position, end = min(ends)
        behind = position + len(end) if end == think.end else position
        return _split(body[:position], body[behind:], think, ended=True)
    if opened:
        return _split(body, "", think, ended=False)
    return SplitText(None, content, found=False, ended=False, markers_left=False)


def thinking_asked(think: ThinkFormat, template_kwargs: Mapping[str, Any]) -> bool:
    """Whether prompts rendered with these chat_template_kwargs ask for thinking."""
    if think.off_kwargs and _holds(template_kwargs, think.off_kwargs):
        return False
    if think.on_kwargs and _holds(template_kwargs, think.on_kwargs):
        return True
    return think.default_on


def prompt_tail(profile: TargetProfile, template_kwargs: Mapping[str, Any]) -> list[int]:
    """The ids with which prompts end whose last message is the user's, rendered with these chat_template_kwargs.

    Behind tool results some templates (DeepSeek) ask for the answer without any generation prompt.
    Only the switch for thinking is known to change them; a template that lets other arguments change its generation
    prompt needs `eyas.target.template.generation_prompt_ids`, which renders.
    """
    think = profile.think
    if think is None or not think.on_tail_ids:
        return profile.generation_prompt_ids
    if thinking_asked(think, template_kwargs):
        return think.on_tail_ids
    return profile.generation_prompt_ids if think.off_tail_ids is None else think.off_tail_ids


def opens_thinking(think: ThinkFormat, prompt_ids: Sequence[int]) -> bool:
    """Whether a prompt ends inside thinking: its very last tokens, which the template wrote, are the opening marker.

    Seen in the prompt itself and not in `prefilled`, so that template arguments that no switch is known for count too.
    """
    return any(list(prompt_ids[-len(opening) :]) == opening for opening in think.openings)


def _without_start(content: str, think: ThinkFormat) -> tuple[bool, str]:
    head = content.lstrip()
    if head.startswith(think.start):
        return True, head.removeprefix(think.start)
    return False, content


def _split(reasoning: str | None, content: str, think: ThinkFormat, *, ended: bool) -> SplitText:
    left = _has_marker(reasoning or "", think) or _has_marker(content, think)
    return SplitText(reasoning, content, found=True, ended=ended, markers_left=left)


def _has_marker(text: str, think: ThinkFormat) -> bool:
    return think.start in text or think.end in text


def _holds(mapping: Mapping[str, Any], part: Mapping[str, Any]) -> bool:
    return all(key in mapping and mapping[key] == value for key, value in part.items())
