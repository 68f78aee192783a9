"""A word-level tokenizer with the ids of hand_made, and a ChatML-like template, written to a folder."""

from __future__ import annotations

import json
from pathlib import Path

from tokenizers import Regex, Tokenizer, models, pre_tokenizers

WORDS = {
    8: "user",
    9: "assistant",
    10: "\n",
    11: "system",
    20: "add",
    21: "one",
    22: "two",
    30: "it",
    31: "is",
}
MARKERS = {0: "<unk>", 1: "<|start|>", 2: "<|end|>", 3: "<think>", 4: "</think>"}

TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n"
    "{% if message['role'] == 'assistant' and '</think>' in message['content'] %}"
    "{{ message['content'].split('</think>')[-1] }}{% else %}{{ message['content'] }}{% endif %}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% if open_think %}<think>{% endif %}{% endif %}"
)
"""Drops the thinking of history turns, as templates of thinking models do; `open_think` prefills the marker."""


def write_tokenizer(directory: Path) -> Path:
    """Write tokenizer.json, tokenizer_config.json and chat_template.jinja; returns the folder."""
    vocab = {f"unused{token}": token for token in range(40)}
    for token, word in {**MARKERS, **WORDS}.items():
        del vocab[f"unused{token}"]
        vocab[word] = token
    tokenizer = Tokenizer(models.WordLevel(vocab, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"\n|[^ \n]+"), "removed", invert=True)
    tokenizer.add_special_tokens(list(MARKERS.values())[:3])
    tokenizer.add_tokens(list(MARKERS.values())[3:])
    directory.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "<unk>", "eos_token": "<|end|>"}
    (directory / "tokenizer_config.json").write_text(json.dumps(config))
    (directory / "chat_template.jinja").write_text(TEMPLATE)
    return directory
