"""The `target` section of params.yaml."""

from __future__ import annotations

from dataclasses import dataclass

SOURCES = ("gguf_wheel", "folder", "hub")
DTYPES = ("float32", "bfloat16", "float16")


@dataclass(frozen=True)
class TargetParams:
    """Which model is drafted for, and the layers whose hidden states the drafter sees."""

    source: str
    """gguf_wheel (a GGUF file inside an installed Python package), folder, or hub. DVC does not watch a folder
    outside the repository: after changing it run `dvc repro -f target`."""
    name: str
    """Package name, folder path, or hub id."""
    file: str | None = None
    """gguf_wheel only: the GGUF file's name."""
    revision: str | None = None
    """Package version, or hub commit or tag; must be null for a folder."""
    dtype: str = "float32"
    """float32, bfloat16 or float16: how the target is served, and how its states are extracted."""
    aux_layer_ids: list[int] | None = None
    """Hugging Face `hidden_states` indices, ascending; null for {2, N//2, N-3}."""
    think_format: str | None = None
    """How turns are written: null finds it, a family of think_formats, the path of a .yaml file, or none. DVC does not
    watch such a file: after changing it run `dvc repro -f target`."""
    trust_remote_code: bool = False
    """Run Python code that comes with the model. Off unless the model can't be loaded without it."""

    def __post_init__(self) -> None:
        if self.source not in SOURCES:
            raise ValueError(f"source: {self.source!r} is not one of {', '.join(SOURCES)}")
        if not self.name:
            raise ValueError("name: '' is not a package, folder or hub id")
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype: {self.dtype!r} is not one of {', '.join(DTYPES)}")
        if (self.source == "gguf_wheel") != (self.file is not None):
            raise ValueError(f"file: {self.file!r}; source gguf_wheel needs a file name, the others none")
        if self.source != "folder" and self.revision is None:
            raise ValueError(
                f"revision: null; source {self.source} needs one, otherwise a rerun may bring another model"
            )
        if self.source == "folder" and self.revision is not None:
            raise ValueError(f"revision: {self.revision!r}; a folder has none")
