"""Rope frequencies from a config, as engines compute them: default, linear, llama3 and yarn.

Sources: Llama (arXiv:2104.09864 in its half-pairing layout), Llama 3.1's scaling by wavelength
(meta-llama/llama-models), YaRN (arXiv:2309.00071, sections 3.2 to 3.4).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from eyas.errors import ArtifactError
from eyas.referee.tensorfile import Floats, Integers

DEFAULT_THETA = 10_000.0
"""Of a config that names none: transformers' and vLLM's default."""


@dataclass(frozen=True)
class Rope:
    """What rotates queries and keys."""

    theta: float
    scaling: Mapping[str, Any] | None = None
    """Kind (`rope_type`) and numbers of a scaled rope; None for plain rope."""

    @classmethod
    def of_config(cls, config: Mapping[str, Any]) -> Rope:
        """From `rope_parameters` (transformers 5), else `rope_theta` and `rope_scaling` (4)."""
        parameters = config.get("rope_parameters") or {}
        scaling = dict(parameters or config.get("rope_scaling") or {})
        theta = parameters.get("rope_theta", config.get("rope_theta")) or DEFAULT_THETA
        scaling.pop("rope_theta", None)
        kind = scaling.pop("type", None)  # transformers before 4.43
        scaling.setdefault("rope_type", kind or "default")
        return cls(float(theta), None if scaling["rope_type"] == "default" else scaling)

    @property
    def text(self) -> str:
        """For people."""
        return f"theta {self.theta:g}" + (f", scaled {dict(self.scaling)}" if self.scaling else "")


@dataclass(frozen=True)
class Rotation:
    """Turns heads [N, heads, D] by their positions; halves are paired."""

    cos: Floats
    """[N, 1, D / 2]"""
    sin: Floats

    def __call__(self, heads: Floats) -> Floats:
        first, second = np.split(heads, 2, axis=-1)
        return np.concatenate(
            [first * self.cos - second * self.sin, second * self.cos + first * self.sin], axis=-1
        )


def rotation(rope: Rope, head_dim: int, max_position: int, positions: Integers) -> Rotation:
    """The rotation of some positions [N].

    Raises:
        ArtifactError: a kind of scaling that is not known here.
    """
    angles = positions[:, None, None] * frequencies(rope, head_dim, max_position)  # [N, 1, D / 2]
    size = attention_factor(rope)
    return Rotation((np.cos(angles) * size).astype(np.float32), (np.sin(angles) * size).astype(np.float32))


def frequencies(rope: Rope, head_dim: int, max_position: int) -> NDArray[np.float64]:
    """Radians per position, [D / 2].

    Raises:
        ArtifactError: a kind of scaling that is not known here.
    """
    plain: NDArray[np.float64] = rope.theta ** (-np.arange(0, head_dim, 2) / head_dim)
    scaling = rope.scaling
    if scaling is None:
        return plain
    kind = scaling["rope_type"]
    if kind == "linear":
        return plain / float(scaling["factor"])
    if kind == "llama3":
        return _llama3(plain, scaling)
    if kind == "yarn":
        return _yarn(plain, rope, head_dim, max_position)
    raise ArtifactError(
        f"rope scaling {kind!r} can't be simulated",
        hint="known are default, linear, llama3 and yarn",
    )


def attention_factor(rope: Rope) -> float:
    """What cosines and sines are multiplied with; 1 but for yarn."""
    scaling = rope.scaling
    if scaling is None or scaling["rope_type"] != "yarn":
        return 1.0
    if scaling.get("attention_factor") is not None:
        return float(scaling["attention_factor"])
    factor, scale, all_dim = scaling["factor"], scaling.get("mscale"), scaling.get("mscale_all_dim")
    if scale and all_dim:
        return _magnitude(factor, scale) / _magnitude(factor, all_dim)
    return _magnitude(factor, 1.0)


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _llama3(plain: NDArray[np.float64], scaling: Mapping[str, Any]) -> NDArray[np.float64]:
    """Long waves are stretched, short ones kept, those between blended."""
    length = scaling["original_max_position_embeddings"]
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    waves = length * plain / (2 * math.pi)  # turns within the original length
    kept = np.clip((waves - low) / (high - low), 0.0, 1.0)
    blended: NDArray[np.float64] = (1 - kept) * plain / scaling["factor"] + kept * plain
    return blended


def _yarn(plain: NDArray[np.float64], rope: Rope, head_dim: int, max_position: int) -> NDArray[np.float64]:
    scaling = rope.scaling or {}
    length = scaling.get("original_max_position_embeddings") or max_position

    def dimension(turns: float) -> float:
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = dimension(scaling.get("beta_fast") or 32), dimension(scaling.get("beta_slow") or 1)
    if scaling.get("truncate", True):
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    ramp = np.clip((np.arange(head_dim // 2) - low) / max(high - low, 0.001), 0.0, 1.0)
    blended: NDArray[np.float64] = ramp * plain / scaling["factor"] + (1 - ramp) * plain
    return blended
