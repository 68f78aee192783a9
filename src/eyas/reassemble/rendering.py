"""Proof that the server saw the prompts as the target's own template renders them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import zip_longest
from pathlib import Path
from typing import Any

import polars as pl

from eyas.errors import GateError, InputError
from eyas.target.template import load_tokenizer, render_text

COLUMNS = ("sample_id", "turn", "messages", "tools", "prompt_token_ids")


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


class Renderer:
    """Renders prompts as the server of one dataset does, many at a time."""

    def __init__(
        self, target: Path, template_kwargs: dict[str, Any], *, trust_remote_code: bool = False
    ) -> None:
        self.tokenizer = load_tokenizer(target, trust_remote_code=trust_remote_code)
        self._template_kwargs = template_kwargs

    def render(self, rows: pl.DataFrame) -> list[list[int]]:
        """Prompt ids of rows with the columns sample_id, messages and tools.

        Raises:
            InputError: the template refuses the messages of a row; names it.
        """
        return self._encode(
            [self._text(*row) for row in rows.select("sample_id", "messages", "tools").iter_rows()]
        )

    def _text(self, sample_id: str, messages: list[dict[str, Any]], tools: str | None) -> str:
        try:
            return render_text(
                self.tokenizer,
                messages,
                generation_prompt=True,
                template_kwargs=self._template_kwargs,
                tools=json.loads(tools) if tools else None,
            )
        except InputError as error:
            raise InputError(error.what, where=sample_id, hint=error.hint) from error

    def _encode(self, texts: list[str]) -> list[list[int]]:
        """Special tokens in the texts recognised, none added: what target.template.encode does, without offsets."""
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        if backend is None or not texts:
            return [list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        return [encoding.ids for encoding in backend.encode_batch_fast(texts, add_special_tokens=False)]


def mismatches(rows: Iterable[pl.DataFrame], renderer: Renderer) -> Iterator[Mismatch]:
    """Prompts whose local rendering is not, id by id, what the server reports as prompt_token_ids.

    `rows` in pieces, with the columns COLUMNS; rows without ids are passed over.
    """
    for piece in rows:
        given = piece.filter(pl.col("prompt_token_ids").is_not_null())
        rendered = pl.Series("local", renderer.render(given), dtype=pl.List(pl.Int32))
        for sample_id, server_ids, local_ids in (
            given.with_columns(rendered)
            .filter(pl.col("local") != pl.col("prompt_token_ids"))
            .select("sample_id", "prompt_token_ids", "local")
            .iter_rows()
        ):
            yield _first_difference(sample_id, server_ids, local_ids)


def refuse_mismatches(found: list[Mismatch], checked: int, tokenizer: Any) -> None:
    """No prompt may differ: hidden states would be computed for other tokens than the target answered to.

    Raises:
        GateError: naming the first differing token of the first mismatch on both sides.
    """
    if not found:
        return
    first = found[0]
    server, local = (_named(token_id, tokenizer) for token_id in (first.server_id, first.local_id))
    raise GateError(
        f"{len(found)} of {checked} prompts are rendered differently by the server: the first differs at token "
        f"{first.position}, server {server}, here {local}",
        where=first.sample_id,
        hint="the server must serve models/target with its own chat template, and no other default system message",
    )


def _first_difference(sample_id: str, server_ids: list[int], local_ids: list[int]) -> Mismatch:
    pairs = enumerate(zip_longest(server_ids, local_ids))
    position, (server_id, local_id) = next((place, pair) for place, pair in pairs if pair[0] != pair[1])
    return Mismatch(sample_id, position, server_id, local_id)


def _named(token_id: int | None, tokenizer: Any) -> str:
    if token_id is None:
        return "nothing (its prompt ends)"
    return f"{token_id} {tokenizer.convert_ids_to_tokens(token_id)!r}"
