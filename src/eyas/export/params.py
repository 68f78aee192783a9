"""The `export` section."""

from __future__ import annotations

from dataclasses import dataclass

FORMATS = ("vllm",)
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class ExportParams:
    """Which checkpoints to write, and in which precision."""

    formats: list[str]
    """vllm: a plain EAGLE-3 checkpoint with layer ids in vLLM's convention."""
    dtype: str
    """Of the weights: float32 | bfloat16 | float16. vLLM converts them to the target's when it loads them."""

    def __post_init__(self) -> None:
        if not self.formats:
            raise ValueError("formats: at least one is needed")
        for name in self.formats:
            if name not in FORMATS:
                raise ValueError(f"formats: {name!r} can't be written; known: {', '.join(FORMATS)}")
        if len(set(self.formats)) != len(self.formats):
            raise ValueError(f"formats: {self.formats} names one twice")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")
