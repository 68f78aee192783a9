"""How the answers were sampled: the keys of section `generate` that decide the distribution of a token."""

from __future__ import annotations

from dataclasses import dataclass

SMALLEST_TEMPERATURE = 1e-5
"""Engines answer greedily below it."""
LOWEST_TEMPERATURE = 1e-2
"""vLLM raises temperatures between the two to this one."""


@dataclass(frozen=True)
class Sampling:
    """A token is sampled from the softmax of logits / temperature, cut to the largest probabilities."""

    dialect: str
    """What the server speaks: engines differ in how top_k and top_p act together."""
    temperature: float
    """0: greedy."""
    top_p: float
    """The smallest set of the most probable tokens that holds this probability is kept; 1: all."""
    top_k: int
    """So many of the most probable tokens are kept; 0: all."""

    @property
    def greedy(self) -> bool:
        """Whether every token is the argmax."""
        return self.temperature < SMALLEST_TEMPERATURE or self.top_k == 1

    @property
    def divisor(self) -> float:
        """What logits are divided by; only where sampling is not greedy."""
        return max(self.temperature, LOWEST_TEMPERATURE)

    @property
    def joint(self) -> bool:
        """Whether top_p counts the probabilities before top_k (SGLang) and not after it (vLLM, transformers)."""
        return self.dialect.startswith("sglang")

    def __str__(self) -> str:
        if self.greedy:
            return "greedy"
        cuts = [f"top_p {self.top_p:g}"] * (self.top_p < 1) + [f"top_k {self.top_k}"] * (self.top_k > 0)
        return ", ".join([f"temperature {self.temperature:g}", *cuts])


GREEDY = Sampling("vllm", 0.0, 1.0, 0)
