"""Rope settings in the spellings of transformers 4 (`rope_theta`, `rope_scaling`) and 5 (`rope_parameters`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from eyas.drafter.formats.findings import Findings

DEFAULT_THETA = 10000.0
"""What Llama's code takes where a config says nothing, as EAGLE's published configs do."""
SCALINGS = ("linear", "dynamic", "yarn", "longrope", "llama3")
"""Kinds that engines and transformers compute alike."""
UNIT = {"partial_rotary_factor": 1.0}
"""Keys that change nothing at these values."""


@dataclass(frozen=True)
class Rope:
    """Rotary embedding of a drafter."""

    theta: float
    scaling: dict[str, Any] | None
    """`rope_type` and its settings, without theta; null for plain rope."""

    @property
    def depends_on_length(self) -> bool:
        """Whether `max_position_embeddings` enters the frequencies, so that it must not be changed."""
        if self.scaling is None or self.scaling["rope_type"] == "linear":
            return False
        return "original_max_position_embeddings" not in self.scaling


def rope_keys(rope: Rope) -> dict[str, Any]:
    """Both spellings with the same values, so that every version of an engine reads one of them."""
    return {
        "rope_theta": rope.theta,
        "rope_scaling": dict(rope.scaling) if rope.scaling else None,
        "rope_parameters": {"rope_type": "default", "rope_theta": rope.theta, **(rope.scaling or {})},
    }


def read_rope(values: Mapping[str, Any], found: Findings) -> Rope:
    """The rope of a Llama config. Two spellings that differ, and kinds that engines compute differently, are problems."""
    spelled = [
        _spelled(values, key, found)
        for key in ("rope_parameters", "rope_scaling")
        if values.get(key) is not None
    ]
    thetas = {each.pop("rope_theta") for each in spelled if "rope_theta" in each}
    if values.get("rope_theta") is not None:
        thetas.add(values["rope_theta"])
    if len(thetas) > 1:
        found.refuse(f"config: rope_theta is {' and '.join(map(str, sorted(thetas, key=str)))}")
    if not thetas:
        found.assume(f"rope_theta is {DEFAULT_THETA:g}: the config does not say, and that is Llama's default")
    if len(spelled) > 1 and spelled[0] != spelled[1]:
        found.refuse("config: `rope_parameters` and `rope_scaling` differ")
    theta = next(iter(thetas), DEFAULT_THETA)
    if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 0:
        found.refuse(f"config: `rope_theta` must be a positive number, is {theta!r}")
        theta = DEFAULT_THETA
    return Rope(float(theta), spelled[0] if spelled and spelled[0] else None)


def _spelled(values: Mapping[str, Any], key: str, found: Findings) -> dict[str, Any]:
    """One spelling without keys that change nothing; empty for plain rope, but for its theta."""
    given = values[key]
    if not isinstance(given, dict) or any(isinstance(value, dict) for value in given.values()):
        found.refuse(f"config: `{key}` must be one set of rope settings, is {given!r}")
        return {}
    settings = {name: value for name, value in given.items() if UNIT.get(name) != value}
    kind = settings.pop("rope_type", None) or settings.get("type") or "default"
    settings.pop("type", None)
    if kind == "default":
        theta = {name: value for name, value in settings.items() if name == "rope_theta"}
        if odd := sorted(settings.keys() - theta.keys()):
            found.refuse(f"config: `{key}` has {', '.join(odd)}, which plain rope does not use")
        return theta
    if kind not in SCALINGS:
        found.refuse(f"config: `{key}` has rope_type {kind!r}; known: default, {', '.join(SCALINGS)}")
    return {"rope_type": kind, **settings}
