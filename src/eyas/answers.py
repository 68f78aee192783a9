"""What every stage must know of an answer: how it may end, and what reading it may have noticed."""

from __future__ import annotations

FINISH_REASONS = ("stop", "length", "tool_calls")
"""Finish reasons of an answer. Others (abort, error, repetition, ...) come with HTTP status 200 too, and are failures."""

SERVER_PARSER_MISSING = "server_parser_missing"
"""The server left the thinking in the content; it was divided here."""
THINK_MARKER_IN_CONTENT = "think_marker_in_content"
"""The content still shows a think marker: a second one, one without its partner, or one that is literal text."""
MISFILED_REASONING = "misfiled_reasoning"
"""The server calls reasoning what the target never thought: an answer without any think marker, filed as thinking."""
DUPLICATED_THINKING = "duplicated_thinking"
"""The content repeats the reasoning, or its start: thinking that was cut, sent twice."""
TEXT_NOT_FAITHFUL = "text_not_faithful"
"""The texts miss something that was generated, or hold something that was not."""
LOSSY_TEXT = "lossy_text"
"""The texts hold U+FFFD, which the prompt does not: a character that was no valid UTF-8, or was cut."""
TOOL_CALL_IN_REASONING = "tool_call_in_reasoning"
"""The reasoning shows the opening of a tool call, which no parser has read."""
SURROGATES_REPLACED = "surrogates_replaced"
"""Half characters (lone surrogates), which no UTF-8 file can hold, were replaced by U+FFFD."""

FLAGS = (
    SERVER_PARSER_MISSING,
    THINK_MARKER_IN_CONTENT,
    MISFILED_REASONING,
    DUPLICATED_THINKING,
    TEXT_NOT_FAITHFUL,
    LOSSY_TEXT,
    TOOL_CALL_IN_REASONING,
    SURROGATES_REPLACED,
)
"""What an answer may be flagged with, in the order in which flags are listed. A flag judges nothing: with token ids the
sequence is exact whatever the texts say."""

REASONING_CONFLICT = "reasoning_conflict"
"""Reject reason, no flag: the reply holds two different reasonings, so that it has no answer."""

TEXT_FLAGS = (
    MISFILED_REASONING,
    THINK_MARKER_IN_CONTENT,
    DUPLICATED_THINKING,
    TEXT_NOT_FAITHFUL,
    LOSSY_TEXT,
    SURROGATES_REPLACED,
)
"""Flags that say that the texts do not stand for the tokens, so that no sequence can be made of the texts alone."""
