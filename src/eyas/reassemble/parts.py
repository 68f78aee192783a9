"""Many prompts to ids in less time: a word is encoded once, however often it stands in them."""

from __future__ import annotations

import re
from array import array
from collections.abc import Callable, Iterable
from functools import partial
from itertools import chain
from string import ascii_letters, punctuation
from typing import Any

PROBES = 64
"""Texts that are encoded whole too, to see whether this tokenizer's parts are the whole."""
ID_BYTES = 4
MAX_WORDS = 1 << 18
"""So many words are remembered, some 50 MB."""

_WORD = re.compile(r" ?[^ ]+| +(?= )| +$")
"""What tokenizers that know words cut a text into at least: a word has the space before it, other spaces are apart."""
_WORD_OR_DIGIT = re.compile(r" ?[^ 0-9]+| ?[0-9]| +(?= )| +$")
"""The same for those that take each digit by itself: numbers differ from text to text, digits do not."""
_NUMBERS = " ".join(
    [f"{number:02}" for number in range(100)] + [f"{mark}5{mark}" for mark in ascii_letters + punctuation]
)
"""Encoded beside the probes, which may hold no numbers: a tokenizer that joins digits shows it here."""


def packed(ids: Iterable[int]) -> bytes:
    """Ids as int32 one behind the other: quick to join and to compare."""
    return array("i", ids).tobytes()


class PartEncoder:
    """Encodes texts part by part, ids `packed`.

    A fast tokenizer cuts a text at its control tokens before it does anything else, and most cut what is between at spaces
    too. Then the ids of the parts are those of the whole, unless the tokenizer looks beyond a cut. `encode` is for
    comparisons only: what differs must be encoded whole.
    """

    def __init__(self, backend: Any) -> None:
        """`backend` is a tokenizers.Tokenizer."""
        self._backend = backend
        added = backend.get_added_tokens_decoder()
        self._control = {token.content: packed([number]) for number, token in added.items() if token.special}
        longest_first = sorted(self._control, key=len, reverse=True)
        self._border = re.compile(f"({'|'.join(map(re.escape, longest_first))})") if longest_first else None
        self._words: dict[str, bytes] = {}
        self._chosen: Callable[[list[str]], list[bytes]] | None = None

    def encode(self, texts: list[str]) -> list[bytes]:
        """Ids of each text, special tokens recognised, none added."""
        if self._chosen is None and texts:
            self._chosen = self._finest_exact(texts)
        return self._chosen(texts) if self._chosen else []

    def encode_whole(self, texts: list[str]) -> list[bytes]:
        """The same, each text in one piece."""
        return [packed(ids) for ids in self.ids_of(texts)]

    def ids_of(self, texts: list[str]) -> list[list[int]]:
        """The same as lists of ids."""
        return [encoding.ids for encoding in self._backend.encode_batch_fast(texts, add_special_tokens=False)]

    def _finest_exact(self, texts: list[str]) -> Callable[[list[str]], list[bytes]]:
        """The way with the smallest parts that are the whole in these texts."""
        probes = [*texts[:: max(1, len(texts) // PROBES)], _NUMBERS]
        whole = self.encode_whole(probes)
        ways: list[Callable[[list[str]], list[bytes]]] = [
            partial(self._in_words, _WORD_OR_DIGIT),
            partial(self._in_words, _WORD),
            self._between_controls,
        ]
        return next((way for way in ways if way(probes) == whole), self.encode_whole)

    def _in_words(self, word: re.Pattern[str], texts: list[str]) -> list[bytes]:
        cut = self._cut(texts)
        words = {part: word.findall(part) for part in _distinct(cut) if part not in self._control}
        if len(self._words) > MAX_WORDS:
            self._words.clear()
        unknown = [found for found in _distinct(words.values()) if found not in self._words]
        self._words |= zip(unknown, self.encode_whole(unknown), strict=True)
        known = self._words.__getitem__
        return _joined(cut, self._control | {part: b"".join(map(known, words[part])) for part in words})

    def _between_controls(self, texts: list[str]) -> list[bytes]:
        cut = self._cut(texts)
        unknown = [part for part in _distinct(cut) if part not in self._control]
        return _joined(cut, self._control | dict(zip(unknown, self.encode_whole(unknown), strict=True)))

    def _cut(self, texts: list[str]) -> list[list[str]]:
        return [[text] for text in texts] if self._border is None else list(map(self._border.split, texts))


def _distinct(groups: Iterable[list[str]]) -> Iterable[str]:
    return dict.fromkeys(chain.from_iterable(groups))


def _joined(cut: list[list[str]], known: dict[str, bytes]) -> list[bytes]:
    return [b"".join(map(known.__getitem__, parts)) for parts in cut]
