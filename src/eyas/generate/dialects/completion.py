"""Reading a chat completion that came in one piece; streams are put together to the same form first."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from eyas.generate.dialects import endings
from eyas.generate.dialects.ids import read_ids
from eyas.generate.dialects.message import read_message
from eyas.generate.dialects.reader import Found
from eyas.generate.dialects.usage import read_usage
from eyas.generate.failure import refuse_error, transient


@dataclass(frozen=True)
class IdFields:
    """Under which names a server sends ids."""

    prompt: str
    prompt_in: Literal["reply", "choice"]
    generated: str
    """In the choice."""


def read_completion(
    reply: Any, id_fields: IdFields | None, end_of_turn_ids: Collection[int], *, streamed: bool = False
) -> Found:
    """What a chat completion says. `id_fields` is None for a dialect without ids.

    Raises:
        RowFailure: the reply is an error, is not finished, or has not the form of a chat completion.
    """
    if not isinstance(reply, Mapping):
        raise transient("not_an_object", f"the reply is {type(reply).__name__}, not an object")
    refuse_error(reply)
    choice = only_choice(reply)
    message = choice.get("message")
    if not isinstance(message, Mapping):
        raise transient("no_message", "the reply's choice has no message")
    finish_reason = endings.finish_reason(choice.get("finish_reason"))
    stopped_by = choice.get("stop_reason")
    if stopped_by is None:
        stopped_by = choice.get("matched_stop")
    prompt_ids = token_ids = None
    if id_fields is not None:
        holder = reply if id_fields.prompt_in == "reply" else choice
        prompt_ids = read_ids(holder.get(id_fields.prompt), id_fields.prompt)
        token_ids = read_ids(choice.get(id_fields.generated), id_fields.generated)
    return Found(
        model=model_name(reply),
        message=read_message(message),
        finish_reason=finish_reason,
        stop_reason=endings.stop_reason(stopped_by, end_of_turn_ids),
        usage=read_usage(reply.get("usage")),
        prompt_token_ids=prompt_ids,
        token_ids=token_ids,
        streamed=streamed,
    )


def only_choice(reply: Mapping[str, Any]) -> Mapping[str, Any]:
    """The one choice of a reply.

    Raises:
        RowFailure: there is none, or more than one.
    """
    choices = reply.get("choices")
    if not isinstance(choices, list) or len(choices) != 1 or not isinstance(choices[0], Mapping):
        raise transient("no_choice", "the reply does not have exactly one choice")
    return choices[0]


def model_name(reply: Mapping[str, Any]) -> str | None:
    """The model that says it answered."""
    model = reply.get("model")
    return model if isinstance(model, str) else None
