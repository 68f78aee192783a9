"""The dialect of a run."""

from __future__ import annotations

from pathlib import Path

from eyas.generate.dialects.base import Dialect
from eyas.generate.dialects.openai import OpenAIDialect
from eyas.generate.dialects.sglang import SglangDialect
from eyas.generate.dialects.sglang_generate import SglangGenerateDialect
from eyas.generate.dialects.vllm import VllmDialect
from eyas.generate.params import GenerateParams
from eyas.target.spec import TargetProfile


def dialect(params: GenerateParams, profile: TargetProfile, tokenizer_dir: Path) -> Dialect:
    """The dialect that `generate.dialect` names. A tokenizer is loaded only when the first row needs it.

    Raises:
        ConfigError: a parameter is set that this dialect can't honour.
    """
    match params.dialect:
        case "vllm":
            return VllmDialect(params, profile)
        case "sglang":
            return SglangDialect(params, profile)
        case "sglang-generate":
            return SglangGenerateDialect(params, profile, tokenizer_dir)
        case "openai":
            return OpenAIDialect(params, profile, tokenizer_dir)
    raise ValueError(f"dialect: {params.dialect!r} is unknown")
