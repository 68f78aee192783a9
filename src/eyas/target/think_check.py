"""What was found out about a target's turns, in words.

The target stage shows it. A format is tried on a folder with tokenizer and chat template by

    python -m eyas.target.think_check FORMAT MODEL_FOLDER

where FORMAT is the path of a .yaml file, a family, `none`, or `auto` for what the target stage would find.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from eyas.errors import EyasError
from eyas.target.formats import TurnFormat, resolve_format
from eyas.target.probe import rendered_answer_with_thought
from eyas.target.spec import TargetProfile, ThinkFormat
from eyas.target.template import generation_prompt_ids, load_tokenizer

AUTO = "auto"


def findings(turns: TurnFormat, tokenizer: Any, end_of_turn_ids: Iterable[int]) -> list[str]:
    """One line per fact: family, markers with ids, who emits the opening one, prompt tails, end of turn, tools."""
    lines = [f"turns are written as in family {turns.family}"]
    if turns.think is None:
        lines += ["no thinking", f"prompts end with {_shown(tokenizer, generation_prompt_ids(tokenizer))}"]
    else:
        lines += _thinking(turns.think, tokenizer)
    ends = ", ".join(_shown(tokenizer, [token]) for token in end_of_turn_ids)
    lines.append(f"a turn ends with {ends or 'the eos ids of the configuration: the template writes no end'}")
    if turns.tools is not None:
        openings = " or ".join(_shown(tokenizer, ids) for ids in turns.tools.start_ids)
        end = _shown(tokenizer, turns.tools.end_ids) if turns.tools.end_ids else "the end of the turn"
        lines.append(f"tool calls stand between {openings} and {end}")
    return lines


def profile_findings(directory: Path, profile: TargetProfile) -> list[str]:
    """The same of a finished profile; `directory` is the target's folder."""
    tokenizer = load_tokenizer(directory.resolve(), trust_remote_code=profile.trust_remote_code)
    turns = TurnFormat(profile.family, profile.think, profile.tools, profile.end_of_turn_ids)
    return findings(turns, tokenizer, profile.end_of_turn_ids)


def _thinking(think: ThinkFormat, tokenizer: Any) -> list[str]:
    start, end = _shown(tokenizer, think.start_ids), _shown(tokenizer, think.end_ids)
    opener = (
        "the prompt ends with the opening marker" if think.prefilled else "the target writes both markers"
    )
    lines = [f"thinking stands between {start} and {end}; {opener}"]
    lines += [f"thinking also ends with {_shown(tokenizer, ids)}" for ids in think.implicit_end_ids]
    modes = [("on", think.on_kwargs, think.on_tail_ids, think.default_on)]
    if think.off_kwargs is not None and think.off_tail_ids is not None:
        modes.append(("off", think.off_kwargs, think.off_tail_ids, not think.default_on))
    for name, kwargs, tail, is_default in modes:
        switch = f" by chat_template_kwargs {kwargs}" if kwargs else ""
        default = ", the default" if is_default else ""
        lines.append(f"thinking {name}{switch}{default}: prompts end with {_shown(tokenizer, tail)}")
    if think.off_kwargs is None:
        lines.append("the template can't switch thinking off")
    lines += [f"reasoning parser of {server}: {name}" for server, name in think.parsers.items()]
    if rendered_answer_with_thought(tokenizer) is None:
        lines.append("rendering a finished turn drops its thinking: only prompts are ever rendered")
    return lines


def _shown(tokenizer: Any, ids: Sequence[int]) -> str:
    return f"{tokenizer.decode(ids, skip_special_tokens=False)!r} {list(ids)}"


def main(arguments: Sequence[str]) -> int:
    """Check a format against a tokenizer and its template; 0 if it fits."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m eyas.target.think_check FORMAT|auto MODEL_FOLDER\n")
        return 2
    choice, folder = arguments
    try:
        tokenizer = load_tokenizer(Path(folder).resolve())
        turns = resolve_format(tokenizer, None if choice == AUTO else choice)
        lines = findings(turns, tokenizer, turns.end_of_turn_ids)
    except EyasError as error:
        sys.stderr.write(f"{error}\n")
        return error.exit_code
    sys.stdout.write("\n".join(lines) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
