"""The `export` section."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("vllm", "sglang", "speculators")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ExportParams:
    """Which checkpoints to write, and in which precision."""

    formats: list[str]
    """vllm: plain, layer ids as vLLM counts them; `evaluate` and `engine` read it, so it must be among them. sglang: plain,
    layer ids as SGLang counts them. speculators: that project's format, which vLLM serves too."""
    dtype: str
    """Of the weights: float32 | bfloat16 | float16. vLLM converts them to the target's when it loads them."""

    def __post_init__(self) -> None:
        if not self.formats:
            raise ValueError("formats: at least one is needed")
        for name in self.formats:
            if name not in FORMATS:
                raise ValueError(f"formats: {name!r} can't be written; known: {', '.join(FORMATS)}")
        if "vllm" not in self.formats:
            raise ValueError(f"formats: {self.formats} lacks vllm, which evaluate and engine read")
        if len(set(self.formats)) != len(self.formats):
            raise ValueError(f"formats: {self.formats} names one twice")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")


@dataclass(frozen=True)
class DraftTokens:
    """What export reads of the `speculation` section."""

    draft_tokens: int
    """Written into speculators' config and the commands of the model card."""
