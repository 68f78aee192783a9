from __future__ import annotations

from typing import Any

import pytest
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eyas.reassemble.spans import SpanEncoder


def bytes_tokenizer(*added: AddedToken | str, special: tuple[str, ...] = ()) -> Any:
    """A token per byte, its alphabet in the order of the byte-level letters; then added tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(special))
    backend.add_tokens(list(added))
    return PreTrainedTokenizerFast(tokenizer_object=backend)


@pytest.mark.parametrize(
    "text", ["<think>", "a<think>b</think>", "<s></s>", "</think></think>", "<s> <think>\n"]
)
def test_markers_in_text_are_ordinary_text_special_or_not(text: str) -> None:
    tokenizer = bytes_tokenizer("<think>", "</think>", special=("<s>", "</s>"))
    ids = SpanEncoder(tokenizer).encode(text)
    assert len(ids) == len(text)  # a token per byte
    assert max(ids) < 256
    assert tokenizer.decode(ids) == text
    assert len(tokenizer(text)["input_ids"]) < len(text)  # the tokenizer itself finds them


def test_added_white_space_is_how_the_target_writes_it() -> None:
    two, four = AddedToken("  ", normalized=False), AddedToken("    ", normalized=False)
    tokenizer = bytes_tokenizer("<think>", two, "</think>", four, special=("<s>",))
    encoder = SpanEncoder(tokenizer)
    for text in ("a  b", "    def f():", "      x", "  <think>  "):
        spaces = [token for token in encoder.encode(text) if token >= 256]
        expected = tokenizer(text.replace("<think>", "-------"), add_special_tokens=False)["input_ids"]
        assert spaces == [token for token in expected if token >= 256]
        assert tokenizer.decode(encoder.encode(text)) == text


def test_a_span_is_no_start_of_a_text() -> None:
    pieces = ["<unk>", "▁", "a", "b", "▁a", "\n"]
    backend = Tokenizer(
        models.Unigram([(piece, -float(place)) for place, piece in enumerate(pieces)], unk_id=0)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    backend.add_tokens(["<think>"])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend)
    behind_the_marker = tokenizer("<think>ab", add_special_tokens=False)["input_ids"][1:]
    assert SpanEncoder(tokenizer).encode("ab") == behind_the_marker == [2, 3]
    assert tokenizer("ab", add_special_tokens=False)["input_ids"] == [1, 2, 3]


def test_a_marker_without_ordinary_tokens_is_an_error() -> None:
    words = ["<unk>", "it", "<think>"]
    backend = Tokenizer(
        models.WordLevel({word: place for place, word in enumerate(words)}, unk_token="<unk>")
    )
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_tokens(["<think>"])
    encoder = SpanEncoder(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert encoder.encode("it it") == [1, 1]
    with pytest.raises(ValueError, match="takes text for '<think>'"):
        encoder.encode("it <think> it")


class SlowTokenizer:
    """A tokenizer without a tokenizer.json, as far as a SpanEncoder needs one."""

    def __init__(self, *, obeys: bool) -> None:
        self.obeys = obeys

    def get_added_vocab(self) -> dict[str, int]:
        return {"<think>": 7}

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        return ["<think>"] * len(ids)

    def __call__(
        self, text: str, *, add_special_tokens: bool, split_special_tokens: bool
    ) -> dict[str, list[int]]:
        assert not add_special_tokens
        plain = split_special_tokens and self.obeys
        return {"input_ids": [1, 2] if plain else [7]}


def test_tokenizers_in_python_are_asked_for_plain_text_and_not_trusted() -> None:
    assert SpanEncoder(SlowTokenizer(obeys=True)).encode("<think>") == [1, 2]
    with pytest.raises(ValueError, match="takes text for"):
        SpanEncoder(SlowTokenizer(obeys=False)).encode("<think>")
    assert SpanEncoder(SlowTokenizer(obeys=True)).encode("") == []
