"""The ids of a turn from its texts, for servers that send none: a fallback, whose drift is measured.

The markers are ids of the think format; what stands between them is encoded as ordinary text. Whitespace around the
markers is put back where a server took it away, and never doubled where it did not (sgl-project/sglang#24251).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.answers import LOSSY_TEXT, TEXT_FLAGS, TEXT_NOT_FAITHFUL
from eyas.reassemble.spans import SpanEncoder
from eyas.target.spec import TargetProfile, ThinkFormat
from eyas.target.template import template_end_of_turn_id
from eyas.target.think import opens_thinking

COLUMNS = ("reasoning", "content", "tool_calls", "stop_reason", "truncated", "flags")
"""What a turn is made of (schema.Validated)."""
REPLACEMENT = "\ufffd"


@dataclass(frozen=True)
class Rebuilt:
    """The generated ids of a turn, or why its text gives none."""

    token_ids: list[int] | None
    refused: str | None
    """tool_calls | no_text | end_of_turn_unknown | special_token_in_text | a flag of eyas.answers; null if there are
    ids."""


class TextRebuilder:
    """Rebuilds the turns of one target."""

    def __init__(self, tokenizer: Any, profile: TargetProfile) -> None:
        """`tokenizer` is one of target.template.load_tokenizer."""
        self._encoder = SpanEncoder(tokenizer)
        self._profile = profile
        self._template_end = template_end_of_turn_id(tokenizer)
        self._gap_in_prompt = profile.think is not None and _tail_holds_gap(tokenizer, profile.think)

    def rebuild(self, turn: Mapping[str, Any], prompt_ids: list[int]) -> Rebuilt:
        """`turn` has the keys COLUMNS; the end of the prompt decides whether the turn begins inside its thinking."""
        if reason := self._unusable(turn):
            return Rebuilt(None, reason)
        end_ids: list[int] = []
        if not turn["truncated"]:
            end = self._end_of_turn(turn["stop_reason"])
            if end is None:
                return Rebuilt(None, "end_of_turn_unknown")
            end_ids = [end]
        try:
            return Rebuilt([*self._body(turn, prompt_ids), *end_ids], None)
        except ValueError:
            return Rebuilt(None, "special_token_in_text")

    def _unusable(self, turn: Mapping[str, Any]) -> str | None:
        """Tool calls are written anew by servers; most flags say that the texts do not stand for the tokens."""
        if turn["tool_calls"]:
            return "tool_calls"
        texts = (turn["reasoning"] or "") + (turn["content"] or "")
        if not texts.strip():
            return "no_text"
        if REPLACEMENT in texts:
            return LOSSY_TEXT
        return next((flag for flag in TEXT_FLAGS if flag in (turn["flags"] or ())), None)

    def _body(self, turn: Mapping[str, Any], prompt_ids: list[int]) -> list[int]:
        think, encode = self._profile.think, self._encoder.encode
        reasoning, content = turn["reasoning"] or "", turn["content"] or ""
        if think is None:
            return encode(reasoning + content)
        opened = opens_thinking(think, prompt_ids)
        if not opened and not reasoning:
            answer = _led(content, think.gap_after_end) if _ends_block(think, prompt_ids) else content
            return [*think.answer_start_ids, *encode(answer)]
        lead = [] if opened else [*encode(think.gap_before_start), *think.start_ids]
        before = "" if opened and self._gap_in_prompt else think.gap_after_start
        if turn["truncated"] and not content:  # cut inside the thinking: nothing ends it
            return [*lead, *encode(_led(reasoning, before))]
        thinking = _framed(reasoning, before, think.gap_before_end)
        answer = _led(content, think.gap_after_end) if content else ""
        return [*lead, *encode(thinking), *think.end_ids, *encode(answer)]

    def _end_of_turn(self, stop_reason: str | None) -> int | None:
        """The id that ended the turn: as the server names it, else the template's, else the only one there is."""
        ends = self._profile.end_of_turn_ids
        if stop_reason is not None and stop_reason.isdecimal() and int(stop_reason) in ends:
            return int(stop_reason)
        if self._template_end in ends:
            return self._template_end
        return ends[0] if len(ends) == 1 else None


def length_refusal(rebuilt: Rebuilt, prompt_tokens: int, usage: Mapping[str, int | None]) -> str | None:
    """Why lengths disprove a rebuilt turn; null if they do not. Equal lengths are no proof.

    `usage` has usage_prompt_tokens and usage_completion_tokens, null where the server did not count.
    """
    if usage["usage_prompt_tokens"] not in (None, prompt_tokens):
        return "prompt_rendered_differently"
    if usage["usage_completion_tokens"] not in (None, len(rebuilt.token_ids or ())):
        return TEXT_NOT_FAITHFUL
    return None


def _tail_holds_gap(tokenizer: Any, think: ThinkFormat) -> bool:
    """Whether the prompt ends with the opening marker and the whitespace behind it."""
    tail = tokenizer.decode(think.on_tail_ids, skip_special_tokens=False, clean_up_tokenization_spaces=False)
    return bool(think.gap_after_start) and str(tail).endswith(think.start + think.gap_after_start)


def _ends_block(think: ThinkFormat, prompt_ids: list[int]) -> bool:
    """Whether the prompt, with thinking off, ends with the end marker and leaves the whitespace behind it to the target."""
    tail = think.off_tail_ids
    return (
        tail is not None
        and tail != []
        and think.off_prefill.endswith(think.end)
        and prompt_ids[-len(tail) :] == tail
    )


def _led(text: str, gap: str) -> str:
    return text if text.startswith(gap) else gap + text.lstrip(gap)


def _framed(text: str, before: str, after: str) -> str:
    if not text:
        return before + after
    if not text.strip():  # an empty block, as the server sent it
        return text
    led = _led(text, before)
    return led if led.endswith(after) else led.rstrip(after) + after
