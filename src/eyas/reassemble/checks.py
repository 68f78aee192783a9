"""Checks of finished sequences, as they lie in the files, before they are published.

`find_problems` sees nothing but the table and the target's profile, and shares no code with what makes sequences.
`find_differences` compares the table with the answers that it was made of. What they find is a bug or damaged data,
never one odd answer: `candidates` refuses those, each for itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import polars as pl

from eyas.errors import GateError
from eyas.schema import TOKEN_IDS
from eyas.target.spec import TargetProfile, ThinkFormat
from eyas.tokenkinds import ANSWER, END_OF_TURN, FRONT, PROMPT, REASONING, THINK_MARKER

EXAMPLES = 3
PROBLEMS = pl.Schema({"sequence_id": pl.String, "problem": pl.String, "seen": pl.String})
"""What the find functions return: one row per bad sequence, with the first problem that it has."""

_Prompt, _Generated = pl.col("num_prompt_tokens"), pl.col("num_generated_tokens")
_Ids = pl.col("token_ids").list.tail(_Generated)
_Kinds = pl.col("kinds").list.tail(_Generated)
_Nothing = pl.lit("")


@dataclass(frozen=True)
class Check:
    """One thing that must not be."""

    name: str
    """What is wrong, as a sentence about the sequence."""
    fails: pl.Expr
    """Boolean; null where there is nothing to judge."""
    seen: pl.Expr
    """String: details."""


def check_sequences(table: pl.DataFrame, profile: TargetProfile) -> None:
    """Judge a table (schema Sequences) by itself.

    Raises:
        GateError: naming every problem with its count and examples.
    """
    refuse(find_problems(table, profile), table.height)


def find_problems(table: pl.DataFrame, profile: TargetProfile) -> pl.DataFrame:
    """Sequences that can't be what the target produced: columns PROBLEMS."""
    checks = [*_shape(profile), *_ending(profile)]
    if profile.think is not None:
        table = table.with_columns(**_places(profile.think))
        checks += _thinking(profile.think)
    return _found(table, checks)


def find_differences(table: pl.DataFrame, index: pl.DataFrame) -> pl.DataFrame:
    """Sequences that are not, id by id, what their answers are made of: columns PROBLEMS.

    `index` is that of the answers (sequences.index): its fingerprints are taken before prompt and answer are joined.
    """
    answers = index.select("sequence_id", "prompt_print", "generated_print", asked=_Prompt, said=_Generated)
    both = table.join(answers, on="sequence_id", how="left", maintain_order="left")
    prompt = pl.col("token_ids").list.head(_Prompt)
    lengths = "{} prompt and {} generated tokens, the answer has {} and {}"
    return _found(
        both,
        [
            Check("no answer has this sequence_id", pl.col("asked").is_null(), _Nothing),
            Check(
                "prompt and generated part are not as long as the server's",
                (pl.col("asked") != _Prompt) | (pl.col("said") != _Generated),
                pl.format(lengths, _Prompt, _Generated, "asked", "said"),
            ),
            Check("the prompt ids are not the server's", prompt.hash() != pl.col("prompt_print"), _Nothing),
            Check(
                "the generated ids are not the server's", _Ids.hash() != pl.col("generated_print"), _Nothing
            ),
        ],
    )


def refuse(problems: pl.DataFrame, checked: int) -> None:
    """No sequence may have a problem (PROBLEMS).

    Raises:
        GateError: a table of the problems with counts and examples.
    """
    if problems.is_empty():
        return
    table = problems.group_by("problem").agg(
        pl.len().alias("count"), pl.col("seen").first(), pl.col("sequence_id").head(EXAMPLES)
    )
    lines = [
        f"\n  {problem}: {count} ({', '.join(ids)})" + (f", for example {seen}" if seen else "")
        for problem, count, seen, ids in table.sort("count", "problem", descending=True).rows()
    ]
    raise GateError(
        f"{problems.height} of {checked} sequences are not what the target produced:" + "".join(lines),
        where=problems["sequence_id"][0],
        hint="nothing is published. Run `dvc repro -f validate reassemble`; if that does not help, report it: a bug",
    )


def _found(table: pl.DataFrame, checks: list[Check]) -> pl.DataFrame:
    first = pl.coalesce(
        pl.when(check.fails).then(pl.struct(problem=pl.lit(check.name), seen=check.seen.fill_null("")))
        for check in checks
    )
    broken = table.select("sequence_id", broken=first).filter(pl.col("broken").is_not_null())
    return broken.unnest("broken").select(PROBLEMS.names())


def _shape(profile: TargetProfile) -> list[Check]:
    """Lists as long as they should be, supervised exactly where generated."""
    tokens, kinds = pl.col("token_ids"), pl.col("kinds")
    length = _Prompt + _Generated
    lengths = pl.format(
        "{} ids, {} kinds, {} + {} tokens", tokens.list.len(), kinds.list.len(), _Prompt, _Generated
    )
    supervised = kinds.list.eval(pl.element() != PROMPT)
    places = pl.format(
        "{} supervised tokens from token {}, {} generated tokens from token {}",
        supervised.list.sum(),
        supervised.list.arg_max(),
        _Generated,
        _Prompt,
    )
    return [
        Check(
            "ids and kinds differ in length",
            pl.any_horizontal(column.list.len() != length for column in (tokens, kinds)),
            lengths,
        ),
        Check(
            "the supervised part is not the generated part",
            (kinds.list.head(_Prompt).list.max() != PROMPT) | (_Kinds.list.min() == PROMPT),
            places,
        ),
        Check(
            "a token is of an unknown kind",
            kinds.list.max() > END_OF_TURN,
            pl.format("kinds up to {}", kinds.list.max()),
        ),
        Check(
            "an id is not in the target's vocabulary",
            (tokens.list.min() < 0) | (tokens.list.max() >= profile.vocab_size),
            pl.format("ids from {} to {}", tokens.list.min(), tokens.list.max()),
        ),
    ]


def _ending(profile: TargetProfile) -> list[Check]:
    """A turn that the target ended has its end-of-turn token as the last one, and nowhere else."""
    ends = pl.element().is_in(profile.end_of_turn_ids)
    last = pl.col("token_ids").list.last().is_in(profile.end_of_turn_ids)
    inside = _Ids.list.eval(ends).list.sum() - last.cast(pl.Int32)
    behind = _Generated - 1 - _Ids.list.eval(ends.arg_true()).list.first()
    last_id = pl.format("the last id is {}", _Ids.list.last())
    kinds = pl.col("kinds")
    marked = kinds.list.eval(pl.element() == END_OF_TURN).list.sum()  # the prompt has been judged
    return [
        Check("tokens follow the end of the turn", inside > 0, pl.format("{} tokens", behind)),
        Check("the turn has no end-of-turn token and was not cut", ~pl.col("truncated") & ~last, last_id),
        Check("a cut turn has an end-of-turn token", pl.col("truncated") & last, last_id),
        Check(
            "the end-of-turn token is not marked as such",
            (marked != last.cast(pl.UInt32)) | (last & (kinds.list.last() != END_OF_TURN)),
            pl.format("{} tokens are", marked),
        ),
    ]


def _places(think: ThinkFormat) -> dict[str, pl.Expr]:
    """Where the markers stand in the generated part, and whether the prompt opened or closed the thinking."""

    def ends_with(tail: list[int] | None) -> pl.Expr:
        if not tail:
            return pl.lit(value=False)
        last = pl.col("token_ids").list.slice(_Prompt - len(tail), len(tail))
        return (_Prompt >= len(tail)) & (last == pl.lit(tail, dtype=TOKEN_IDS))

    switched = think.off_tail_ids != think.on_tail_ids
    implicit = [_place(ids) for ids in think.implicit_end_ids]
    return {
        "opens_at": _place(think.start_ids),
        "ends_at": _place(think.end_ids),
        "tool_at": pl.min_horizontal(*implicit) if implicit else pl.lit(None, dtype=pl.Int64),
        "opened": ends_with(think.start_ids) | ends_with([*think.start_ids, *think.gap_after_start_ids]),
        "off": ends_with(think.off_tail_ids) if switched else pl.lit(value=False),
    }


def _place(marker: list[int]) -> pl.Expr:
    """Index within the generated part of the first place where these ids stand."""
    here = pl.element() == marker[0]
    for step, token in enumerate(marker[1:], 1):
        here = here & (pl.element().shift(-step) == token)
    return _Ids.list.eval(here.arg_true()).list.first().cast(pl.Int64)


def _thinking(think: ThinkFormat) -> list[Check]:
    """One opening marker, in the prompt or at the front of the answer, then one end; kinds that say the same."""
    opens, ends, tool = (pl.col(name) for name in ("opens_at", "ends_at", "tool_at"))
    first_end = pl.min_horizontal(ends, tool)
    in_front = ((opens <= FRONT) & (opens < ends.fill_null(opens + 1))).fill_null(value=False)
    generated = in_front & ~pl.col("opened")
    begins = pl.col("opened") | generated
    places = pl.format(
        "opening marker at generated token {}, end marker at {}", *(_shown(place) for place in (opens, ends))
    )
    begin = pl.when(generated).then(opens + len(think.start_ids)).otherwise(0)
    until = pl.coalesce(first_end, _Generated - pl.col("truncated").not_().cast(pl.Int64))
    thought = pl.when(begins).then((until - begin).clip(lower_bound=0)).otherwise(0)
    marked = _Kinds.list.count_matches(REASONING).cast(pl.Int64)
    unopened = ~begins & ends.is_not_null() & ~pl.col("off")
    return [
        Check("the think markers are swapped", unopened & (ends < opens), places),
        Check("thinking ends that nothing opened: the opening marker is missing", unopened, places),
        Check(
            "thinking has no end: the end marker is missing",
            begins & first_end.is_null() & ~pl.col("truncated"),
            places,
        ),
        Check(
            "the kinds do not say what the markers say",
            (marked != thought)
            | (generated & (_Kinds.list.get(opens, null_on_oob=True) != THINK_MARKER))
            | (begins & (ends == first_end) & (_Kinds.list.get(ends, null_on_oob=True) != THINK_MARKER))
            | (begins & (ends == first_end) & (_after(ends, think) < ANSWER)),
            pl.format("{} tokens are marked as reasoning, {} stand between the markers", marked, thought),
        ),
    ]


def _after(ends: pl.Expr, think: ThinkFormat) -> pl.Expr:
    return _Kinds.list.get(ends + len(think.end_ids), null_on_oob=True)


def _shown(place: pl.Expr) -> pl.Expr:
    return place.cast(pl.String).fill_null("(none)")
