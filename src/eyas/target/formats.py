"""Which format entry fits a target, and its markers as ids of the target's tokenizer.

An entry is chosen by what tokenizer and chat template do, never by a model's name: the markers are added tokens, and
prompts rendered with thinking on and off end as the entry says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eyas.errors import ConfigError, InputError
from eyas.target.derive import derive_think
from eyas.target.entry import FormatEntry, FormatValues, Mode, ThinkEntry, chosen_entry, known_entries
from eyas.target.probe import SWITCHES, find_switch, rendered_thought
from eyas.target.spec import ThinkFormat, ToolFormat
from eyas.target.template import encode, generation_prompt, generation_prompt_ids, template_end_of_turn_id
from eyas.target.tokens import added_ids, first_is_added, marker_ids

NONE = "none"
"""The choice of a target whose thinking is not to be told from its answers."""


@dataclass(frozen=True)
class TurnFormat:
    """The turns of a target."""

    family: str
    """Name of the entry, `derived` or `none`."""
    think: ThinkFormat | None
    tools: ToolFormat | None
    end_of_turn_ids: list[int]
    """Ids that the format itself says end a turn; the eos ids of the target's configuration come on top."""


def resolve_format(tokenizer: Any, choice: str | None = None) -> TurnFormat:
    """The format of a target: `choice` is null (found by probing), a family, a .yaml file, or `none`.

    Raises:
        ConfigError: the choice does not exist, is not valid, or does not fit; lists what differs.
        InputError: two entries fit, or none does and the format can't be derived.
    """
    if choice == NONE:
        return TurnFormat(NONE, None, None, _template_end(tokenizer))
    entries = known_entries()
    if choice is not None:
        entry = chosen_entry(choice)
        require_fit(entry, tokenizer)
        return bind(entry, tokenizer)
    fitting = [entry for entry in entries if _fits_unasked(entry, entries, tokenizer)]
    if len(fitting) > 1:
        raise InputError(
            f"several think formats fit the target: {', '.join(entry.family for entry in fitting)}",
            where=str(tokenizer.name_or_path),
            hint="choose one with `target.think_format`",
        )
    if fitting:
        return bind(fitting[0], tokenizer)
    tools = (bind_tools(entry, tokenizer) for entry in entries)
    return TurnFormat(
        "derived", derive_think(tokenizer, entries), next(filter(None, tools), None), _template_end(tokenizer)
    )


def require_fit(entry: FormatEntry, tokenizer: Any) -> None:
    """Check a chosen entry.

    Raises:
        ConfigError: lists all that tokenizer or template do otherwise.
    """
    problems = misfits(entry, tokenizer)
    if problems:
        raise ConfigError(
            f"think format {entry.family} does not fit the target:\n    " + "\n    ".join(problems),
            where=str(entry.path),
            hint="correct the entry, or set `target.think_format`: null to let the format be found",
        )


def misfits(entry: FormatEntry, tokenizer: Any) -> list[str]:
    """What of an entry tokenizer and chat template contradict, each with its key; empty if the entry fits."""
    values = entry.values
    added = added_ids(tokenizer)
    problems = []
    if not any(token in added for token in values.end_of_turn):
        problems.append(f"`end_of_turn`: none of {values.end_of_turn} is an added token of the tokenizer")
    problems += _history_problems(values, tokenizer)
    if values.think is None:
        return [*problems, *_tail_problems(values.tail, "tail", Mode(), tokenizer)]
    return [
        *problems,
        *_marker_problems(values.think, tokenizer),
        *_mode_problems(values.tail, values.think, tokenizer),
    ]


def bind(entry: FormatEntry, tokenizer: Any) -> TurnFormat:
    """An entry with the ids of a tokenizer that it fits."""
    values = entry.values
    added = added_ids(tokenizer)
    ends = [added[token] for token in values.end_of_turn if token in added]
    think = None if values.think is None else _bind_think(entry, values.think, tokenizer)
    return TurnFormat(entry.family, think, bind_tools(entry, tokenizer), ends)


def bind_tools(entry: FormatEntry, tokenizer: Any) -> ToolFormat | None:
    """Tool markers as ids; None if the entry has none or the tokenizer lacks the first."""
    tools = entry.values.tools
    if tools is None or not first_is_added(tokenizer, tools.starts[0]):
        return None
    starts = [start for start in tools.starts if first_is_added(tokenizer, start)]
    end = tools.end if first_is_added(tokenizer, tools.end) else ""
    return ToolFormat(
        starts=starts,
        start_ids=[marker_ids(tokenizer, start, closed=False) for start in starts],
        end=end,
        end_ids=marker_ids(tokenizer, end, closed=False) if end else [],
    )


def _bind_think(entry: FormatEntry, think: ThinkEntry, tokenizer: Any) -> ThinkFormat:
    disabled = think.disabled
    implicit = [text for text in think.implicit_ends if first_is_added(tokenizer, text)]
    return ThinkFormat(
        family=entry.family,
        start=think.start,
        end=think.end,
        start_ids=marker_ids(tokenizer, think.start, closed=not think.gaps.after_start),
        end_ids=marker_ids(tokenizer, think.end, closed=not think.gaps.after_end),
        prefilled=bool(think.enabled.prefill),
        gap_before_start=think.gaps.before_start,
        gap_after_start=think.gaps.after_start,
        gap_before_end=think.gaps.before_end,
        gap_after_end=think.gaps.after_end,
        gap_after_start_ids=encode(tokenizer, think.gaps.after_start),
        implicit_ends=implicit,
        implicit_end_ids=[marker_ids(tokenizer, text, closed=False) for text in implicit],
        answer_start=think.answer_start,
        answer_start_ids=marker_ids(tokenizer, think.answer_start) if think.answer_start else [],
        on_kwargs=dict(think.enabled.kwargs),
        off_kwargs=None if disabled is None else dict(disabled.kwargs),
        default_on=generation_prompt(tokenizer) == entry.values.tail + think.enabled.prefill,
        on_tail_ids=generation_prompt_ids(tokenizer, think.enabled.kwargs),
        off_tail_ids=None if disabled is None else generation_prompt_ids(tokenizer, disabled.kwargs),
        off_prefill="" if disabled is None else disabled.prefill,
        parsers=dict(entry.values.parsers),
    )


def _history_problems(values: FormatValues, tokenizer: Any) -> list[str]:
    """A template whose answers end otherwise belongs to another family, or to none."""
    token = template_end_of_turn_id(tokenizer)
    seen = "" if token is None else str(tokenizer.convert_ids_to_tokens(token))
    allowed = [*values.end_of_turn, *([] if values.history_end is None else [values.history_end])]
    if seen in allowed:
        return []
    return [f"`end_of_turn`: behind an answer the template writes {seen!r}, not one of {allowed}"]


def _fits_unasked(entry: FormatEntry, entries: list[FormatEntry], tokenizer: Any) -> bool:
    """An entry without thinking is not chosen for a tokenizer with think markers or a template that writes thinking."""
    if entry.values.think is None:
        if rendered_thought(tokenizer) is not None:
            return False
        added = added_ids(tokenizer)
        thinking = [other.values.think for other in entries if other.values.think]
        if any(think.start in added and think.end in added for think in thinking):
            return False
    return not misfits(entry, tokenizer)


def _marker_problems(think: ThinkEntry, tokenizer: Any) -> list[str]:
    problems = []
    gaps = {"start": think.gaps.after_start, "end": think.gaps.after_end, "answer_start": ""}
    for key, gap in gaps.items():
        text = getattr(think, key)
        if not text:
            continue
        try:
            marker_ids(tokenizer, text, closed=not gap)
        except InputError as error:
            problems.append(f"`think.{key}`: {error.what}")
    return problems


def _mode_problems(tail: str, think: ThinkEntry, tokenizer: Any) -> list[str]:
    problems = _tail_problems(tail, "think.enabled", think.enabled, tokenizer)
    if think.disabled is not None:
        problems += _tail_problems(tail, "think.disabled", think.disabled, tokenizer)
    elif (switch := find_switch(tokenizer, SWITCHES)) is not None:
        problems.append(f"`think.disabled` is missing, but the template has a switch: {switch.kwargs_off}")
    modes = [think.enabled, *([think.disabled] if think.disabled else [])]
    plain = generation_prompt(tokenizer)
    if not problems and plain not in [tail + mode.prefill for mode in modes]:
        problems.append(f"`tail`: without arguments the template asks with {plain!r}, which is neither mode")
    return problems


def _tail_problems(tail: str, key: str, mode: Mode, tokenizer: Any) -> list[str]:
    seen = generation_prompt(tokenizer, mode.kwargs)
    if seen == tail + mode.prefill:
        return []
    with_kwargs = f" with {mode.kwargs}" if mode.kwargs else ""
    return [
        f"`{key}`: the prompt should end with {tail + mode.prefill!r}, the template{with_kwargs} appends {seen!r}"
    ]


def _template_end(tokenizer: Any) -> list[int]:
    token = template_end_of_turn_id(tokenizer)
    return [] if token is None else [token]
