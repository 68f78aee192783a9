"""Proof that the server saw the prompts as the target's own template renders them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby, islice, zip_longest
from pathlib import Path
from typing import Any

import polars as pl

from eyas.errors import GateError, InputError
from eyas.reassemble.parts import ID_BYTES, PartEncoder, packed
from eyas.schema import TOKEN_IDS
from eyas.target.template import load_tokenizer, render_texts

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
        backend = getattr(self.tokenizer, "backend_tokenizer", None)
        self._encoder = None if backend is None else PartEncoder(backend)

    def render(self, rows: pl.DataFrame) -> list[list[int]]:
        """Prompt ids of rows with the columns sample_id, messages and tools.

        Raises:
            InputError: the template refuses the messages of a row; names it.
        """
        return self._ids(self._texts(rows))

    def differing(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Of rows with the columns COLUMNS, those whose prompt ids are not those of `render`, which are in `local`.

        Raises:
            InputError: the template refuses the messages of a row; names it.
        """
        texts = self._texts(rows)
        in_parts = self._packed(texts) if self._encoder is None else self._encoder.encode(texts)
        places = _unequal(rows["prompt_token_ids"], in_parts)  # nearly always none
        left, whole = rows[places], self._ids([texts[place] for place in places])
        local = pl.Series("local", whole, dtype=TOKEN_IDS)
        return left.with_columns(local).filter(pl.col("prompt_token_ids") != local)

    def _texts(self, rows: pl.DataFrame) -> list[str]:
        asked = _messages(rows["messages"])
        texts: list[str] = []
        for tools, run in groupby(rows["tools"]):
            start, end = len(texts), len(texts) + len(list(run))
            texts += self._rendered(rows["sample_id"][start:end], asked[start:end], tools)
        return texts

    def _rendered(
        self, sample_ids: Iterable[str], asked: list[list[dict[str, Any]]], tools: str | None
    ) -> list[str]:
        """Texts of conversations that offer the same tools."""
        offered = json.loads(tools) if tools else None
        try:
            return render_texts(self.tokenizer, asked, self._template_kwargs, tools=offered)
        except InputError as all_of_them:
            for sample_id, messages in zip(sample_ids, asked, strict=True):
                try:
                    render_texts(self.tokenizer, [messages], self._template_kwargs, tools=offered)
                except InputError as error:
                    raise InputError(error.what, where=sample_id, hint=error.hint) from all_of_them
            raise

    def _ids(self, texts: list[str]) -> list[list[int]]:
        """Special tokens in the texts recognised, none added: what target.template.encode does, without offsets."""
        if self._encoder is None:
            return [list(self.tokenizer(text, add_special_tokens=False)["input_ids"]) for text in texts]
        return self._encoder.ids_of(texts)

    def _packed(self, texts: list[str]) -> list[bytes]:
        return [packed(ids) for ids in self._ids(texts)]


def mismatches(rows: Iterable[pl.DataFrame], renderer: Renderer) -> Iterator[Mismatch]:
    """Prompts whose local rendering is not, id by id, what the server reports as prompt_token_ids.

    `rows` in pieces, with the columns COLUMNS; rows without ids are passed over.
    """
    for piece in rows:
        given = piece.filter(pl.col("prompt_token_ids").is_not_null())
        different = renderer.differing(given).select("sample_id", "prompt_token_ids", "local")
        for sample_id, server_ids, local_ids in different.iter_rows():
            yield _first_difference(sample_id, server_ids, local_ids)


def _unequal(server: pl.Series, local: list[bytes]) -> list[int]:
    """Places of the rows whose ids are others than the packed ones."""
    ids = server.explode(empty_as_null=False).to_numpy().tobytes()
    ends = (server.list.len().cum_sum().cast(pl.Int64) * ID_BYTES).to_list()
    spans = zip([0, *ends], ends, local, strict=False)
    return [place for place, (start, end, ours) in enumerate(spans) if ids[start:end] != ours]


def _messages(column: pl.Series) -> list[list[dict[str, Any]]]:
    """The messages without the keys that are null in all of them."""
    flat = column.filter(column.list.len() > 0).explode().struct.unnest()
    names = [name for name in flat.columns if flat[name].null_count() < flat.height]
    rows = iter(flat.select(names).rows(named=True))
    return [list(islice(rows, length)) for length in column.list.len()]


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
