"""The think format of a target that no entry fits, from its tokenizer and rendering probes."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from eyas.errors import InputError
from eyas.target.entry import FormatEntry
from eyas.target.probe import SWITCHES, RenderedThought, Switch, find_switch, rendered_thought
from eyas.target.spec import ThinkFormat
from eyas.target.template import PROBE, encode, generation_prompt
from eyas.target.tokens import added_ids, marker_ids

OTHER_MARKERS = (
    ("<thinking>", "</thinking>"),
    ("<seed:think>", "</seed:think>"),
    ("<|think_start|>", "<|think_end|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
    ("◁think▷", "◁/think▷"),
    ("[THINK]", "[/THINK]"),
)
"""Pairs that tokenizers name, beside those of the entries; for templates that render no thinking."""
OVERRIDE = "describe the format in a .yaml file (docs/think-formats.md) and name it in `target.think_format`, or set none"


@dataclass(frozen=True)
class _Markers:
    start: str
    end: str
    after_start: str = ""
    before_end: str = ""
    after_end: str = ""
    header: str = ""
    """What stands before the opening marker in a rendered turn."""


def derive_think(tokenizer: Any, entries: Iterable[FormatEntry]) -> ThinkFormat | None:
    """The think format, as far as tokenizer and template show it; None if they show no thinking.

    Raises:
        InputError: the template writes thinking, but not between tokens of its own.
    """
    thought = rendered_thought(tokenizer)
    markers = _known_markers(tokenizer, entries) if thought is None else _around(thought, tokenizer)
    if markers is None:
        return None
    switch = find_switch(tokenizer, SWITCHES)
    plain = generation_prompt(tokenizer)
    tail_on = switch.tail_on if switch else plain
    prefilled = tail_on.rstrip().endswith(markers.start)
    base, _, gap = tail_on.rpartition(markers.start) if prefilled else (tail_on, "", "")
    markers = replace(markers, after_start=markers.after_start or gap)
    return ThinkFormat(
        family="derived",
        start=markers.start,
        end=markers.end,
        start_ids=marker_ids(tokenizer, markers.start, closed=not markers.after_start),
        end_ids=marker_ids(tokenizer, markers.end),
        prefilled=prefilled,
        gap_before_start=_gap_before_start(markers, base),
        gap_after_start=markers.after_start,
        gap_before_end=markers.before_end,
        gap_after_end=markers.after_end,
        gap_after_start_ids=encode(tokenizer, markers.after_start),
        default_on=plain == tail_on,
        on_tail_ids=encode(tokenizer, tail_on),
        **_switched(switch, base, tokenizer),
    )


def _switched(switch: Switch | None, base: str, tokenizer: Any) -> dict[str, Any]:
    if switch is None:
        return {}
    return {
        "on_kwargs": switch.kwargs_on,
        "off_kwargs": switch.kwargs_off,
        "off_tail_ids": encode(tokenizer, switch.tail_off),
        "off_prefill": switch.tail_off.removeprefix(base) if switch.tail_off.startswith(base) else "",
    }


def _known_markers(tokenizer: Any, entries: Iterable[FormatEntry]) -> _Markers | None:
    """The first pair that entries or OTHER_MARKERS name and of which both are added tokens."""
    added = added_ids(tokenizer)
    of_entries = [
        (entry.values.think.start, entry.values.think.end) for entry in entries if entry.values.think
    ]
    for start, end in (*of_entries, *OTHER_MARKERS):
        if start in added and end in added:
            return _Markers(start, end)
    return None


def _around(thought: RenderedThought, tokenizer: Any) -> _Markers:
    """The added tokens next to a rendered thought, and the whitespace between.

    Between the opening token and a line break there may be words, the name of a channel, if nothing else is opened so.
    """
    added = added_ids(tokenizer)
    before, after = thought.before.rstrip(), thought.after.lstrip()
    opener = max(added, key=lambda token: (before.rfind(token), len(token)))
    header, found, name = before.rpartition(opener)
    end = max((token for token in added if after.startswith(token)), key=len, default=None)
    named_line = not name or (opener not in header and before != thought.before)
    if not found or end is None or opener == end or not named_line:
        raise InputError(
            "the chat template writes thinking, but not between two tokens of its own: "
            f"{thought.before[-40:]!r} before it, {thought.after[:40]!r} behind it",
            where=str(tokenizer.name_or_path),
            hint=OVERRIDE,
        )
    if opener in header:
        raise InputError(
            f"the chat template opens other things than thinking with {opener!r} too",
            where=str(tokenizer.name_or_path),
            hint=OVERRIDE,
        )
    answer = after.removeprefix(end).partition(PROBE)
    return _Markers(
        opener + name,
        end,
        after_start=thought.before[len(before) :],
        before_end=thought.after[: len(thought.after) - len(after)],
        after_end=answer[0] if answer[1] and not answer[0].strip() else "",
        header=header,
    )


def _gap_before_start(markers: _Markers, base: str) -> str:
    """Whitespace that a rendered turn has between its header and the opening marker, and the prompt has not."""
    _, found, gap = markers.header.rpartition(base)
    return gap if found and not gap.strip() else ""
