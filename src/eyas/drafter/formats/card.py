"""The model card (README.md) of an exported folder: what it is, how to serve it, what it was made of. Free of torch.

A card says where each number comes from, and of a number that is not known yet, which stage measures it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from eyas.drafter.config import DrafterConfig
from eyas.drafter.formats.commands import command
from eyas.drafter.formats.serving import Serving
from eyas.reports import counted_alike
from eyas.target.layers import to_output_ids

LIBRARIES = {"vllm": "vllm", "sglang": "sglang", "speculators": "vllm"}
ENGINES = {
    "vllm": "vLLM (plain EAGLE-3 checkpoint)",
    "sglang": "SGLang (plain EAGLE-3 checkpoint)",
    "speculators": "vLLM (speculators format)",
}
SIMULATED, MEASURED = "Simulated on held-out prompts", "Measured in vLLM"
FORMULA = "1 + accepted / drafts: tokens per step of the target, its own token included"


@dataclass(frozen=True)
class CardFacts:
    """Everything that a card tells; reports as their JSON files hold them."""

    serving: Serving
    config: DrafterConfig
    parameters: int
    """Numbers in the weights, without maps."""
    recipe: Mapping[str, Any]
    """The `train` section of params.yaml."""
    sequences: Mapping[str, Any]
    """reports/reassembly.json."""
    training: Mapping[str, Any]
    """reports/train/summary.json."""
    origin: Mapping[str, Any] | None = None
    """What the drafter was before training; None if it was trained from nothing."""


def card_text(name: str, facts: CardFacts) -> str:
    """The card of a folder of format `name`, as Markdown with the metadata that model hubs read."""
    parts = [
        _metadata(name, facts),
        f"# EAGLE-3 drafter for {facts.serving.profile.name}",
        "Drafts tokens for the model below, which checks them: the answers stay the model's own, and come faster.",
        _target(facts),
        _serve(name, facts),
        _acceptance(facts),
        _data(facts),
        _training(facts),
        _checkpoint(name, facts),
        _publishing(facts),
    ]
    return "\n\n".join(parts) + "\n"


def completed(card: str, simulated: Mapping[str, Any] | None, measured: Mapping[str, Any] | None) -> str:
    """A card that export wrote, with the numbers of reports/acceptance.json and reports/engine.json in their places."""
    lines = card.split("\n")
    places = [
        place for place, line in enumerate(lines) if line.startswith((f"* {SIMULATED}", f"* {MEASURED}"))
    ]
    if not places:
        return card
    return "\n".join([*lines[: places[0]], *_later_lines(simulated, measured), *lines[places[-1] + 1 :]])


def _metadata(name: str, facts: CardFacts) -> str:
    """The licence is the publisher's decision: a comment holds its place."""
    lines = ["# license: set it before you publish; target and data may bind it"]
    if facts.serving.target_is_public:
        lines.append(f"base_model: {facts.serving.target_name}")
    lines += [f"library_name: {LIBRARIES[name]}", "pipeline_tag: text-generation", "tags:"]
    lines += [f"- {tag}" for tag in ("eagle3", "speculative-decoding", "eyas")]
    return "\n".join(["---", *lines, "---"])


def _target(facts: CardFacts) -> str:
    profile = facts.serving.profile
    rows = {
        "model": f"`{profile.source}`",
        "revision": f"`{profile.revision}`" if profile.revision else "none given (a local folder)",
        "files (SHA-256)": f"`{profile.digest}`",
        "architecture": f"{profile.architecture}, {profile.num_layers} layers, hidden size {profile.hidden_size}",
        "served and extracted in": profile.dtype,
    }
    return "## Target\n\n" + _table(["", ""], rows.items())


def _serve(name: str, facts: CardFacts) -> str:
    text = f"## Serving with {ENGINES[name]}\n\n```sh\n{command(name, facts.serving, 'PATH_OR_ID_OF_THIS_FOLDER')}\n```"
    if facts.serving.target_is_public:
        return text
    return (
        f"{text}\n\n`{facts.serving.target_name}` is the target's folder in the repository that this was made in. Elsewhere put "
        "your own in its place"
        + (", also in `speculators_config` of config.json." if name == "speculators" else ".")
    )


def _acceptance(facts: CardFacts) -> str:
    lines = [f"## Acceptance\n\nAcceptance length = {FORMULA}.\n"]
    training = facts.training
    lines.append(
        f"* On the validation split, while training: {_number(training.get('acceptance_length'))} with "
        f"{facts.recipe.get('ttt_steps')} draft tokens ({training.get('val_sequences')} sequences of the training tasks, "
        "teacher-forced on stored states)."
    )
    return "\n".join([*lines, *_later_lines(None, None)])


def _later_lines(simulated: Mapping[str, Any] | None, measured: Mapping[str, Any] | None) -> list[str]:
    """What stages behind the export find out."""
    return [
        *_measured(SIMULATED, simulated, "evaluate", "reports/acceptance.json"),
        *_measured(MEASURED, measured, "engine", "reports/engine.json"),
    ]


def _measured(title: str, report: Mapping[str, Any] | None, stage: str, path: str) -> Iterator[str]:
    datasets = (report or {}).get("datasets") or {}
    if not datasets:
        yield f"* {title}: not known when this folder was written. The stage `{stage}` writes it to `{path}`."
        return
    for dataset, entry in datasets.items():
        length = (counted_alike(entry).get("acceptance") or {}).get("length")
        yield f"* {title}, `{dataset}`: {_number(length)} over {entry.get('drafts')} drafts."


def _data(facts: CardFacts) -> str:
    splits = facts.sequences.get("splits") or {}
    names = sorted({name for split in splits.values() for name in split.get("by_dataset") or {}})
    counts = (
        (f"`{name}`", *((split.get("by_dataset") or {}).get(name, 0) for split in splits.values()))
        for name in names
    )
    tokens = {
        key: sum(split.get(key) or 0 for split in splits.values())
        for key in ("prompt_tokens", "generated_tokens")
    }
    return (
        "## Data\n\nAnswers of the target itself, as the token ids that its server sent. Sequences by split:\n\n"
        f"{_table(['dataset', *splits], counts)}\n\n"
        f"{tokens['prompt_tokens']} prompt tokens, which are not trained on, and {tokens['generated_tokens']} generated ones."
    )


def _training(facts: CardFacts) -> str:
    training = facts.training
    text = (
        f"## Training\n\n{training.get('steps')} steps in {training.get('epochs')} epochs, {training.get('trained_tokens_seen')} "
        f"trained tokens seen, weights of step {training.get('published_step')} published. Settings (`train` of params.yaml):"
        f"\n\n```json\n{json.dumps(dict(facts.recipe), indent=2)}\n```"
    )
    if facts.origin is None:
        return text
    assumed = "\n".join(f"* {sentence}" for sentence in facts.origin.get("assumptions") or [])
    return (
        f"{text}\n\nIt began as `{facts.origin.get('folder')}`, a drafter in the format {facts.origin.get('format')}, whose shapes, "
        f"flags, rope, layers and draft vocabulary it keeps."
        + (f" What that folder did not say was assumed:\n\n{assumed}" if assumed else "")
    )


def _checkpoint(name: str, facts: CardFacts) -> str:
    config = facts.config
    flags = [
        flag
        for flag in ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")
        if getattr(config, flag)
    ]
    ids = f"{config.aux_layer_ids} (Hugging Face `hidden_states` indices, as vLLM counts)"
    if name == "sglang":
        ids += f"; {to_output_ids(config.aux_layer_ids)} as outputs of layers, as SGLang counts"
    rows = {
        "parameters": f"{facts.parameters:,}",
        "precision": facts.serving.dtype,
        "aux layers": ids,
        "draft vocabulary": f"{config.draft_vocab_size} of {config.vocab_size} tokens",
        "norm flags": ", ".join(flags) or "none",
        "rope": f"theta {config.rope_theta:g}, scaling {config.rope_scaling or 'none'}",
        "embedding": "the target's; none in the files",
    }
    return "## Checkpoint\n\n" + _table(["", ""], rows.items())


def _publishing(facts: CardFacts) -> str:
    target = "" if facts.serving.target_is_public else " Name a target that others can get."
    return (
        "## Before you publish this folder\n\nSet `license` in the first lines, and read the licences of target and data."
        f"{target} `hf upload ORGANISATION/NAME .` uploads it as it is."
    )


def _table(head: list[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def _number(value: float | None) -> str:
    return "unknown" if value is None else f"{value:.3f}"
