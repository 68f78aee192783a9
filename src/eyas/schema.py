"""The tables of the pipeline: one pandera model per Parquet table, and the dtypes to read JSONL with.

Dtypes are stated here and never inferred: inference looks at the first rows only, drops keys that appear later
and turns numbers into strings.
"""

from __future__ import annotations

from typing import Any, ClassVar

import pandera.polars as pa
import polars as pl

from eyas import tokenkinds
from eyas.answers import FINISH_REASONS
from eyas.errors import ArtifactError

TOKEN_IDS = pl.List(pl.Int32)
TOKEN_KINDS = pl.List(pl.UInt8)
"""What each token is (eyas.tokenkinds)."""
FLAGS = pl.List(pl.String)
RULES = pl.List(pl.String)
TOOL_CALLS = pl.List(
    pl.Struct(
        {
            "id": pl.String,
            "type": pl.String,
            "function": pl.Struct({"name": pl.String, "arguments": pl.String}),
        }
    )
)
MESSAGES = pl.List(
    pl.Struct(
        {
            "role": pl.String,
            "content": pl.String,
            "reasoning": pl.String,
            "tool_calls": TOOL_CALLS,
            "tool_call_id": pl.String,
        }
    )
)
"""Everything but the role may be null. In JSON, in a file or a request, a null key is left out."""
USAGE = pl.Struct(dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens"), pl.Int64))

RAW_RESPONSE = pl.Struct(
    {
        "sample_id": pl.String,
        "turn": pl.Int32,
        "dataset": pl.String,
        "prompt_hash": pl.String,
        "messages": MESSAGES,
        "tools": pl.String,
        "reasoning": pl.String,
        "content": pl.String,
        "tool_calls": TOOL_CALLS,
        "finish_reason": pl.String,
        "stop_reason": pl.String,  # an id, a string or null: read as text
        "usage": USAGE,
        "prompt_token_ids": TOKEN_IDS,
        "token_ids": TOKEN_IDS,
        "flags": FLAGS,
        "model": pl.String,
        "request_key": pl.String,
    }
)
"""One line of raw_responses.jsonl."""

FAILED_REQUEST = pl.Struct({"sample_id": pl.String, "turn": pl.Int32})
"""What validation needs of a line of errors.jsonl."""

SHA256 = r"^[0-9a-f]{64}$"
SAMPLE_ID = r"^[a-z0-9][a-z0-9_-]*:.+$"
ORIGINS = ("ids", "text")
"""Where a sequence's generated ids come from: the server, or the text of the answer tokenised again."""


def _list(dtype: pl.List, **checks: Any) -> Any:
    """A field of list type; the annotation alone can't say of what."""
    return pa.Field(dtype_kwargs={"inner": dtype.inner}, **checks)


class _Table(pa.DataFrameModel):
    class Config:
        strict = True
        ordered = True


class Prompts(_Table):
    """data/prompts/X.parquet: one row per conversation, sorted by sample_id.

    A turn is generated behind every user turn, and behind every block of tool turns, that no assistant turn follows:
    [user, user] makes two answers, [user, assistant, user] one. Between two blocks of tool turns that answer different
    answers stands an empty assistant turn, nothing but its role; it is generated too.
    """

    sample_id: str = pa.Field(unique=True, str_matches=SAMPLE_ID)
    """`dataset:id`; ids of different datasets never meet."""
    dataset: str
    messages: pl.List = _list(MESSAGES)
    """Ends with a user or tool turn; system first if at all."""
    tools: str = pa.Field(nullable=True)
    """JSON text of the list of tools in OpenAI's form that every turn may call."""
    prompt_hash: str = pa.Field(unique=True, str_matches=SHA256)
    """Of the normalised user turns; rows with the same hash are the same prompt."""
    task: str = pa.Field(nullable=True)

    @pa.dataframe_check
    @classmethod
    def sample_id_names_its_dataset(cls, data: pa.PolarsData) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("sample_id").str.starts_with(pl.col("dataset") + ":"))

    @pa.dataframe_check
    @classmethod
    def last_turn_asks(cls, data: pa.PolarsData) -> pl.LazyFrame:
        return data.lazyframe.select(
            pl.col("messages").list.last().struct.field("role").is_in(["user", "tool"])
        )


class RejectedPrompts(_Table):
    """data/prompts/rejected/X.parquet: rows of the source that became no prompt."""

    sample_id: str
    reason: str
    detail: str


class Responses(_Table):
    """raw_responses.jsonl as a table, `usage` flattened; not yet judged, so nearly everything may be null.

    One row per generated turn, sorted by sample_id and turn.
    """

    sample_id: str = pa.Field(str_matches=SAMPLE_ID)
    turn: pl.Int32 = pa.Field(ge=0)
    """Which generated turn of its conversation this is, from 0."""
    dataset: str
    prompt_hash: str = pa.Field(str_matches=SHA256)
    messages: pl.List = _list(MESSAGES)
    """What was asked, with the generated answers of earlier turns; this turn's answer is not among them."""
    tools: str = pa.Field(nullable=True)
    """JSON text of the tools that the request offered."""
    reasoning: str = pa.Field(nullable=True)
    content: str = pa.Field(nullable=True)
    tool_calls: pl.List = _list(TOOL_CALLS, nullable=True)
    finish_reason: str = pa.Field(nullable=True)
    stop_reason: str = pa.Field(nullable=True)
    """Stop string, or a stop id as text; null where the model's own end of turn ended the answer."""
    usage_prompt_tokens: pl.Int64 = pa.Field(nullable=True)
    usage_completion_tokens: pl.Int64 = pa.Field(nullable=True)
    usage_reasoning_tokens: pl.Int64 = pa.Field(nullable=True)
    prompt_token_ids: pl.List = _list(TOKEN_IDS, nullable=True)
    token_ids: pl.List = _list(TOKEN_IDS, nullable=True)
    """The generated ids as the server sent them; both null where the server sends text only."""
    flags: pl.List = _list(FLAGS)
    """What reading the reply noticed (eyas.answers); empty if nothing."""
    model: str = pa.Field(nullable=True)
    request_key: str
    """Hash of everything that decides the answer."""

    class Config:
        """One row per turn."""

        unique: ClassVar[list[str]] = ["sample_id", "turn"]


class Validated(Responses):
    """data/validated/X.parquet: the responses that break no rule."""

    finish_reason: str = pa.Field(isin=FINISH_REASONS)
    task: str = pa.Field(nullable=True)
    truncated: bool
    """The answer was cut: it does not end with an end-of-turn token."""

    @pa.dataframe_check
    @classmethod
    def ids_of_prompt_and_answer_come_together(cls, data: pa.PolarsData) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("prompt_token_ids").is_null() == pl.col("token_ids").is_null())


class Quarantined(_Table):
    """data/quarantine/X.parquet: responses that break a rule, whole."""

    sample_id: str
    turn: pl.Int32 = pa.Field(ge=0)
    rule: str
    """The first rule that the row breaks."""
    value: str
    """What was seen."""
    rules: pl.List = _list(RULES)
    """All rules that the row breaks, `rule` first."""
    row: str
    """The line of raw_responses.jsonl."""

    class Config:
        """One row per turn."""

        unique: ClassVar[list[str]] = ["sample_id", "turn"]


class Sequences(_Table):
    """data/sequences/{train,val,eval}.parquet: token sequences, in the order of sample_id and turn."""

    sequence_id: str = pa.Field(unique=True)
    """The sample_id; with `#turn` behind it for later turns than the first."""
    dataset: str
    sample_id: str
    turn: pl.Int32 = pa.Field(ge=0)
    prompt_hash: str = pa.Field(str_matches=SHA256)
    token_ids: pl.List = _list(TOKEN_IDS)
    """Prompt ids, then generated ids."""
    kinds: pl.List = _list(TOKEN_KINDS)
    """PROMPT on prompt ids, another kind on generated ids; as long as token_ids. Supervised is what is not PROMPT."""
    weight: pl.Float32 = pa.Field(ge=0)
    """How much the sequence counts in training."""
    origin: str = pa.Field(isin=ORIGINS)
    num_prompt_tokens: pl.Int32 = pa.Field(ge=1)
    num_generated_tokens: pl.Int32 = pa.Field(ge=1)
    truncated: bool
    task: str = pa.Field(nullable=True)

    @pa.dataframe_check
    @classmethod
    def lengths_agree(cls, data: pa.PolarsData) -> pl.LazyFrame:
        tokens = pl.col("num_prompt_tokens") + pl.col("num_generated_tokens")
        lists = ("token_ids", "kinds")
        return data.lazyframe.select(pl.all_horizontal(pl.col(lists).list.len() == tokens))

    @pa.dataframe_check
    @classmethod
    def kind_0_is_the_prompt(cls, data: pa.PolarsData) -> pl.LazyFrame:
        prompt = pl.col("kinds").list.head(pl.col("num_prompt_tokens"))
        generated = pl.col("kinds").list.tail(pl.col("num_generated_tokens"))
        return data.lazyframe.select(
            (prompt.list.max() == tokenkinds.PROMPT)
            & (generated.list.min() > tokenkinds.PROMPT)
            & (generated.list.max() < len(tokenkinds.NAMES))
        )

    @pa.dataframe_check
    @classmethod
    def sequence_id_names_sample_and_turn(cls, data: pa.PolarsData) -> pl.LazyFrame:
        later = pl.format("{}#{}", "sample_id", "turn")
        return data.lazyframe.select(
            pl.col("sequence_id") == pl.when(pl.col("turn") == 0).then("sample_id").otherwise(later)
        )


def columns_of(model: type[pa.DataFrameModel]) -> pl.Schema:
    """A model's columns and dtypes, to build or read a table with."""
    return pl.Schema({name: column.dtype.type for name, column in model.to_schema().columns.items()})


PROMPTS_SCHEMA = columns_of(Prompts)
REJECTED_PROMPTS_SCHEMA = columns_of(RejectedPrompts)


def check(model: type[pa.DataFrameModel], table: pl.DataFrame, what: str) -> None:
    """Check a table against its model, all rules at once.

    Raises:
        ArtifactError: the table breaks the model; names rules, counts and the first values.
    """
    try:
        model.validate(table, lazy=True)
    except pa.errors.SchemaErrors as error:
        raise ArtifactError(
            f"{what}: not a {model.__name__} table: {_summary(error.failure_cases)}",
            hint="a file that another program wrote, or a bug in eyas: run `dvc repro`, or report it",
        ) from error


def _summary(failures: pl.DataFrame) -> str:
    rules = failures.group_by("column", "check", maintain_order=True).agg(
        pl.len().alias("count"), pl.col("failure_case").first().alias("example")
    )
    return "; ".join(
        f"{row['column']}: {row['check']} ({row['count']} times, for example {str(row['example'])[:120]})"
        for row in rules.iter_rows(named=True)
    )
