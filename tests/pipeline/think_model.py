"""A model that thinks: the default target with two renamed tokens, taught by a few dozen replies to use them.

No small model that thinks by itself can be installed as a package, so the tests make one (under a minute on two
cores). It is kept in pytest's cache under a digest of all that decides it. By hand:
`python -m tests.pipeline.think_model DIRECTORY`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from omegaconf import OmegaConf

from eyas.files import atomic_directory, write_json
from eyas.hashing import digest
from eyas.target.bring import bring_target
from eyas.target.params import TargetParams
from eyas.target.template import encode, load_tokenizer, render_prompt

ROOT = Path(__file__).parents[2]
MARKERS = {"<repo_name>": "<think>", "<reponame>": "</think>"}
"""Added tokens that the target never uses, and their new names."""
START_ID, END_ID, END_OF_TURN_ID = 3, 4, 2
STEPS, BATCH, LEARNING_RATE, LAYERS_TRAINED = 24, 4, 3e-4, 8
BUILD_TIMEOUT_S = 600

TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{% if keep_thinking and message['reasoning'] %}<think>{{ message['reasoning'] }}</think>{% endif %}"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if prefill %}<think>{% endif %}{% endif %}"
)
"""ChatML. `prefill` puts the opening marker into the prompt, as Kimi-K2.5 and Qwen3.5 do; `keep_thinking` renders
the thinking of earlier turns, which is dropped otherwise."""


@dataclass(frozen=True)
class Example:
    """Token ids of a prompt and of the reply to learn, its end of turn included."""

    prompt: list[int]
    reply: list[int]

    @property
    def length(self) -> int:
        return len(self.prompt) + len(self.reply)


def think_model(cache: pytest.Cache) -> Path:
    """Folder of the think model, made now if this recipe's is not there yet."""
    directory = cache.mkdir("think-model") / recipe_digest()[:16]
    if not directory.exists():
        command = [sys.executable, "-m", "tests.pipeline.think_model", str(directory)]
        subprocess.run(command, cwd=ROOT, check=True, timeout=BUILD_TIMEOUT_S)
    return directory


def recipe_digest() -> str:
    """Changes with this file, the target and the libraries that train it."""
    libraries = [version(name) for name in ("torch", "transformers", "gguf")]
    return digest([Path(__file__).read_text(), _target(), libraries])


def build(directory: Path) -> None:
    """Convert the default target, rename its markers, train it and write it in bfloat16."""
    with TemporaryDirectory() as converted, atomic_directory(directory) as temporary:
        source = Path(converted)
        bring_target(TargetParams(**_target()), source)
        _rename_tokens(source / "tokenizer.json")
        (source / "chat_template.jinja").write_text(TEMPLATE)
        _train(source).save_pretrained(temporary)
        for path in source.iterdir():
            if path.name.startswith(("tokenizer", "chat_template", "generation_config")):
                (temporary / path.name).write_bytes(path.read_bytes())
        for path in temporary.iterdir():
            path.chmod(0o644)


def replies() -> list[tuple[str, str]]:
    """Prompts, and what the model learns to generate for them."""
    days = ["Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday", "Monday"]
    words = ["sun", "tree", "river", "stone", "bread", "music", "winter", "garden", "window"]
    pairs = [
        *((f"What is {a} plus {b}?", f"{a} and {b} make {a + b}.", f"The sum is {a + b}.")
          for a in (2, 4, 6, 8) for b in (3, 5, 7, 9)),
        *((f"Which day follows {day}?", f"After {day} comes {after}.", f"{after}.")
          for day, after in pairwise(days)),
        *((f"Write the word {word}.", f"The user wants {word}.", word) for word in words),
    ]  # fmt: skip
    return [(prompt, f"<think>\n{thought}\n</think>\n\n{answer}") for prompt, thought, answer in pairs]


def _target() -> dict[str, Any]:
    target = OmegaConf.to_container(OmegaConf.load(ROOT / "params.yaml").target)
    assert isinstance(target, dict)
    return {str(key): value for key, value in target.items()}


def _rename_tokens(path: Path) -> None:
    text = path.read_text()
    for old, new in MARKERS.items():
        text = text.replace(json.dumps(old), json.dumps(new))
    tokenizer = json.loads(text)
    for token in tokenizer["added_tokens"]:
        token["special"] = token["special"] and token["content"] not in MARKERS.values()
    write_json(path, tokenizer)


def _examples(source: Path) -> list[Example]:
    tokenizer = load_tokenizer(source)
    return [
        Example(
            render_prompt(source, [{"role": "user", "content": prompt}]),
            [*encode(tokenizer, reply), END_OF_TURN_ID],
        )
        for prompt, reply in replies()
    ]


def _train(source: Path) -> Any:
    """A few passes over the replies: the last layers and the tied embedding, with a loss on the replies only."""
    import torch
    from transformers import AutoModelForCausalLM

    torch.manual_seed(0)
    examples = _examples(source)
    auto: Any = AutoModelForCausalLM
    model = auto.from_pretrained(source, dtype=torch.float32)
    embedding = model.get_input_embeddings()
    model.requires_grad_(False)
    for module in (embedding, model.model.norm, *model.model.layers[-LAYERS_TRAINED:]):
        module.requires_grad_(True)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.0)
    for _ in range(STEPS):
        chosen = [examples[index] for index in torch.randperm(len(examples))[:BATCH].tolist()]
        ids, labels = _padded(chosen)
        inputs = embedding(torch.tensor(ids)).detach()  # so that the frozen layers need no backward pass
        model(inputs_embeds=inputs, labels=torch.tensor(labels)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model.to(torch.bfloat16)


def _padded(examples: list[Example]) -> tuple[list[list[int]], list[list[int]]]:
    """Ids and labels (-100: no loss), padded on the right to the longest example."""
    longest = max(example.length for example in examples)
    padding = [longest - example.length for example in examples]
    ids = [
        [*example.prompt, *example.reply, *[END_OF_TURN_ID] * missing]
        for example, missing in zip(examples, padding, strict=True)
    ]
    labels = [
        [*[-100] * len(example.prompt), *example.reply, *[-100] * missing]
        for example, missing in zip(examples, padding, strict=True)
    ]
    return ids, labels


if __name__ == "__main__":
    build(Path(sys.argv[1]))
