"""Proof that the server saw the prompts as the target's own template renders them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import polars as pl

from eyas.errors import GateError
from eyas.target.template import load_tokenizer, render_prompt


@dataclass(frozen=True)
class Mismatch:
    """The first token at which two renderings of a prompt part."""

    sample_id: str
    position: int
    """Index into the prompt's ids."""
    server_id: int | None
    """None where the server's prompt ends first."""
    local_id: int | None
    """None where the local rendering ends first."""


def mismatches(
    rows: pl.DataFrame, target: Path, template_kwargs: dict[str, Any], *, trust_remote_code: bool = False
) -> list[Mismatch]:
    """Prompts whose local rendering is not, id by id, what the server reports as prompt_token_ids."""
    found: list[Mismatch] = []
    for sample_id, messages, server_ids in rows.select(
        "sample_id", "messages", "prompt_token_ids"
    ).iter_rows():
        local_ids = render_prompt(target, messages, template_kwargs, trust_remote_code=trust_remote_code)
        if local_ids != server_ids:
            found.append(_first_difference(sample_id, server_ids, local_ids))
    return found


def refuse_mismatches(
    found: list[Mismatch], checked: int, target: Path, *, trust_remote_code: bool = False
) -> None:
    """No prompt may differ: hidden states would be computed for other tokens than the target answered to.

    Raises:
        GateError: naming the first differing token of the first mismatch on both sides.
    """
    if not found:
        return
    first = found[0]
    server, local = (
        _named(token_id, target, trust_remote_code=trust_remote_code)
        for token_id in (first.server_id, first.local_id)
    )
    raise GateError(
        f"{len(found)} of {checked} prompts are rendered differently by the server: the first differs at token "
        f"{first.position}, server {server}, here {local}",
        where=first.sample_id,
        hint=f"the server must serve {target} with its own chat template, and no other default system message",
    )


def _first_difference(sample_id: str, server_ids: list[int], local_ids: list[int]) -> Mismatch:
    pairs = enumerate(zip_longest(server_ids, local_ids))
    position, (server_id, local_id) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    return Mismatch(sample_id, position, server_id, local_id)


def _named(token_id: int | None, target: Path, *, trust_remote_code: bool) -> str:
    if token_id is None:
        return "nothing (its prompt ends)"
    tokenizer = load_tokenizer(target, trust_remote_code=trust_remote_code)
    return f"{token_id} {tokenizer.convert_ids_to_tokens(token_id)!r}"
