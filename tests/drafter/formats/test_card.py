from __future__ import annotations

import dataclasses
import shlex
from typing import Any

import pytest
import yaml

from eyas.drafter.formats.card import CardFacts, card_text, completed
from eyas.drafter.formats.serving import Serving
from eyas.drafter.formats.writing import FORMATS
from tests.export.conftest import PROFILE, make_config, replaced

PUBLIC = replaced(PROFILE, source="hub:someone/Tiny-1B", revision="c0ffee", name="Tiny-1B", dtype="bfloat16")
FACTS = CardFacts(
    serving=Serving(PUBLIC, "bfloat16", draft_tokens=4),
    config=make_config(),
    parameters=12345,
    recipe={"ttt_steps": 3, "lr": 1e-3},
    sequences={
        "splits": {
            "train": {"by_dataset": {"mine": 50, "other": 7}, "prompt_tokens": 100, "generated_tokens": 200},
            "eval": {"by_dataset": {"held": 9}, "prompt_tokens": 10, "generated_tokens": 20},
        }
    },
    training={
        "acceptance_length": 1.9417, "val_sequences": 32, "steps": 461, "epochs": 5,
        "trained_tokens_seen": 236960, "published_step": 400,
    },
)  # fmt: skip


def metadata(text: str) -> dict[str, Any]:
    values: dict[str, Any] = yaml.safe_load(text.split("---\n")[1])
    return values


@pytest.mark.parametrize("name", FORMATS)
def test_a_card_tells_what_the_drafter_is(name: str) -> None:
    text = card_text(name, FACTS)
    for expected in (
        "# EAGLE-3 drafter for Tiny-1B",
        "| model | `hub:someone/Tiny-1B` |",
        "| revision | `c0ffee` |",
        "1 + accepted / drafts",
        "while training: 1.942 with 3 draft tokens (32 sequences",
        "| `mine` | 50 | 0 |",
        "| `held` | 0 | 9 |",
        "110 prompt tokens, which are not trained on, and 220 generated ones",
        "461 steps in 5 epochs",
        '"lr": 0.001',
        "| draft vocabulary | 24 of 60 tokens |",
        "| aux layers | [2, 4, 5] ",
    ):
        assert expected in text
    assert ("[1, 3, 4] as outputs of layers" in text) == (name == "sglang")
    assert "None" not in text


def test_the_licence_is_left_to_the_publisher() -> None:
    values = metadata(card_text("vllm", FACTS))
    assert "license" not in values
    assert values["base_model"] == "someone/Tiny-1B"
    assert "# license:" in card_text("vllm", FACTS)
    private = dataclasses.replace(FACTS, serving=Serving(PROFILE, "float32", 3))
    assert "base_model" not in metadata(card_text("vllm", private))
    assert "put your own in its place" in card_text("vllm", private)


def test_numbers_that_are_not_known_yet_are_not_invented() -> None:
    text = card_text("vllm", FACTS)
    assert "Simulated on held-out prompts: not known when this folder was written" in text
    assert "The stage `engine` writes it to `reports/engine.json`" in text


def test_numbers_that_are_known_later_complete_the_card() -> None:
    simulated = {"datasets": {"held": {"acceptance": {"length": 2.3456}, "drafts": 321}}}
    measured = {"datasets": {"held": {"acceptance": {"length": None}, "drafts": 0}}}
    before = card_text("vllm", FACTS)
    text = completed(before, simulated, measured)
    assert "Simulated on held-out prompts, `held`: 2.346 over 321 drafts." in text
    assert "Measured in vLLM, `held`: unknown over 0 drafts." in text
    assert "not known when" not in text
    assert completed(text, None, None) == before
    assert completed("# A card of another hand\n", simulated, measured) == "# A card of another hand\n"


def test_what_was_assumed_of_an_imported_drafter_stands_in_the_card() -> None:
    origin = {"folder": "heads/base", "format": "vllm", "assumptions": ["rope_theta is 10000: nobody said"]}
    text = card_text("vllm", dataclasses.replace(FACTS, origin=origin))
    assert "It began as `heads/base`, a drafter in the format vllm" in text
    assert "* rope_theta is 10000: nobody said" in text


def test_the_commands_are_what_a_shell_reads() -> None:
    words = {name: shlex.split(command(card_text(name, FACTS))) for name in FORMATS}
    folder = "PATH_OR_ID_OF_THIS_FOLDER"
    assert words["vllm"][:5] == ["vllm", "serve", "someone/Tiny-1B", "--dtype", "bfloat16"]
    assert yaml.safe_load(words["vllm"][-1]) == {
        "method": "eagle3",
        "model": folder,
        "num_speculative_tokens": 4,
    }
    assert words["speculators"] == ["vllm", "serve", folder, "--dtype", "bfloat16"]
    sglang = words["sglang"]
    assert sglang[sglang.index("--speculative-draft-model-path") + 1] == folder
    assert sglang[sglang.index("--speculative-num-steps") + 1] == "4"
    assert sglang[sglang.index("--speculative-num-draft-tokens") + 1] == "5"


def command(text: str) -> str:
    return text.split("```sh\n")[1].split("```", maxsplit=1)[0].replace("\\\n", " ")
