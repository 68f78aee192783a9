"""Text spans to ids as the target's own tokenizer makes them between two markers, control tokens never among them.

A tokenizer finds its added tokens in any text. A span is what stands between markers, so a marker in it is text that
somebody wrote: it must come out as ordinary tokens. tokenizers' `encode_special_tokens` is not enough for that: it
spares the special tokens only, and the think markers of most families are added, but not special.
"""

from __future__ import annotations

import json
from typing import Any

ANCHOR = "\ue000eyas\ue001"
"""Stands before every span while it is encoded, so that it is not taken for the start of a text: some tokenizers put a
space there."""


class SpanEncoder:
    """Encodes spans; made once per tokenizer."""

    def __init__(self, tokenizer: Any) -> None:
        """`tokenizer` is one of target.template.load_tokenizer."""
        self._tokenizer = tokenizer
        backend = getattr(tokenizer, "backend_tokenizer", None)
        self._plain = None if backend is None else _plain_copy(backend)
        self._true_ids = {} if backend is None else _true_ids(self._plain, backend)
        added = tokenizer.get_added_vocab()
        self.control_ids = frozenset(int(token) for text, token in added.items() if text.strip())
        """Ids that no span may hold."""

    def encode(self, text: str) -> list[int]:
        """Ids of a span; every part of it is ordinary text.

        Raises:
            ValueError: the tokenizer has no ordinary tokens for a marker in the text.
        """
        if not text:
            return []
        if self._plain is None:
            ids = self._tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        else:
            (encoding,) = self._plain.encode_batch_fast([ANCHOR + text], add_special_tokens=False)
            encoded = encoding.ids[1:]
            ids = [self._true_ids.get(token, token) for token in encoded] if self._true_ids else encoded
        if control := self.control_ids.intersection(ids):
            names = self._tokenizer.convert_ids_to_tokens(sorted(control))
            raise ValueError(f"the tokenizer takes text for {', '.join(map(repr, names))}")
        return list(map(int, ids))


def _plain_copy(backend: Any) -> Any:
    """The tokenizer without its added tokens. Added white space stays: it is how the target writes ordinary text."""
    from tokenizers import AddedToken, Tokenizer

    description = json.loads(backend.to_str())
    spaces = [AddedToken(**_options(token)) for token in description["added_tokens"] if _is_space(token)]
    description["added_tokens"] = []
    description["post_processor"] = description["truncation"] = description["padding"] = None
    plain = Tokenizer.from_str(json.dumps(description))
    plain.add_tokens(spaces)
    plain.add_special_tokens([AddedToken(ANCHOR, normalized=False)])
    return plain


def _is_space(token: dict[str, Any]) -> bool:
    return not token["content"].strip() and not token["special"]


def _options(token: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in token.items() if key not in ("id", "special")}


def _true_ids(plain: Any, backend: Any) -> dict[int, int]:
    """Where the copy numbers added white space differently: its id -> the tokenizer's."""
    added = {token.content for token in plain.get_added_tokens_decoder().values()} - {ANCHOR}
    return {plain.token_to_id(text): backend.token_to_id(text) for text in added}
