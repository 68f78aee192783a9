from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from eyas.config import load_keys
from eyas.sampling import GREEDY, Sampling

ROOT = Path(__file__).parent.parent
WARM = Sampling("vllm", 0.7, 1.0, 0)
KEYS = ("dialect", "temperature", "top_p", "top_k")


@pytest.mark.parametrize(
    ("sampling", "greedy"),
    [
        pytest.param(GREEDY, True, id="temperature 0"),
        pytest.param(replace(WARM, temperature=1e-6), True, id="as good as 0 to engines"),
        pytest.param(replace(WARM, top_k=1), True, id="one token left"),
        pytest.param(replace(WARM, temperature=0.01), False, id="cold"),
        pytest.param(WARM, False, id="warm"),
        pytest.param(replace(WARM, top_k=2), False, id="two tokens left"),
    ],
)
def test_greedy(sampling: Sampling, greedy: bool) -> None:
    assert sampling.greedy == greedy


def test_it_is_shown_as_params_write_it() -> None:
    assert str(GREEDY) == "greedy"
    assert str(WARM) == "temperature 0.7"
    assert str(replace(WARM, top_p=0.9, top_k=50)) == "temperature 0.7, top_p 0.9, top_k 50"


@pytest.mark.parametrize(
    ("dialect", "joint"), [("vllm", False), ("openai", False), ("sglang", True), ("sglang-generate", True)]
)
def test_engines_differ_in_how_the_cuts_act_together(dialect: str, joint: bool) -> None:
    assert replace(WARM, dialect=dialect).joint == joint


@pytest.mark.parametrize(
    "path", [ROOT / "params.yaml", *sorted((ROOT / "recipes").glob("*.yaml"))], ids=lambda p: p.stem
)
def test_the_keys_are_in_the_params(path: Path) -> None:
    assert isinstance(load_keys("generate", KEYS, Sampling, path), Sampling)
