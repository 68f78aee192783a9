"""The tables of the pipeline: one pandera model per Parquet table, and the dtypes to read JSONL with.

Dtypes are stated here and never inferred: inference looks at the first rows only, drops keys that appear later
and turns numbers into strings.
"""

from __future__ import annotations

from typing import Any

import pandera.polars as pa
import polars as pl

from eyas.answers import FINISH_REASONS
from eyas.errors import ArtifactError

MESSAGES = pl.List(pl.Struct({"role": pl.String, "content": pl.String}))
TOKEN_IDS = pl.List(pl.Int32)
LOSS_MASK = pl.List(pl.Boolean)
TOOL_CALLS = pl.List(
    pl.Struct(
        {
            "id": pl.String,
            "type": pl.String,
            "function": pl.Struct({"name": pl.String, "arguments": pl.String}),
        }
    )
)
USAGE = pl.Struct(dict.fromkeys(("prompt_tokens", "completion_tokens", "reasoning_tokens"), pl.Int64))

RAW_RESPONSE = pl.Struct(
    {
        "sample_id": pl.String,
        "dataset": pl.String,
        "prompt_hash": pl.String,
        "messages": MESSAGES,
        "reasoning": pl.String,
        "content": pl.String,
        "tool_calls": TOOL_CALLS,
        "finish_reason": pl.String,
        "stop_reason": pl.String,  # an id, a string or null: read as text
        "usage": USAGE,
        "prompt_token_ids": TOKEN_IDS,
        "token_ids": TOKEN_IDS,
        "model": pl.String,
        "request_key": pl.String,
    }
)
"""One line of raw_responses.jsonl."""

FAILED_REQUEST = pl.Struct({"sample_id": pl.String})
"""What validation needs of a line of errors.jsonl."""

SHA256 = r"^[0-9a-f]{64}$"
SAMPLE_ID = r"^[a-z0-9][a-z0-9_-]*:.+$"


def _list(dtype: pl.List, **checks: Any) -> Any:
    """A field of list type; the annotation alone can't say of what."""
    return pa.Field(dtype_kwargs={"inner": dtype.inner}, **checks)


class _Table(pa.DataFrameModel):
    class Config:
        strict = True
        ordered = True


class Prompts(_Table):
    """data/prompts/X.parquet: one row per prompt, sorted by sample_id."""

    sample_id: str = pa.Field(unique=True, str_matches=SAMPLE_ID)
    """`dataset:id`; ids of different datasets never meet."""
    dataset: str
    messages: pl.List = _list(MESSAGES)
    """Ends with a user turn; system first if at all; user and assistant turns alternate."""
    prompt_hash: str = pa.Field(unique=True, str_matches=SHA256)
    """Of the normalised user turns; rows with the same hash are the same prompt."""
    task: str = pa.Field(nullable=True)

    @pa.dataframe_check
    @classmethod
    def sample_id_names_its_dataset(cls, data: pa.PolarsData) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("sample_id").str.starts_with(pl.col("dataset") + ":"))

    @pa.dataframe_check
    @classmethod
    def last_turn_is_of_the_user(cls, data: pa.PolarsData) -> pl.LazyFrame:
        return data.lazyframe.select(pl.col("messages").list.last().struct.field("role") == "user")


class RejectedPrompts(_Table):
    """data/prompts/rejected/X.parquet: rows of the source that became no prompt."""

    sample_id: str
    reason: str
    detail: str


class Responses(_Table):
    """raw_responses.jsonl as a table, `usage` flattened; not yet judged, so nearly everything may be null."""

    sample_id: str = pa.Field(unique=True, str_matches=SAMPLE_ID)
    dataset: str
    prompt_hash: str = pa.Field(str_matches=SHA256)
    messages: pl.List = _list(MESSAGES)
    """What was asked; the answer is not among them."""
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
    """The generated ids as the server sent them."""
    model: str = pa.Field(nullable=True)
    request_key: str
    """Hash of everything that decides the answer."""


class Validated(Responses):
    """data/validated/X.parquet: the responses that break no rule."""

    finish_reason: str = pa.Field(isin=FINISH_REASONS)
    prompt_token_ids: pl.List = _list(TOKEN_IDS)
    token_ids: pl.List = _list(TOKEN_IDS)
    task: str = pa.Field(nullable=True)
    truncated: bool
    """The answer was cut: it does not end with an end-of-turn token."""


class Quarantined(_Table):
    """data/quarantine/X.parquet: responses that break a rule, whole."""

    sample_id: str = pa.Field(unique=True)
    rule: str
    """The first rule that the row breaks."""
    value: str
    """What was seen."""
    row: str
    """The line of raw_responses.jsonl."""


class Sequences(_Table):
    """data/sequences/{train,val,eval}.parquet: exact token sequences, sorted by sequence_id."""

    sequence_id: str = pa.Field(unique=True)
    dataset: str
    sample_id: str
    prompt_hash: str = pa.Field(str_matches=SHA256)
    token_ids: pl.List = _list(TOKEN_IDS)
    """Prompt ids, then generated ids."""
    loss_mask: pl.List = _list(LOSS_MASK)
    """True on generated ids; as long as token_ids."""
    num_prompt_tokens: pl.Int32 = pa.Field(ge=1)
    num_generated_tokens: pl.Int32 = pa.Field(ge=1)
    truncated: bool
    task: str = pa.Field(nullable=True)

    @pa.dataframe_check
    @classmethod
    def lengths_agree(cls, data: pa.PolarsData) -> pl.LazyFrame:
        tokens = pl.col("num_prompt_tokens") + pl.col("num_generated_tokens")
        return data.lazyframe.select(
            (pl.col("token_ids").list.len() == tokens) & (pl.col("loss_mask").list.len() == tokens)
        )

    @pa.dataframe_check
    @classmethod
    def mask_is_the_generated_tail(cls, data: pa.PolarsData) -> pl.LazyFrame:
        tail = pl.col("loss_mask").list.tail(pl.col("num_generated_tokens"))
        return data.lazyframe.select(
            (pl.col("loss_mask").list.sum() == pl.col("num_generated_tokens")) & tail.list.all()
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
