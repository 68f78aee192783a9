"""A byte-level BPE tokenizer with a table of ids that a person can read: bytes are 0..255, words and markers named."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers

WORDS = {
    "\n\n": 256,
    "user": 257,
    "assistant": 258,
    "system": 259,
    "tool": 260,
    "analysis": 261,
    "commentary": 262,
    "final": 263,
    "json": 264,
    " to": 265,
    "functions": 266,
    "add": 267,
    "Two": 270,
    " plus": 271,
    " two": 272,
    "Four": 273,
    "It": 274,
    " is": 275,
    " easy": 276,
    "Hello": 277,
    "Hi": 278,
    "You": 280,
    " are": 281,
    " Kimi": 282,
    " an": 283,
    " AI": 284,
    " assistant": 285,
    " created": 286,
    " by": 287,
    " Moonshot": 288,
    " Return": 290,
    " of": 291,
    "nothink": 292,
}
"""Words of more than one byte, each one token; everything else is bytes, and a byte's token has its value as id."""
FIRST_MARKER = 600
FIRST_PART = 700
"""Ids from here on are the parts of words that merges go through."""
WORD_PATTERN = r"\n+| ?[A-Za-z]+| ?[0-9]| ?[^\sA-Za-z0-9]+|\s+"


def ids_of(tokens: Iterable[str], markers: Mapping[str, int]) -> list[int]:
    """Ids of tokens that are spelled out; a token that is no marker, word or byte is an error."""
    return [_id_of(token, markers) for token in tokens]


def _id_of(token: str, markers: Mapping[str, int]) -> int:
    table = {**WORDS, **markers}
    if token in table:
        return table[token]
    (byte,) = token.encode()
    return byte


def write_tokenizer(
    directory: Path, markers: Mapping[str, int], special: Iterable[str], template: str, eos: str
) -> Path:
    """tokenizer.json, tokenizer_config.json, chat_template.jinja; `special` are those markers that are special."""
    backend = _backend(markers)
    special = [marker for marker in markers if marker in set(special)]
    backend.add_special_tokens(special)
    backend.add_tokens([marker for marker in markers if marker not in special])
    directory.mkdir(parents=True, exist_ok=True)
    backend.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": eos, "pad_token": eos}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(template)
    return directory


def _backend(markers: Mapping[str, int]) -> Tokenizer:
    letters = _letters()
    vocab = {letters[byte]: byte for byte in range(256)}
    merges = []
    next_part = FIRST_PART
    for word, token in sorted(
        WORDS.items(), key=lambda item: not item[0].startswith(" ")
    ):  # else "as" splits " easy"
        spelled = "".join(letters[byte] for byte in word.encode())
        for length in range(2, len(spelled) + 1):
            merges.append((spelled[: length - 1], spelled[length - 1]))
            if length < len(spelled) and spelled[:length] not in vocab:
                vocab[spelled[:length]] = next_part
                next_part += 1
        assert spelled not in vocab, f"{word!r} is a part of a word before it"
        vocab[spelled] = token
    vocab |= markers
    taken = set(vocab.values())
    assert len(taken) == len(vocab)
    vocab |= {f"<unused{token}>": token for token in range(next_part) if token not in taken}
    backend = Tokenizer(models.BPE(vocab, list(dict.fromkeys(merges))))
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(WORD_PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    return backend


def _letters() -> dict[int, str]:
    """The letter that stands for each byte in a byte-level vocabulary: printable bytes themselves, then U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {byte: chr(byte) for byte in printable} | {
        byte: chr(256 + index) for index, byte in enumerate(others)
    }
