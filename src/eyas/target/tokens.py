"""Marker texts as ids of a tokenizer."""

from __future__ import annotations

from typing import Any

from eyas.errors import InputError
from eyas.target.template import encode


def added_ids(tokenizer: Any) -> dict[str, int]:
    """The added tokens of a tokenizer, special or not: texts that are one id wherever they stand."""
    return {str(text): int(token) for text, token in tokenizer.get_added_vocab().items()}


def first_is_added(tokenizer: Any, text: str) -> bool:
    """Whether a text begins with an added token, so that nothing before it can merge into it."""
    ids = encode(tokenizer, text)
    return bool(ids) and ids[0] in set(added_ids(tokenizer).values())


def marker_ids(tokenizer: Any, text: str, *, closed: bool = True) -> list[int]:
    """The ids of a marker: the same whatever stands around it.

    That holds because it begins with an added token and ends with one, as most markers are one token. A marker that
    whitespace follows need not be `closed`: words do not merge with the whitespace behind them.

    Raises:
        InputError: the text is ordinary text to the tokenizer, or not the same when decoded.
    """
    added = set(added_ids(tokenizer).values())
    ids = encode(tokenizer, text)
    if not ids or ids[0] not in added or (closed and ids[-1] not in added):
        raise InputError(
            f"{text!r} is not a token of its own: the tokenizer makes ids {ids} of it",
            where=str(tokenizer.name_or_path),
            hint="a marker must be an added token, or begin and end with one; if a gap follows it, begin with one",
        )
    back = tokenizer.decode(ids, skip_special_tokens=False)
    if back != text:
        raise InputError(
            f"{text!r} becomes ids {ids}, which are {back!r} again", where=str(tokenizer.name_or_path)
        )
    return ids
