"""A tokenizer with one token per character, and one for each think marker, so that lengths can be counted by hand."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

MARKERS = ("<unk>", "<|end|>", "<think>", "</think>")


def write_character_tokenizer(directory: Path) -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; returns the folder."""
    characters = [*map(chr, range(32, 127)), "\n", "\t", "é"]
    vocab = {text: token for token, text in enumerate([*MARKERS, *characters])}
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    tokenizer.add_special_tokens(list(MARKERS[:2]))
    tokenizer.add_tokens(list(MARKERS[2:]))
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<|end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(
        "{% for message in messages %}{{ message['content'] }}<|end|>{% endfor %}"
        "{% if add_generation_prompt %}>{% endif %}"
    )
    return directory
