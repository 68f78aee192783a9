"""What the engine of each format takes from a config.json, in one flat form for the checks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from eyas.drafter.formats import plain, speculators
from eyas.drafter.formats.layerids import KEY, NESTED
from eyas.target.layers import to_output_ids

FLAGS = ("norm_before_fc", "fc_norm", "norm_before_residual", "norm_output")


@dataclass(frozen=True)
class View:
    """A config as an engine sees it."""

    values: dict[str, Any]
    """The Llama keys, sizes and flags, wherever they stand."""
    layer_ids: Any
    """What the engine reads as aux layer ids; None if it would take its default ones."""
    layer_key: str
    place: str
    counted: Callable[[Sequence[int]], list[int]]
    """From Hugging Face `hidden_states` indices to the engine's counting."""
    problems: list[str]
    """What is wrong for this engine alone."""


def view(name: str, config: Mapping[str, Any]) -> View:
    """The config of a folder of format `name`: vllm, sglang or speculators."""
    return {"vllm": _vllm, "sglang": _sglang, "speculators": _speculators}[name](config)


def _vllm(config: Mapping[str, Any]) -> View:
    problems = _architecture(config, plain.ARCHITECTURE)
    if KEY in (config.get(NESTED) or {}):
        problems.append("config: nested layer ids: vLLM's two runners read them differently")
    return View(dict(config), config.get(KEY), KEY, "at the top level", list, problems)


def _sglang(config: Mapping[str, Any]) -> View:
    problems = _architecture(config, plain.ARCHITECTURE)
    if config.get("norm_before_residual"):
        problems.append("config: `norm_before_residual` is set, which SGLang does not compute")
    inner = (config.get(NESTED) or {}).get(KEY)
    if isinstance(inner, list) and config.get(KEY) != [index + 1 for index in inner]:
        problems.append(
            f"config: `{KEY}` {config.get(KEY)}, which vLLM reads, and `{NESTED}.{KEY}` {inner} are different layers"
        )
    return View(
        dict(config), inner, f"{NESTED}.{KEY}", "counted as outputs of layers", to_output_ids, problems
    )


def _speculators(config: Mapping[str, Any]) -> View:
    problems = _architecture(config, speculators.ARCHITECTURE)
    if config.get(speculators.KIND) != "eagle3":
        problems.append(f"config: `{speculators.KIND}` must be 'eagle3', is {config.get(speculators.KIND)!r}")
    problems += _proposal_problems(config.get("speculators_config"))
    layer = config.get(speculators.LAYER)
    if not isinstance(layer, dict):
        problems.append(f"config: `{speculators.LAYER}` is missing, which holds the sizes")
        layer = {}
    above = {key: config.get(key) for key in ("draft_vocab_size", "target_hidden_size", *FLAGS)}
    return View({**layer, **above}, config.get(KEY), KEY, "at the top level", list, problems)


def _proposal_problems(proposal: Any) -> list[str]:
    """What vLLM insists on, to serve the folder by its name alone."""
    try:
        tokens = proposal["proposal_methods"][0]["speculative_tokens"]
        target = proposal["verifier"]["name_or_path"]
    except (KeyError, IndexError, TypeError):
        return ["config: `speculators_config` names no draft tokens or no target (verifier)"]
    if isinstance(tokens, int) and tokens > 0 and isinstance(target, str) and target:
        return []
    return [f"config: `speculators_config` names {tokens!r} draft tokens and target {target!r}"]


def _architecture(config: Mapping[str, Any], wanted: str) -> list[str]:
    if config.get("architectures") == [wanted]:
        return []
    return [f"config: `architectures` must be {[wanted]!r}, is {config.get('architectures')!r}"]
