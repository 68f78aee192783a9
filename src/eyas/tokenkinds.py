"""What each token of a sequence is, one UInt8 per token: the column `kinds` of schema.Sequences.

Kinds tell thinking from answer in evaluation, and let the loss weigh them differently. Supervised are all kinds but PROMPT.
"""

from __future__ import annotations

PROMPT = 0
"""What the server gave the target to read, whatever it contains; an opening think marker that the template wrote too."""
THINK_MARKER = 1
"""A marker that the target generated around its thinking."""
REASONING = 2
"""Thinking, with the whitespace between it and its markers."""
ANSWER = 3
"""What the target says, with the whitespace around it; whitespace before an opening marker too."""
TOOL_CALL = 4
"""A tool section, its markers included."""
END_OF_TURN = 5
"""The last token of a turn that the target ended itself."""

NAMES = ("prompt", "think_marker", "reasoning", "answer", "tool_call", "end_of_turn")
"""Names by kind, as reports and params write them."""

FRONT = 3
"""So many tokens of whitespace may stand before an opening marker at the front of a turn; anywhere else a marker opens
nothing."""
