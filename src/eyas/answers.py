"""What every stage must know of an answer."""

from __future__ import annotations

FINISH_REASONS = ("stop", "length", "tool_calls")
"""Finish reasons of an answer. Others (abort, error, repetition, ...) come with HTTP status 200 too, and are failures."""
