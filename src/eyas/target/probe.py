"""What a chat template does, found by rendering small conversations."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.errors import InputError
from eyas.target.template import PROBE, generation_prompt, render_text

QUESTION = {"role": "user", "content": "Hello"}
REASON = "Zk4 probe reason"
"""A thought that no template contains; see template.PROBE."""
SWITCHES = ("enable_thinking", "thinking")
"""Boolean template arguments by which templates switch thinking."""
CALL = {"id": "call_0", "type": "function", "function": {"name": "probe", "arguments": {}}}


@dataclass(frozen=True)
class Switch:
    """A template argument that changes the generation prompt, as templates use it to switch thinking."""

    kwargs_on: dict[str, Any]
    kwargs_off: dict[str, Any]
    tail_on: str
    tail_off: str


@dataclass(frozen=True)
class RenderedThought:
    """A thought in a rendered assistant turn."""

    before: str
    """Everything before the thought."""
    after: str
    """Everything behind it, the answer included if there was one."""


def find_switch(tokenizer: Any, names: Iterable[str]) -> Switch | None:
    """The first of these boolean arguments that changes the generation prompt; None if none does."""
    for name in names:
        on, off = {name: True}, {name: False}
        tail_on, tail_off = generation_prompt(tokenizer, on), generation_prompt(tokenizer, off)
        if tail_on != tail_off:
            return Switch(on, off, tail_on, tail_off)
    return None


def rendered_thought(tokenizer: Any) -> RenderedThought | None:
    """A thought as the template renders it; None if it renders none.

    Tried on a final answer and within a tool loop, because templates drop thoughts of finished turns.
    """
    call = {"role": "assistant", "content": "", "reasoning": REASON, "tool_calls": [CALL]}
    result = {"role": "tool", "tool_call_id": CALL["id"], "content": "done"}
    return (
        rendered_answer_with_thought(tokenizer)
        or _find_thought(tokenizer, [QUESTION, call, result])
        or _find_thought(tokenizer, [QUESTION, call])
    )


def rendered_answer_with_thought(tokenizer: Any) -> RenderedThought | None:
    """The thought of a final answer as the template renders it; None if it drops it."""
    return _find_thought(tokenizer, [QUESTION, {"role": "assistant", "content": PROBE, "reasoning": REASON}])


def _find_thought(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> RenderedThought | None:
    rendered = _rendered(tokenizer, messages)
    if rendered.count(REASON) != 1:
        return None
    before, _, after = rendered.partition(REASON)
    return RenderedThought(before, after)


def _rendered(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> str:
    """Empty if the template refuses the conversation, as those without tools refuse calls."""
    try:
        return render_text(tokenizer, messages, generation_prompt=False)
    except InputError:
        return ""
